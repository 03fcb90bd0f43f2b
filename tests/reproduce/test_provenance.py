"""Where the records of docs/results come from."""

import pytest

from reproduce import records
from tests.conftest import ROOT

TUNING = ROOT / "docs/results/rates.json"  # 503 of its runs are of when `reproduce.rates` wrote conf as they ended
FIGURES = sorted(set((ROOT / "docs/results").rglob("*.json")) - {TUNING})


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_figure_is_of_runs_of_the_code_of_a_commit(path):
    stored = records.read(path)
    environments = [stored["environments"][run["environment"]] for run in stored["runs"]]

    assert environments
    assert all(environment["git_commit"] for environment in environments)
    assert not any(environment["git_dirty"] for environment in environments)
