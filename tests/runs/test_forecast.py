"""The time left of a run: by the pace of each kind of work, by its cost where it has none yet."""

import dataclasses

import pytest

from tests.conftest import config_of, values_of
from topr_exp.runs.forecast import SCORED, TRAINED, Forecast, Sizes, Step, planned_steps
from topr_exp.runtime import progress
from topr_exp.runtime.progress import Progress

NOW = [0.0]
RUN = [
    Step("evaluation", "sampling", 20),
    Step("sampling", "sampling", 100),
    Step("scoring", "scoring", 100, SCORED),
    Step("training", "training", 10, 10 * TRAINED),
    Step("evaluation", "sampling", 20),
]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: NOW[0])


@pytest.fixture
def forecast():
    return Forecast(RUN)


def work(kind, total, count, seconds):
    """Work that did so many units in so many seconds."""
    progress_of_work = Progress(kind, total, "units", kind)
    NOW[0] += seconds
    progress_of_work.update(count)
    return progress_of_work


def test_after_the_first_shard_all_other_work_goes_by_its_cost(forecast):
    forecast.enter("evaluation")

    seconds_left = forecast.seconds_left([work("sampling", 20, 10, seconds=10)])

    sampled, scored, trained = 100 + 20, 100 * SCORED, 10 * 10 * TRAINED
    assert seconds_left == pytest.approx(10 + sampled + scored + trained)


def test_work_that_was_measured_goes_by_its_own_pace(forecast):
    for kind, seconds in (("sampling", 100), ("scoring", 10)):
        forecast.enter(kind)
        forecast.complete(work(kind, 100, 100, seconds))
    forecast.enter("training")

    training = work("training", 10, 5, seconds=50)
    assert forecast.seconds_left([training]) == pytest.approx(50 + 20 * 1.0)
    evaluation = work("sampling", 4, 2, seconds=2)  # within training, whose clock goes on
    assert forecast.seconds_left([training, evaluation]) == pytest.approx(52 + 2 + 20, rel=0.05)


def test_grading_has_a_time_of_its_own_and_is_no_measure_for_other_work(forecast):
    forecast.enter("sampling")
    assert forecast.seconds_left([work("grading", 100, 50, seconds=5)]) is None
    forecast.complete(work("sampling", 100, 100, seconds=100))
    forecast.enter("training")

    assert forecast.seconds_left([work("grading", 100, 50, seconds=5)]) == pytest.approx(5 + 20)


SIZES = Sizes(
    sampled_completions=400,
    imported_completions=0,
    examples=None,
    completions_per_example=1,
    scores_mu=True,
    test_problems=10,
    completions_per_test=2,
)
ROUNDS = "schedule=on_policy schedule.prompts=4 schedule.rounds=6 schedule.updates=2"


def plan_steps(words, sizes):
    config = config_of("data.n=4", "optim.batch_size=8", *words.split())
    groups = config.schedule, config.optim, config.evaluation, config.iterations
    return planned_steps(dataclasses.replace(SIZES, **sizes), *groups)


@pytest.mark.parametrize(
    ("words", "sizes", "units"),
    [
        ("", {}, [20, 400, 400, 50, 20]),
        ("optim.epochs=2", {"examples": 80}, [20, 400, 400, 20, 20]),
        ("", {"scores_mu": False}, [20, 400, 0, 50, 20]),
        ("iterations=2", {}, [20, 400, 400, 50, 20, 400, 400, 50, 20]),
        (ROUNDS, {}, [20, 12, 20]),
        ("", {"sampled_completions": 0, "imported_completions": 64}, [20, 0, 64, 8, 20]),
    ],
)
def test_the_planned_work_is_that_of_the_settings(words, sizes, units):
    assert values_of(plan_steps(words, sizes), "units") == units
