"""Figures against docs/results: sentences, verdicts, numbers and pictures come out of the records as they stand."""

import shutil

import matplotlib.image
import numpy as np
import pytest

from reproduce import records
from reproduce.figures import FIGURES
from reproduce.files import links_from
from reproduce.jobs import plan_figure
from reproduce.page import number_table, write_page
from reproduce.panels import project_style, save_picture
from reproduce.selection import Runs
from tests.conftest import ROOT
from tests.reproduce.worlds import request_for

pytestmark = pytest.mark.extended

RESULTS = ROOT / "docs/results"
CURVES_WITHOUT_RUNS = ("fig2", "agro_fig1")
every_figure = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)


def test_the_page_is_the_recorded_one(tmp_path):
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)

    page = write_page(FIGURES, tmp_path)

    recorded_text = (RESULTS / "README.md").read_text()
    assert links_from(RESULTS, recorded_text) == recorded_text
    assert page.read_text().splitlines() == links_from(tmp_path, recorded_text).splitlines()


@every_figure
def test_a_picture_is_the_recorded_one(figure, tmp_path):
    """Nearly all pixels are equal: a shifted line or another group's bar changes more than one in 2,000."""
    stored = records.read(RESULTS / f"{figure.name}.json")
    with project_style():
        save_picture(figure.draw(records.runs_of(stored), stored["extra"]), tmp_path / "now.png")

    drawn_pixels = matplotlib.image.imread(tmp_path / "now.png")
    recorded_pixels = matplotlib.image.imread(RESULTS / f"{figure.name}.png")
    assert drawn_pixels.shape == recorded_pixels.shape
    assert np.mean(np.abs(drawn_pixels - recorded_pixels).max(axis=-1) > 0.1) < 5e-4


@every_figure
def test_a_figure_of_a_third_of_its_runs_is_judged_and_drawn(figure, tmp_path):
    """As when a sweep was stopped."""
    stored = records.read(RESULTS / f"{figure.name}.json")
    third = Runs(records.runs_of(stored)[::3])

    for members in third.split("model.name").values():
        assert all(claim.evidence for claim in figure.judge(members, stored["extra"]))
        assert len(number_table(figure, members)) > 2
    if figure.name in ("fig3", "fig4", "fig7", "table1", "agro_kl", "lag"):  # of each kind of panel
        save_picture(figure.draw(third, stored["extra"]), tmp_path / "third.png")
    if figure.name not in CURVES_WITHOUT_RUNS:
        assert {claim.word for claim in figure.judge(Runs([]), {})} <= {"undecided"}


@every_figure
def test_recorded_runs_are_those_of_the_experiments(figure):
    """Settings composed now are identities of records, so that --recorded runs nothing."""
    recorded = records.records_by_identity(records.read(RESULTS / f"{figure.name}.json"))

    jobs = plan_figure(figure, request_for(figure, overrides=("seed=0",))).jobs

    assert jobs
    assert jobs.keys() <= recorded.keys()
    assert len({job.config.folder for job in jobs.values()}) == len(jobs)


def test_nothing_is_made_up_for_figures_without_runs(tmp_path):
    assert "Not computed yet: `python -m reproduce map --full`" in write_page(FIGURES, tmp_path).read_text()
