"""The time left of a run: by the pace of each kind of work, by its cost where it has none yet."""

import dataclasses

import pytest

from tests.conftest import config_of
from topr_exp.runs.forecast import SCORED, TRAINED, Forecast, Sizes, Step, planned_steps
from topr_exp.runtime import progress
from topr_exp.runtime.progress import Kind, Progress

NOW = [0.0]
RUN = [
    Step("evaluation", "sampling", 20),
    Step("sampling", "sampling", 100),
    Step("scoring", "scoring", 100, SCORED),
    Step("training", "training", 10, 10 * TRAINED),
    Step("evaluation", "sampling", 20),
]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: NOW[0])


def work(kind: Kind, total: int, done: int, seconds: float) -> Progress:
    """Work that did so many units in so many seconds."""
    made = Progress(kind, total, "units", kind)
    NOW[0] += seconds
    made.update(done)
    return made


def test_nothing_is_said_before_anything_was_made() -> None:
    forecast = Forecast(RUN)
    forecast.enter("evaluation")
    stored = Progress("evaluation", 20, "completions", "sampling")
    stored.update(20, 0)
    assert forecast.seconds_left([stored]) is None


def test_after_the_first_shard_all_other_work_goes_by_its_cost() -> None:
    forecast = Forecast(RUN)
    forecast.enter("evaluation")
    shard = work("sampling", 20, 10, seconds=10)
    sampled, scored, trained = 100 + 20, 100 * SCORED, 10 * 10 * TRAINED
    assert forecast.seconds_left([shard]) == pytest.approx(10 + sampled + scored + trained)


def test_work_that_was_measured_goes_by_its_own_pace() -> None:
    forecast = Forecast(RUN)
    for stage, kind, seconds in (("sampling", "sampling", 100), ("scoring", "scoring", 10)):
        forecast.enter(stage)
        forecast.complete(work(kind, 100, 100, seconds))  # type: ignore[arg-type]
    forecast.enter("training")
    training = work("training", 10, 5, seconds=50)
    assert forecast.seconds_left([training]) == pytest.approx(50 + 20 * 1.0)


def test_an_evaluation_in_training_leaves_the_rest_of_training_to_come() -> None:
    forecast = Forecast(RUN)
    forecast.enter("sampling")
    forecast.complete(work("sampling", 100, 100, seconds=100))
    forecast.enter("training")
    training = work("training", 10, 5, seconds=50)
    nested = work("sampling", 4, 2, seconds=2)
    left = forecast.seconds_left([training, nested])
    assert left == pytest.approx(52 + 2 + 20, rel=0.05)  # training's clock went on, too


def test_grading_has_a_time_of_its_own_and_is_no_measure_for_other_work() -> None:
    forecast = Forecast(RUN)
    forecast.enter("sampling")
    assert forecast.seconds_left([work("grading", 100, 50, seconds=5)]) is None
    forecast.complete(work("sampling", 100, 100, seconds=100))
    forecast.enter("training")
    graded = work("grading", 100, 50, seconds=5)
    assert forecast.seconds_left([graded]) == pytest.approx(5 + 20)


SIZES = Sizes(sampled=400, imported=0, examples=None, completions_per_example=1, scored=True, test=10, tested=2)


@pytest.mark.parametrize(
    ("words", "changes", "units"),
    [
        ([], {}, [20, 400, 400, 50, 20]),
        (["optim.epochs=2"], {"examples": 80}, [20, 400, 400, 20, 20]),
        ([], {"scored": False}, [20, 400, 0, 50, 20]),
        (["iterations=2"], {}, [20, 400, 400, 50, 20, 400, 400, 50, 20]),
        (["schedule=on_policy", "schedule.prompts=4", "schedule.rounds=6", "schedule.updates=2"], {}, [20, 12, 20]),
        ([], {"sampled": 0, "imported": 64}, [20, 0, 64, 8, 20]),
        ([], {"examples": 1000}, [20, 400, 400, 50, 20]),
    ],
)
def test_the_planned_work_is_that_of_the_settings(words, changes, units):
    config = config_of("data.n=4", "optim.batch_size=8", *words)
    parts = config.schedule, config.optim, config.evaluation, config.iterations
    steps = planned_steps(dataclasses.replace(SIZES, **changes), *parts)
    assert [step.units for step in steps] == units


@pytest.mark.parametrize(
    ("words", "changes", "cost"),
    [
        ([], {}, 8 * TRAINED),
        ([], {"completions_per_example": 2}, 16 * TRAINED),
        (["evaluation.every=4"], {}, 8 * TRAINED + 20 / 4),
        (["evaluation.every=4", "evaluation.problems=3"], {}, 8 * TRAINED + 6 / 4),
        (["schedule=on_policy", "schedule.prompts=4", "schedule.rounds=6", "schedule.updates=2"], {"sampled": 16},
         8 * (1 + SCORED) + 8 * TRAINED),
    ],
)  # fmt: skip
def test_an_update_costs_its_examples_and_what_is_sampled_for_it(words, changes, cost):
    config = config_of("data.n=4", "optim.batch_size=8", *words)
    steps = planned_steps(dataclasses.replace(SIZES, **changes), config.schedule, config.optim, config.evaluation, 1)
    assert next(step.cost for step in steps if step.kind == "training") == pytest.approx(cost)
