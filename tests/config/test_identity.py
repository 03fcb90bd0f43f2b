"""The identity of a run: a key for every input that decides its result, and a name for its folder."""

import copy
import dataclasses
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of
from tests.extending import LOSS as PRINTED
from tests.extending import project
from topr_exp.config.groups import OptimConfig
from topr_exp.config.load import build_section
from topr_exp.config.settings import Config
from topr_exp.config.yamls import CONF, own_values
from topr_exp.runs.folder import RunFolder
from topr_exp.schema import NOT_IDENTITY, Section, hashed, plain, run_name
from topr_exp.types import ConfigError

VLLM, LORA = "model=llama3_8b", "model.lora={rank: 16, alpha: 32, targets: all-linear}"
NAMES = {
    (): "topr_gsm8k_tiny_lr1e-4_s0_f023ec4a4b",
    ("optim.lr=1e-3", LORA, "seed=3"): "topr_gsm8k_tiny_lr1e-3_lora16_s3_c38fbe57bd",
    (VLLM, "baseline=-0.3", "algo.advantage=reward"): "topr_gsm8k_llama3-8b_lr5e-7_c-0.3_s0_0191c5de0e",
    ("algo=agro", "model.reference=tiny_noise"): "agro_gsm8k_tiny_lr1e-4_reference-tiny-noise_s0_53e4d5aa9e",
    ("model=tiny_verifier",): "topr_gsm8k_tiny-verifier_lr1e-4_verifier_solver-tiny_solutions8_no-chat_s0_f403cc1513",
    ("algo=rloo", "mu=scored", "compose.pass_rate=[0.1,0.9]"):
        "rloo_gsm8k_tiny_lr1e-4_pass_rate0.1-0.9_prompts2_updates1_rounds200_s0_50bc118111",
}  # fmt: skip


@pytest.mark.parametrize(("words", "name"), NAMES.items(), ids=map(str, NAMES))
def test_names_never_change(words: tuple[str, ...], name: str) -> None:
    """Users' folders outlive a release: a key that was added takes no neutral default where one of these changes."""
    assert config_of(*words).folder.name == name


def test_names_are_short_and_safe_whatever_the_settings_hold() -> None:
    for text in ("x/.. " * 200, "é" * 300):
        config = config_of(f"data.template='{text}{{question}}'", "data.stop=[]", LORA)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, name=text), iterations=10**12)
        assert re.fullmatch(r"[\w.-]{1,80}_[0-9a-f]{10}", config.folder.name, re.ASCII)


@pytest.mark.parametrize("words", [(VLLM, LORA), ("model=tiny_verifier",), ("algo=grpo", "cluster=slurm")])
def test_every_setting_is_part_of_the_identity_but_those_of_one_list(words: tuple[str, ...]) -> None:
    config = config_of(*words)
    keys = [key for key, _, _ in leaves(config)]
    for key, section, name in leaves(config):
        changed = copy.deepcopy(config)
        target = changed if section is config else getattr(changed, key.split(".")[0])
        target = getattr(target, key.split(".")[1]) if key.count(".") == 2 else target
        object.__setattr__(target, name, f"not {getattr(section, name)}")
        place = {key, key.split(".")[0]} & NOT_IDENTITY
        assert (changed.identity == config.identity) == bool(place), key
        assert (hashed("", changed.identity) == hashed("", config.identity)) == bool(place), key
    if words[0] == VLLM:
        assert {key for key in NOT_IDENTITY if "." in key} <= {*keys}
    groups = {*(key.split(".")[0] for key in NOT_IDENTITY)}
    assert not groups & {"seed", "mu", "baseline", "algo", "data", "compose", "schedule", "evaluation"}
    of_training = {"micro_batch_size", "gradient_checkpointing", "compile"}  # how fast, not what
    assert {key for key in NOT_IDENTITY if key.startswith("optim")} == {f"optim.{name}" for name in of_training}


def leaves(section: Any, prefix: str = "") -> list[tuple[str, Any, str]]:
    """The dotted key of each setting, the group that holds it, and its name there."""
    found = []
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), f"{prefix}{field.name}"
        found += leaves(value, f"{key}.") if dataclasses.is_dataclass(value) else [(key, section, field.name)]
    return found


@dataclass(frozen=True)
class Curriculum(Section):
    kind: str = "none"
    levels: int | None = None


@dataclass(frozen=True, kw_only=True)
class LaterOptim(OptimConfig):
    average: str = "mean"


@dataclass(frozen=True, kw_only=True)
class LaterConfig(Config):
    curriculum: Curriculum = dataclasses.field(default=Curriculum())


@pytest.mark.parametrize(
    ("average", "curriculum", "added"),
    [
        ("mean", Curriculum(), None),
        ("sum", Curriculum(), ("optim", {"average": "sum"})),
        ("mean", Curriculum(levels=3), ("curriculum", {"levels": 3})),
    ],
)
def test_a_made_up_key_or_group_changes_no_folder_at_its_neutral_value(average, curriculum, added):
    before = config_of()
    later = LaterConfig(
        **{**vars(before), "optim": LaterOptim(**vars(before.optim), average=average), "curriculum": curriculum}
    )
    expected = copy.deepcopy(before.identity)
    if added is not None:
        expected.setdefault(added[0], {}).update(added[1])
    assert later.identity == expected
    assert (later.folder == before.folder) == (added is None)


