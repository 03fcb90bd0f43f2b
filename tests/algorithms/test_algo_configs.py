"""conf/algo: each YAML fills its dataclass exactly and has its paper's settings; wrong values are refused."""

import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from tests.algorithms.tabular_policies import NAMES, YAMLS, load
from tests.conftest import ROOT, config_of

INF = float("inf")
LIMITS = ("a_pos", "b_pos", "a_neg", "b_neg")
TABLE_1 = {"sft": (1, 1, 0, 0), "naive": (1, 1, 1, 1), "is": (0, INF, 0, INF), "tis": (0, 1, 0, 1)}
TABLE_1["topr"] = (1, 1, 0, 1)
PAPERS = {name: dict(zip(LIMITS, limits, strict=True)) for name, limits in TABLE_1.items()} | {
    "dpo": {"beta": 0.1}, "ppo": {"eps_low": 0.2, "eps_high": 0.2}, "asymre": {"delta_v": -0.1},
    "cispo": {"cap": 5.0}, "m2po": {"tau": 0.04},
    "gspo": {"eps_low": 3e-4, "eps_high": 4e-4, "off_policy_mask": None},
    "vespo": {"c1_pos": 2.0, "c2_pos": 3.0, "c1_neg": 3.0, "c2_neg": 2.0},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05}, "oapl": {"beta": 1e-3, "rewards": "zero_one"},
}  # fmt: skip
OTHERS = {"agro", "agro_on_policy", "rloo", "kl_pg", "grpo", "opmd", "rec", "red_drop"}
BY_LENGTH = {*TABLE_1, "ppo", "sapo"}  # losses of a completion that are divided by its length
BY_TOKENS = {"cispo", "vespo", "m2po"}  # batches that are divided by their tokens


def test_all_algorithms_are_there():
    assert set(NAMES) >= {*PAPERS, *OTHERS}


@pytest.mark.parametrize("name", NAMES)
def test_yaml_fills_its_dataclass(name):
    """A field without a default has its value in the YAML; one with a default only where that is another."""
    settings = OmegaConf.to_container(OmegaConf.load(YAMLS[name]))
    settings.pop("defaults", None)  # Hydra's, not the loss's
    loss = load(name)
    assert settings.pop("_target_") == f"{type(loss).__module__}.{type(loss).__qualname__}"
    fields = {field.name: field for field in dataclasses.fields(loss)}
    required = {key for key, field in fields.items() if field.default is dataclasses.MISSING}
    differing = {key for key, field in fields.items() if getattr(loss, key) != field.default}
    assert settings.keys() == required | differing
    assert loss.name == name
    first = YAMLS[name].read_text().splitlines()[0]
    assert first.startswith("# "), "the first line says what the loss is"
    assert any(each in first for each in ("arXiv ", "veRL", "prime-rl")), "and where it comes from"


@pytest.mark.parametrize("name", sorted({*PAPERS, *OTHERS}))
def test_settings_of_the_papers(name):
    loss = load(name)
    found = {field: getattr(loss, field) for field in PAPERS.get(name, ())}
    assert {field: getattr(value, "name", value) for field, value in found.items()} == PAPERS.get(name, {})
    assert getattr(loss, "length_normalize", False) == (name in BY_LENGTH)
    assert loss.uses_baseline == (name in {*TABLE_1, "ppo"} - {"sft"})
    assert name not in TABLE_1 or loss.ratio == "sequence"
    rounds = ["schedule.updates=1"] if name in ("rloo", "agro_on_policy") else []
    reduction = config_of(f"algo={name}", "experiment=smoke", *rounds).optim.reduction
    assert reduction == ("tokens" if name in BY_TOKENS else "sequences")


def test_what_settings_change():
    assert load("oapl").needs == {"group_rewards"}
    assert load("oapl", anchor="ref").needs == {"group_rewards", "ref_logp"}
    assert config_of("algo=cispo", "optim.reduction=sequences").optim.reduction == "sequences"
    assert config_of("model=llama3_8b", "algo=vespo").optim.reduction == "tokens"


def test_importing_the_losses_does_not_import_torch():
    """Config checks import them and must answer at once."""
    names = [path.stem for path in (ROOT / "topr_exp" / "algorithms").glob("[a-z]*.py")]
    modules = ", ".join(f"topr_exp.algorithms.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
