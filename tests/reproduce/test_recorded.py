"""Figures against what docs/results records: every sentence, verdict, number and picture comes out as it stands there.

The worlds of test_worlds.py say that verdicts are true; here nothing may change unseen.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from reproduce import records
from reproduce.draw import drawing, save
from reproduce.figure import Figure, key_of
from reproduce.jobs import jobs_of
from reproduce.page import numbers, write_page
from reproduce.selection import Runs
from reproduce.tables import FIGURES
from tests.conftest import ROOT
from tests.reproduce.worlds import BASE, World, group, named, request_for

RESULTS = ROOT / "docs" / "results"
EVERY_FIGURE = pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.name)


def test_the_page_is_the_recorded_one(tmp_path: Path) -> None:
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    assert write_page(FIGURES, tmp_path).read_text().splitlines() == (RESULTS / "README.md").read_text().splitlines()


@EVERY_FIGURE
def test_a_figure_is_the_recorded_one_and_its_claims_have_runs(figure: Figure, tmp_path: Path) -> None:
    """Nearly all pixels are equal: a shifted line or another group's bar changes more than one in 2,000."""
    stored = records.read(RESULTS / f"{figure.name}.json")
    runs = records.runs_of(stored)
    for members in runs.split("model.name").values():
        claims = figure.judge(members, stored["extra"])
        assert claims
        assert [claim.text for claim in claims if claim.evidence in ("", "no runs") or "{" in claim.text] == []
    with drawing():
        save(figure.draw(runs, stored["extra"]), tmp_path / "now.png")
    now, then = (matplotlib.image.imread(path) for path in (tmp_path / "now.png", RESULTS / f"{figure.name}.png"))
    assert now.shape == then.shape
    assert np.mean(np.abs(now - then).max(axis=-1) > 0.1) < 5e-4


@EVERY_FIGURE
def test_a_figure_of_half_of_its_runs(figure: Figure, tmp_path: Path) -> None:
    """As when a sweep was stopped: it is drawn, judged and written, and no run is none."""
    stored = records.read(RESULTS / f"{figure.name}.json")
    some = Runs(records.runs_of(stored).records[::3])
    if figure.name in ("fig3", "fig4", "fig7", "table1", "agro_kl", "length"):  # of each kind of panel
        with drawing():
            save(figure.draw(some, stored["extra"]), tmp_path / "half.png")
    for members in some.split("model.name").values():
        assert all(claim.evidence for claim in figure.judge(members, stored["extra"]))
        assert len(numbers(figure, members)) > 2
    if figure.name not in ("fig2", "agro_fig1"):  # whose curves are no runs'
        assert {claim.word for claim in figure.judge(Runs([]), {})} <= {"undecided"}


@pytest.mark.extended
@EVERY_FIGURE
def test_recorded_runs_are_those_of_the_experiments(figure: Figure) -> None:
    """Settings of the first two seeds, composed now, are identities of records; so that --recorded runs nothing."""
    jobs = jobs_of(figure, request_for(figure, overrides=("seed=0",)))
    known = records.known(records.read(RESULTS / f"{figure.name}.json"))
    assert jobs.keys() <= known.keys()
    assert len({job.config.folder for job in jobs.values()}) == len(jobs)


# ---- the page of made-up runs


def page_of(tmp_path: Path, figure: str, *groups: Any, extra: dict[str, Any] | None = None) -> str:
    found = World(figure, "", groups, "").runs()
    records.write(tmp_path / f"{figure}.json", found, extra or {})
    again = records.known(records.read(tmp_path / f"{figure}.json"))
    assert all(again[key_of(record)] == record for record in found)
    return write_page([named(figure)], tmp_path).read_text()


def cells(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows if len(row) > 3}


def test_each_model_has_its_own_verdicts_and_nothing_is_made_up_for_figures_without_runs(tmp_path: Path) -> None:
    good = [group(algo, level) for algo, level in (("ppo", 40), ("dpo", 55), ("topr", 70))]
    bad = [group(algo, level, model__name="tiny_noise") for algo, level in (("ppo", 70), ("dpo", 55), ("topr", 40))]
    text = page_of(tmp_path, "fig1", *good, *bad)
    first, second = text.split("**tiny_noise: ")
    for claim in ("TOPR ends above DPO", "DPO ends above PPO"):
        assert f"- {claim}: *shown*" in first
        assert f"- {claim}: *not shown*" in second
    assert "| [Figure 1](#figure-1) | tiny: partly, tiny_noise: undecided |" in text
    assert "10 claims: 3 shown, 3 not shown, 4 undecided." in text
    assert text.count("commit abc") == 1
    (tmp_path / "empty").mkdir()
    assert "Not computed yet: `python -m reproduce map --full`" in write_page(FIGURES, tmp_path / "empty").read_text()


def test_the_numbers_of_the_page(tmp_path: Path) -> None:
    """Rows by settings, bases apart where their problems are, seeds in order, those that collapsed beside them."""
    story = group("topr", (60, 62, 55), invalid=3, maj=75, seeds=(2, 0, 1))
    fallen = group("sft", (14, 60, 16), data__name="math", base={**BASE, "correct": 32.0})
    found = cells(page_of(tmp_path, "fig4", fallen, story))
    assert list(found)[-4:] == ["base, GSM8K-like", "base, MATH-like", "GSM8K-like, TOPR", "MATH-like, positives only"]
    assert [cell.split(" ")[0] for cell in found["GSM8K-like, TOPR"][:3]] == ["59.0", "75.0", "3.0"]
    assert found["GSM8K-like, TOPR"][3] == "62.0 55.0 60.0"
    assert [found[f"base, {name}-like"][0].split(" ")[0] for name in ("GSM8K", "MATH")] == ["30.0", "32.0"]
    assert found["MATH-like, positives only"][3] == "14.0 60.0 16.0; collapsed: 1 of 3 seeds, 33.3 [6.1, 79.2] %"


def test_records_name_their_environment_and_differences(tmp_path: Path) -> None:
    one, other = group("topr", 50, seeds=(0, 1)).records()
    other["environment"] = {"git_commit": "def"}
    records.write(tmp_path / "x.json", [other, one], {"number": 1.5})
    stored = records.read(tmp_path / "x.json")
    assert stored["extra"] == {"number": 1.5}
    known = records.known(stored)
    assert known[key_of(other)]["environment"] == {"git_commit": "def"}
    assert records.differences(known[key_of(one)], one) == []
    changed = json.loads(json.dumps(one))
    changed["final"]["of_problems"]["correct"] = "1 2"
    assert records.differences(one, changed)[0].startswith("final.of_problems.correct: ")
    assert records.read(tmp_path / "absent.json")["runs"] == []