def test_a_field_that_is_computed_is_no_setting() -> None:
    @dataclasses.dataclass(frozen=True)
    class Computed:
        given: int = 1
        made: int = dataclasses.field(init=False, default=2)

    assert plain(Computed()) == {"given": 1}


def test_a_yaml_without_an_added_key_takes_its_neutral_value() -> None:
    values = {key: value for key, value in vars(config_of().optim).items() if key not in ("reduction", "schedule")}
    values["name"] = "adamw"
    assert build_section("optim", values) == config_of().optim


LOSS = """
from dataclasses import dataclass
from topr_exp.algorithms.base import Loss

@dataclass(frozen=True)
class Mine(Loss):
    scale: float
    FIELD

    def __call__(self, batch): ...
"""


def test_a_run_goes_on_after_its_loss_got_a_new_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("_target_: growing.Mine\nname: mine\nscale: 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def settings(field: str, *more: str) -> Config:
        (tmp_path / "growing.py").write_text(LOSS.replace("FIELD", field))
        importlib.invalidate_caches()
        sys.modules.pop("growing", None)
        found: Config = config_of("--config-dir", str(tmp_path), "algo=mine", f"output_dir={tmp_path}", *more)
        return found

    before, later = settings(""), "advantage: str = 'none'"
    assert before.identity["algo"]["_target_"] == "growing.Mine"
    with RunFolder(before):
        pass
    same = settings(later)  # with the YAML of before, too
    assert (same.algo.advantage, same.folder) == ("none", before.folder)
    assert settings(later, "+algo.advantage=none").folder == before.folder
    with RunFolder(same) as folder:
        assert folder.read("state.json")["attempt"]["number"] == 2
    assert settings(later, "+algo.advantage=rank").folder != before.folder


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["algo.b_neg=0.5"], "_b_neg0.5_"),
        (["algo=tis", "algo.b_neg=2", "algo.b_pos=3"], "_b_pos3_b_neg2_"),
        (["algo.length_normalize=false"], "_no-length_normalize_"),
        (["algo.ratio=token"], "_ratio-token_"),
        (["algo=dpo", "algo.beta=.inf"], None),
        (["algo=dpo", "algo.beta=0.2"], "_beta0.2_"),
        (["algo=cispo", "algo.cap=.inf"], "_cap-inf_"),
    ],
)
def test_a_name_shows_what_differs_from_the_losss_own_yaml(words: list[str], part: str | None) -> None:
    if part is None:
        with pytest.raises(ConfigError):
            config_of(*words)
        return
    assert part in config_of(*words).folder.name


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "algo").glob("*.yaml")))
def test_each_hyper_parameter_of_each_loss_shows_in_the_name_and_none_at_its_yamls_value(name: str) -> None:
    config = config_of(f"algo={name}")
    plain_name = run_name(config, config.algo)
    assert run_name(config, own_values(config.algo)) == plain_name
    for field in dataclasses.fields(config.algo):
        value = getattr(config.algo, field.name)
        if field.name == "name" or isinstance(value, (list, type(None))):
            continue
        changed = copy.deepcopy(config.algo)
        other = not value if isinstance(value, bool) else "other" if isinstance(value, str) else value * 2 + 1
        object.__setattr__(changed, field.name, other)
        other_run = copy.copy(config)
        object.__setattr__(other_run, "algo", changed)
        words = run_name(other_run, config.algo)[:-11]
        if len(words) + len(field.name) < 70 and other not in (field.default, float("inf")):
            assert field.name in words, field.name
        assert words != plain_name[:-11] or other in (field.default, float("inf")) or len(words) > 60


def test_a_folder_of_an_earlier_release_is_found_by_its_hash(tmp_path: Path) -> None:
    config = config_of("algo.b_neg=0.5", f"output_dir={tmp_path}")
    now = config.folder
    assert "b_neg0.5" in now.name
    before = now.with_name("topr_gsm8k_tiny_lr1e-4_s0" + now.name[-11:])
    before.with_name("topr_gsm8k_tiny_lr1e-4_s0_0000000000").mkdir(parents=True)
    before.with_name("of_a_file" + now.name[-11:]).touch()
    assert config.folder == now
    before.mkdir()
    assert config.folder == before
    now.mkdir()
    assert config.folder == now


def test_a_name_shows_what_differs_from_a_yaml_of_ones_own(tmp_path: Path) -> None:
    with project(tmp_path, PRINTED):
        words = ("--config-dir", "conf", "algo=soft_topr")
        assert "ceiling" not in config_of(*words).folder.name
        assert "_ceiling4_" in config_of(*words, "algo.ceiling=4").folder.name
