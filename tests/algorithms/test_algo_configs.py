"""conf/algo: each YAML fills its dataclass exactly, Table 1 is what the paper prints, wrong values are refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from tests.algorithms.tabular_policies import NAMES, YAMLS, load
from tests.conftest import config_of
from topr_exp.config.groups import Reduction
from topr_exp.types import ConfigError

INF = float("inf")
TABLE_1 = {
    "sft": (1, 1, 0, 0),
    "naive": (1, 1, 1, 1),
    "is": (0, INF, 0, INF),
    "tis": (0, 1, 0, 1),
    "topr": (1, 1, 0, 1),
}
MODULES = ("base", "tapered", "ppo", "dpo", "agro", "group_relative", "trust_regions", "oapl")
FAMILY = {"topr", "tis", "is", "naive", "sft", "ppo", "dpo", "agro", "agro_on_policy", "rloo", "kl_pg"}
FAMILY |= {"grpo", "opmd", "asymre", "rec", "red_drop"}
RIVALS = {"gspo", "cispo", "vespo", "m2po", "sapo", "oapl"}


def test_all_algorithms_are_there():
    assert set(NAMES) >= FAMILY | RIVALS


@pytest.mark.parametrize("name", NAMES)
def test_yaml_fills_its_dataclass(name):
    """Every field has its value in the YAML; a default of the dataclass is what it does without."""
    settings = OmegaConf.to_container(OmegaConf.load(YAMLS[name]))
    settings.pop("defaults", None)  # Hydra's, not the loss's
    loss = load(name)
    assert settings.pop("_target_") == f"{type(loss).__module__}.{type(loss).__qualname__}"
    assert list(settings) == [field.name for field in dataclasses.fields(loss)]
    assert loss.name == name
    defaults = {field.name for field in dataclasses.fields(loss) if field.default is not dataclasses.MISSING}
    assert defaults <= {"advantage", "off_policy_mask"}  # new fields alone: at the default they are no part of a run
    first = YAMLS[name].read_text().splitlines()[0]
    assert first.startswith("# "), "the first line says what the loss is"
    assert "arXiv " in first, "and where it comes from"


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1(name):
    loss = load(name)
    assert (loss.a_pos, loss.b_pos, loss.a_neg, loss.b_neg) == TABLE_1[name]
    assert loss.length_normalize
    assert loss.ratio.name == "sequence"


def test_defaults_of_the_method():
    assert load("dpo").beta == 0.1
    assert (load("ppo").eps_low, load("ppo").eps_high) == (0.2, 0.2)
    assert load("asymre").delta_v == -0.1
    assert load("agro_on_policy").square_baseline.name == "none"
    for name in FAMILY - {*TABLE_1, "ppo", "dpo"}:
        assert not load(name).length_normalize
        assert not load(name).uses_baseline
    assert not load("dpo").uses_baseline
    assert [name for name in (*TABLE_1, "ppo") if not load(name).uses_baseline] == ["sft"]


def test_settings_of_the_rivals_authors():
    gspo, vespo, sapo, oapl = (load(name) for name in ("gspo", "vespo", "sapo", "oapl"))
    assert (gspo.eps_low, gspo.eps_high, gspo.off_policy_mask) == (3e-4, 4e-4, None)
    assert (load("cispo").cap, load("m2po").tau) == (5.0, 0.04)
    assert (vespo.c1_pos, vespo.c2_pos, vespo.c1_neg, vespo.c2_neg) == (2.0, 3.0, 3.0, 2.0)
    assert (sapo.tau_pos, sapo.tau_neg, sapo.length_normalize) == (1.0, 1.05, True)
    assert (oapl.beta, oapl.beta_value, oapl.rewards) == (1e-3, 0.5, "zero_one")
    assert oapl.needs == {"group_rewards"}
    assert load("oapl", anchor="ref").needs == {"group_rewards", "ref_logp"}
    for name in RIVALS:
        assert not load(name).uses_baseline
        by_tokens = config_of(f"algo={name}").optim.reduction is Reduction.tokens
        assert by_tokens == (name in ("cispo", "vespo", "m2po"))
    assert config_of("algo=cispo", "optim.reduction=sequences").optim.reduction is Reduction.sequences
    assert config_of("model=llama3_8b", "algo=vespo").optim.reduction is Reduction.tokens


OUT_OF_RANGE = {
    "gspo": {"eps_low": 0.0, "off_policy_mask": -1.0},
    "grpo": {"eps_high": 0.0, "off_policy_mask": -0.5},
    "cispo": {"cap": 0.0},
    "vespo": {"c1_pos": -1.0, "c2_neg": 0.0},
    "m2po": {"tau": 0.0},
    "sapo": {"tau_neg": INF},
    "oapl": {"beta": 0.0, "beta_value": INF},
    "topr": {"a_pos": -0.1, "a_neg": INF, "b_neg": -1.0},
    "ppo": {"eps_low": 1.1, "eps_high": -0.2},
    "dpo": {"beta": 0.0},
    "agro": {"beta": 0.0},
    "agro_on_policy": {"beta": INF},
    "rloo": {"beta": -0.1},
    "kl_pg": {"beta": 0.0},
    "opmd": {"tau": -1.0},
    "asymre": {"delta_v": INF},
    "rec": {"eps_low": 0.0, "eps_high": -1.0},
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in OUT_OF_RANGE for field in OUT_OF_RANGE[name]])
def test_out_of_range_is_one_line_with_key_and_value(name, field):
    value = OUT_OF_RANGE[name][field]
    with pytest.raises(ConfigError, match=rf"^algo\.{field} must be .*; got {value}$"):
        load(name, **{field: value})


def test_limits_in_the_wrong_order_name_both():
    with pytest.raises(ConfigError, match=r"^algo\.b_pos must be at least a_pos = 1\.5; got 1\.0$"):
        load("topr", a_pos=1.5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("topr", {"a_pos": "high"}),
        ("topr", {"ratio": "tokens"}),
        ("agro", {"estimator": 3.5}),
        ("topr", {"eps": 1}),
        ("dpo", {"beta": float("nan")}),
    ],
)
def test_wrong_types_and_unknown_keys_are_refused(name, changes):
    with pytest.raises(ConfigError):
        load(name, **changes)


def test_losses_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load("topr").a_neg = 1.0


def test_importing_the_losses_does_not_import_torch():
    """Config checks import them and must answer at once."""
    modules = ", ".join(f"topr_exp.algorithms.{m}" for m in MODULES)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
