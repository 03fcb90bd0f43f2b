"""conf/algo: each YAML fills its dataclass exactly and has its paper's settings."""

import dataclasses
import re
import subprocess
import sys

import pytest

from tests.algorithms.tabular_policies import FAMILY, NAMES, YAMLS, load, settings_of
from tests.conftest import ROOT

PAPERS = {
    **FAMILY,
    "topr": {**FAMILY["topr"], "ratio": "sequence"},
    "dpo": {"beta": 0.1},
    "ppo": {"eps_low": 0.2, "eps_high": 0.2},
    "asymre": {"delta_v": -0.1},
    "cispo": {"cap": 5.0},
    "m2po": {"tau": 0.04},
    "gspo": {"eps_low": 3e-4, "eps_high": 4e-4},
    "vespo": {"c1_pos": 2.0, "c2_pos": 3.0, "c1_neg": 3.0, "c2_neg": 2.0},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "oapl": {"beta": 1e-3},
}
DIVIDED_BY_LENGTH = {*FAMILY, "ppo", "sapo"}  # losses of a completion


@pytest.mark.parametrize("name", NAMES)
def test_yaml_fills_its_dataclass(name):
    """A field without a default has its value in the YAML; one with a default only where that is another."""
    settings = settings_of(name)
    loss = load(name)
    fields = set()
    for field in dataclasses.fields(loss):
        if field.default is dataclasses.MISSING or getattr(loss, field.name) != field.default:
            fields.add(field.name)

    assert settings.pop("_target_") == f"{type(loss).__module__}.{type(loss).__qualname__}"
    assert settings.keys() == fields
    assert loss.name == name
    comment = YAMLS[name].read_text().splitlines()[0]
    assert re.match("# .*(arXiv |veRL|prime-rl)", comment), "the first line says what the loss is and where it is from"


@pytest.mark.parametrize("name", PAPERS)
def test_losses_have_the_settings_of_their_papers(name):
    loss = load(name)

    assert vars(loss).items() >= PAPERS[name].items()
    assert loss.uses_baseline == (name in {*FAMILY, "ppo"} - {"sft"})
    assert loss.divides_by_length == (name in DIVIDED_BY_LENGTH)


def test_importing_the_losses_does_not_import_torch():
    """Config checks import them and must answer at once."""
    names = [path.stem for path in (ROOT / "topr_exp/algorithms").glob("[a-z]*.py")]
    code = f"import sys, {', '.join(f'topr_exp.algorithms.{name}' for name in names)}\n"
    code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    process = subprocess.run([sys.executable, "-c", code], timeout=300)

    assert process.returncode == 0
