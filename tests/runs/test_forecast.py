"""The time left of a run: by the pace of each kind of work, by its cost where it has none yet."""

import pytest

from topr_exp.runs.forecast import SCORING_COST, TRAINING_COST, Forecast, PlannedWork
from topr_exp.runtime.progress import Progress

RUN = [
    PlannedWork("evaluation", "sampling", 20),
    PlannedWork("sampling", "sampling", 100),
    PlannedWork("scoring", "scoring", 100, SCORING_COST),
    PlannedWork("training", "training", 10, 10 * TRAINING_COST),
    PlannedWork("evaluation", "sampling", 20),
]


@pytest.fixture
def forecast():
    return Forecast(RUN)


@pytest.fixture
def work(clock):
    """A function: work that did so many units in so many seconds."""

    def do(kind, total, count, seconds):
        progress = Progress(kind, total, "units", kind=kind)
        clock.now += seconds
        progress.update(count)
        return progress

    return do


def test_after_the_first_shard_all_other_work_goes_by_its_cost(forecast, work):
    forecast.enter("evaluation")

    seconds_left = forecast.seconds_left([work("sampling", 20, 10, seconds=10)])

    sampled = 10 + 100 + 20
    scored = 100 * SCORING_COST
    trained = 10 * 10 * TRAINING_COST
    assert seconds_left == pytest.approx(sampled + scored + trained)


def test_work_that_was_measured_goes_by_its_own_pace(forecast, work):
    for kind, seconds in (("sampling", 100), ("scoring", 10)):
        forecast.enter(kind)
        forecast.complete(work(kind, 100, 100, seconds))
    forecast.enter("training")

    training = work("training", 10, 5, seconds=50)
    seconds_before_evaluation = forecast.seconds_left([training])
    evaluation = work("sampling", 4, 2, seconds=2)  # within training, whose clock goes on
    seconds_within_evaluation = forecast.seconds_left([training, evaluation])

    assert seconds_before_evaluation == pytest.approx(50 + 20)
    assert seconds_within_evaluation == pytest.approx(52 + 2 + 20, rel=0.05)


def test_grading_has_a_time_of_its_own_and_is_no_measure_for_other_work(forecast, work):
    forecast.enter("sampling")
    grading = work("grading", 100, 50, seconds=5)
    assert forecast.seconds_left([grading]) is None

    forecast.complete(work("sampling", 100, 100, seconds=100))
    forecast.enter("training")
    grading = work("grading", 100, 50, seconds=5)
    assert forecast.seconds_left([grading]) == pytest.approx(5 + 20)
