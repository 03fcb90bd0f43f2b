"""Figures against what docs/results records: every sentence, verdict, number and picture comes out as it stands there.

The worlds of test_worlds.py say that verdicts are true; here nothing may change unseen.
"""

import json
import shutil
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from reproduce import records
from reproduce.figure import Figure, key_of
from reproduce.figures import FIGURES
from reproduce.jobs import plan_figure
from reproduce.page import number_table, write_page
from reproduce.panels import project_style, save_picture
from reproduce.selection import Runs
from tests.conftest import ROOT
from tests.reproduce.worlds import group, request_for

pytestmark = pytest.mark.extended

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
    assert len(runs)
    for members in runs.split("model.name").values():
        claims = figure.judge(members, stored["extra"])
        assert claims
        assert [claim.text for claim in claims if claim.evidence in ("", "no runs") or "{" in claim.text] == []
    with project_style():
        save_picture(figure.draw(runs, stored["extra"]), tmp_path / "now.png")
    drawn_pixels, recorded_pixels = (
        matplotlib.image.imread(path) for path in (tmp_path / "now.png", RESULTS / f"{figure.name}.png")
    )
    assert drawn_pixels.shape == recorded_pixels.shape
    assert np.mean(np.abs(drawn_pixels - recorded_pixels).max(axis=-1) > 0.1) < 5e-4


@EVERY_FIGURE
def test_a_figure_of_half_of_its_runs(figure: Figure, tmp_path: Path) -> None:
    """As when a sweep was stopped: it is drawn, judged and written, and no run is none."""
    stored = records.read(RESULTS / f"{figure.name}.json")
    half = Runs(records.runs_of(stored)[::3])
    if figure.name in ("fig3", "fig4", "fig7", "table1", "agro_kl", "lag"):  # of each kind of panel
        with project_style():
            save_picture(figure.draw(half, stored["extra"]), tmp_path / "half.png")
    for members in half.split("model.name").values():
        assert all(claim.evidence for claim in figure.judge(members, stored["extra"]))
        assert len(number_table(figure, members)) > 2
    if figure.name not in ("fig2", "agro_fig1"):  # whose curves are no runs'
        assert {claim.word for claim in figure.judge(Runs([]), {})} <= {"undecided"}


@EVERY_FIGURE
def test_recorded_runs_are_those_of_the_experiments(figure: Figure) -> None:
    """Settings of the first two seeds, composed now, are identities of records; so that --recorded runs nothing."""
    recorded = records.records_by_identity(records.read(RESULTS / f"{figure.name}.json"))
    jobs = plan_figure(figure, request_for(figure, overrides=("seed=0",))).jobs
    assert jobs
    assert jobs.keys() <= recorded.keys()
    assert len({job.config.folder for job in jobs.values()}) == len(jobs)


def test_nothing_is_made_up_for_figures_without_runs(tmp_path: Path) -> None:
    assert "Not computed yet: `python -m reproduce map --full`" in write_page(FIGURES, tmp_path).read_text()


def test_records_name_their_environment_and_differences(tmp_path: Path) -> None:
    first, second = group("topr", 50, seeds=(0, 1)).records()
    second["environment"] = {"git_commit": "def"}
    records.write(tmp_path / "x.json", [second, first], {"number": 1.5})
    stored = records.read(tmp_path / "x.json")
    assert stored["extra"] == {"number": 1.5}
    recorded = records.records_by_identity(stored)
    assert recorded[key_of(second)]["environment"] == {"git_commit": "def"}
    assert records.differences(recorded[key_of(first)], first) == []
    changed = json.loads(json.dumps(first))
    changed["final"]["of_problems"]["correct"] = "1 2"
    assert records.differences(first, changed)[0].startswith("final.of_problems.correct: ")
    assert records.read(tmp_path / "absent.json")["runs"] == []


def test_a_file_has_the_environment_and_the_base_of_many_runs_once(tmp_path: Path) -> None:
    written = group("topr", 50, seeds=(0, 1, 2)).records()
    records.write(tmp_path / "x.json", written, {})
    stored = records.read(tmp_path / "x.json")
    assert len(stored["runs"]) == 3
    assert len(stored["bases"]) == len({json.dumps(record["base"]) for record in written})
    assert [record["base"] for record in records.records_by_identity(stored).values()] == [
        record["base"] for record in written
    ]


@pytest.mark.parametrize("counts", ["4 0 4", "0", " ".join(map(str, range(36))), " ".join(map(str, range(40)))])
def test_counts_come_back_from_the_fewer_characters_in_which_they_are_stored(counts: str) -> None:
    assert records.unpack_counts(records.pack_counts(counts)) == counts


def test_counts_of_few_different_values_take_a_character_each() -> None:
    assert records.pack_counts("4 0 4 1000") == "4 0 1000:0102"
