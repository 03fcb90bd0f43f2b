"""Settings: every YAML composes, every mistake is one line that names key, value and what is allowed."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, config_of, needs_gym
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.groups import ComposeConfig
from topr_exp.config.model import ALL_LINEAR, LoRA, ModelConfig
from topr_exp.models.model_folder import SHIPPED
from topr_exp.runs.plan import plan
from topr_exp.schema import plain
from topr_exp.types import ConfigError

GROUPS = {
    group.name: sorted(path.stem for path in group.glob("*.yaml"))
    for group in (ROOT / "conf").iterdir()
    if group.is_dir()
}
OWN = [f"data.path={ROOT / 'tests/data/own.jsonl'}", "data.test_share=0.25"]


def named(*names: str) -> Any:
    """A parameter; of a choice that draws with reasoning-gym one that is skipped where that is not installed."""
    return pytest.param(*names, marks=[needs_gym] if {"reasoning_gym", "tiny_tasks"} & {*names} else [])


@pytest.mark.parametrize(("group", "choice"), [named(g, c) for g, choices in GROUPS.items() for c in choices])
def test_every_yaml_composes(group: str, choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Some algorithms are right on-policy only; their YAMLs say so by choosing the schedule.
    more = {"verifier": ["task.solver=tiny"], "jsonl": OWN}.get(choice, [])
    more += ["seed=0"] if group == "experiment" else []  # one of the seeds that it sweeps over
    chosen_by_command = choice in ("masks", "nats", "staleness_by_rate")  # their rates
    more += ["optim.lr=1e-4"] if chosen_by_command else []
    for job in plan(parse_arguments([f"{group}={choice}", "dry_run=true", *more])).jobs:
        assert job.config.folder.parent.name == job.config.name
    assert "set and not read" not in capsys.readouterr().err


@pytest.mark.parametrize(("group", "schema"), [("model", ModelConfig), ("compose", ComposeConfig)])
def test_every_yaml_has_every_field(group: str, schema: Any) -> None:
    for choice in GROUPS[group]:
        values = yaml.safe_load((ROOT / "conf" / group / f"{choice}.yaml").read_text(encoding="utf-8"))
        values = values.get(group, values)
        fields = {field.name for field in dataclasses.fields(schema)} - {"settings_of"}  # which the command sets
        assert (values["name"], {*values}) == (choice, fields)


@pytest.mark.parametrize("model", GROUPS["model"])
@pytest.mark.parametrize("data", [named(choice) for choice in GROUPS["data"]])
def test_every_model_takes_every_data_set(model: str, data: str) -> None:
    config = config_of(f"model={model}", f"data={data}", *(OWN if data == "jsonl" else ()))
    assert config.data.name == data
    if data in ("gsm8k", "math"):
        assert config.data.source == ("embedded" if model.startswith("tiny") else "hub")


def test_the_papers_models_carry_the_papers_settings() -> None:
    for model in ("llama3_8b", "deepseek_r1_8b"):
        for data, n, eval_n in (("gsm8k", 16, 64), ("math", 32, 16)):
            config = config_of(f"model={model}", f"data={data}")
            assert (config.data.n, config.data.eval_n) == (n, eval_n)
            assert plain(config.optim)["name"] == "adafactor"
            assert (config.optim.lr, config.optim.batch_size, config.optim.grad_clip) == (5e-7, 8, 1.0)
            assert (config.optim.weight_decay, config.optim.epochs) == (0.0, 1)
            assert (config.sampler.name, config.sampler.gpu_memory_utilization) == ("vllm", None)
            assert (config.sampler.top_k, config.sampler.max_new_tokens) == (500, 512)
            assert (config.sampler.temperature, config.sampler.top_p) == (1.0, 1.0)


PRESETS = ("llama3_2_1b", "qwen2_5_0_5b", "qwen2_5_1_5b", "qwen3_0_6b", "smollm2_135m")


@pytest.mark.parametrize("model", PRESETS)
def test_a_preset_is_a_pinned_chat_model_asked_without_examples(model: str) -> None:
    config = config_of(f"model={model}", "data=gsm8k")
    assert re.fullmatch(r"[\w-]+/[\w.-]+", config.model.path)
    assert re.fullmatch(r"[0-9a-f]{40}", str(config.model.revision))
    assert config_of(f"model={model}", f"model.path={SHIPPED / 'tiny'}", "data.chat=false").model.revision is None
    assert (config.data.chat, config.data.shots, config.sampler.top_k) == (True, 0, 0)
    assert config.optim.batch_size % config.optim.micro_batch_size == 0


@pytest.mark.parametrize(
    ("installed", "gpu", "cluster", "name", "prompts"),
    [
        (True, True, "local", "vllm", 256),
        (True, False, "local", "hf", 32),
        (False, True, "local", "hf", 32),
        (True, False, "slurm", "vllm", 256),  # submitted where no GPU is, run where one is
    ],
)
def test_a_preset_samples_with_vllm_where_it_can(installed, gpu, cluster, name, prompts, tmp_path, monkeypatch):
    if installed:
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    if gpu:
        (tmp_path / "driver").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("topr_exp.config.sampler_choice.DRIVER", tmp_path / "driver")
    words = ["--config-dir", str(tmp_path), "model=qwen2_5_0_5b", "data=gsm8k", f"cluster={cluster}"]
    sampler = config_of(*words).sampler
    assert (sampler.name, sampler.prompts_per_shard) == (name, prompts)
    assert config_of(*words, "sampler=hf").sampler.name == "hf"


def test_the_command_line_wins_over_the_model_and_the_model_over_the_data() -> None:
    assert config_of("data=math").data.n == 16
    assert config_of("data=math", "model=llama3_8b").data.n == 32
    assert config_of("data=math", "data.n=3").data.n == 3
    assert config_of("model=llama3_8b", "sampler=hf").sampler.name == "hf"
    assert config_of("optim=paper").optim.lr == 5e-7
    assert config_of("optim.lr=1e-3").optim.lr == 1e-3
    assert config_of("data.source=hub").data.source == "hub"


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the folder of a run is called `~`, which some libraries expand where they write, and others do not."""
    monkeypatch.setenv("HOME", "/home/somebody")
    config = config_of('output_dir="~/x"')
    assert (config.output_dir, config.store) == ("/home/somebody/x", Path("/home/somebody/x/store"))
    assert config.folder.is_relative_to("/home/somebody/x")
    assert config_of('output_dir="x~"').output_dir == "x~"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("needs = frozenset({'ref_logp', 'refrence'})", "needs refrence, which nothing provides; allowed: pairs, "),
        ("needs = 'pairs'", "needs must be a set of names; got 'pairs'"),
        ("needs = frozenset(); rewards = 'zero-one'", "rewards=zero-one: expected one of pm1, zero_one"),
        ("def signals(self, batch): return {}", "signal_names must name the tensors that `signals` returns"),
    ],
)
def test_a_loss_declares_nothing_that_nobody_knows(declared, message, tmp_path, monkeypatch):
    """Of the package or in a folder of the user's own, and before anything starts."""
    (tmp_path / "wrong_loss.py").write_text(
        f"from topr_exp.algorithms.regressions import DPO\nclass Mine(DPO):\n    {declared}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_loss", raising=False)
    with pytest.raises(ConfigError) as caught:
        config_of("algo=dpo", "algo._target_=wrong_loss.Mine", "dry_run=true")
    assert str(caught.value).startswith(f"algo._target_=wrong_loss.Mine: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("model", "label", "problems"), [("tiny", "mine", 32), ("llama3_8b", "tiny", 2)])
def test_a_models_size_goes_by_its_yaml_not_by_its_label(model: str, label: str, problems: int) -> None:
    config = config_of(f"model={model}", f"model.name={label}", "sampler=hf")
    assert config.sampler.prompts_per_shard == problems


def test_a_reference_of_its_own_has_no_revision_of_the_model_s() -> None:
    words = ["model=llama3_8b", "model.path=some/model", "model.revision=abc"]
    own, other = (config_of(*words, *more).reference for more in ([], ["model.reference=some/other"]))
    assert (own.path, own.revision, other.path, other.revision) == ("some/model", "abc", "some/other", None)


def test_a_choice_of_the_user_s_own_needs_a_size_and_no_adapter(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "model" / "tiny.yaml").read_text(encoding="utf-8")
    (tmp_path / "model").mkdir()

    def own_choice(left_out: str, *words: str) -> Any:
        lines = [line for line in text.splitlines() if not line.startswith(f"  {left_out}:")]
        (tmp_path / "model" / "mine.yaml").write_text("\n".join(lines), encoding="utf-8")
        return config_of("--config-dir", str(tmp_path), "model=mine", *words).model

    with pytest.raises(ConfigError, match=r"^model\.size=null: expected tiny or large, in the model's YAML$"):
        own_choice("size")
    given = "model.lora={rank: 4, alpha: 8, targets: all-linear}"
    assert own_choice("lora").lora is None
    assert own_choice("lora", given).lora == own_choice("lora", f"+{given}").lora == LoRA(4, 8.0, ALL_LINEAR)
    assert own_choice("name", given, "model.lora.rank=8", "model.name=x").lora.rank == 8


# ---- commands for 8B models in documents and YAMLs

SUBMITTED = re.compile(r"model=llama3_8b.*cluster=slurm\w*")


def submitted() -> list[tuple[str, str]]:
    """The place and the text of each line that has an 8B model run on a cluster."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf").rglob("*.yaml"))]
    return [(path.name, line) for path in pages for line in path.read_text(encoding="utf-8").splitlines()
            if SUBMITTED.search(line)]  # fmt: skip


@pytest.mark.parametrize(("place", "line"), submitted())
def test_a_cluster_is_asked_for_a_gpu(place: str, line: str) -> None:
    assert "cluster=slurm_8b" in line or "cluster.gpus_per_node=" in line, place
