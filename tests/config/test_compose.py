from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from topr_exp.config.compose import ComposeConfig, ComposeName, Duplicates

CONF = Path(__file__).parents[2] / "conf" / "compose"


def settings(name="uniform", **changes):
    values = {"n_examples": None, "positive_share": None, "pairs_per_problem": 16, "drop_truncated": False,
              "pass_rate": None, "duplicates": "keep", "mix": None, "max_draws": 10, **changes}  # fmt: skip
    values["duplicates"] = Duplicates(values["duplicates"])
    return ComposeConfig(name=ComposeName[name], **values)


def test_every_choice_has_a_yaml_with_every_field():
    assert {path.stem for path in CONF.glob("*.yaml")} == {name.name for name in ComposeName}
    for path in CONF.glob("*.yaml"):
        values = yaml.safe_load(path.read_text())
        assert set(values) == {field.name for field in dataclasses.fields(ComposeConfig)}
        assert values["name"] == path.stem
        assert values["n_examples"] is None
        settings(**values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "proportion", "positive_share": 1.5}, "positive_share must be in (0, 1); got 1.5"),
        ({"name": "proportion", "positive_share": 0.0}, "positive_share must be in (0, 1); got 0"),
        ({"name": "proportion"}, "positive_share must be in (0, 1) for compose=proportion; got null"),
        ({"pass_rate": [0.9, 0.1]}, "pass_rate must be [low, high] with 0 <= low <= high <= 1; got [0.9, 0.1]"),
        ({"pass_rate": [0.1, 1.1]}, "pass_rate must be [low, high] with 0 <= low <= high <= 1; got [0.1, 1.1]"),
        ({"pass_rate": [0.1]}, "pass_rate must be [low, high] with 0 <= low <= high <= 1; got [0.1]"),
        (
            {"positive_share": 0.5},
            "positive_share=0.5 means nothing for compose=uniform; use compose=proportion",
        ),
        ({"mix": 1.0}, "mix must be in (0, 1); got 1.0"),
        ({"mix": 0.5, "name": "anna_karenina"}, "mix=0.5 goes with compose=uniform or positives; got anna_karenina"),
        ({"max_draws": 0}, "max_draws must be 1 or more; got 0"),
        ({"n_examples": 0}, "n_examples must be null (all) or 1 or more; got 0"),
        ({"pairs_per_problem": 0}, "pairs_per_problem must be 1 or more; got 0"),
    ],
)
def test_a_wrong_setting_is_one_line(changes, message):
    with pytest.raises(ValueError) as error:
        settings(**changes)
    assert str(error.value) == message


def test_pairs_and_groups_refuse_compositions_that_break_them_up():
    for unit in ("examples", "pairs", "groups"):
        settings().check_unit(unit, "any")
    settings("positives").check_unit("examples", "sft")
    settings(drop_truncated=True).check_unit("pairs", "dpo")
    with pytest.raises(ValueError, match="name=positives picks single completions, but algo=dpo trains on pairs"):
        settings("positives").check_unit("pairs", "dpo")
    with pytest.raises(ValueError, match="drop_truncated=true would break up the groups that algo=agro trains on"):
        settings(drop_truncated=True).check_unit("groups", "agro")
    with pytest.raises(ValueError, match="duplicates=drop would break up the groups that algo=agro trains on"):
        settings(duplicates="drop").check_unit("groups", "agro")
    settings(duplicates="drop", pass_rate=[0.1, 0.9]).check_unit("pairs", "dpo")
    settings(pass_rate=[0.1, 0.9]).check_unit("groups", "agro")


def test_checking_settings_does_not_load_numpy():
    code = "import sys, topr_exp.config.compose; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
