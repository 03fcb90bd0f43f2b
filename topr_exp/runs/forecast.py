"""The time that a run still takes, from the pace of the work that it has done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from topr_exp.config.groups import EvaluationConfig, OptimConfig, ScheduleConfig
from topr_exp.runtime.progress import Kind, Progress

# Before a kind of work has a pace of its own: the seconds of a completion, as a multiple of those to sample it.
SCORED, TRAINED = 0.5, 2.0


@dataclass(frozen=True)
class Step:
    """Work of a stage that is to come."""

    stage: str
    kind: Kind
    units: int  # completions, of training updates
    cost: float = 1.0  # of a unit, in completions that are sampled


@dataclass(frozen=True)
class Pace:
    """Units of a kind of work, and the seconds that they took."""

    units: float = 0.0
    seconds: float = 0.0

    def plus(self, progress: Progress) -> "Pace":
        """The pace of these units and those of `progress`, unless these are all found in the store."""
        if progress.done == progress.done_before:
            return self
        return Pace(self.units + progress.units_made, self.seconds + progress.seconds)


class Forecast:
    """Estimates the time left of a run, whose stages come in the order of `steps`.

    A kind of work without a pace of its own is estimated by its cost from those that have one; grading is left out.
    What the store holds already takes less time, which shows when its stage begins.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.costs = {step.kind: step.cost for step in steps}
        self.paces: dict[Kind, Pace] = {}  # of work that is complete

    def enter(self, stage: str) -> None:
        """Drop the steps up to and including those of a stage that begins."""
        stages = [step.stage for step in self.steps]
        if stage in stages:
            del self.steps[: stages.index(stage) + 1]

    def complete(self, progress: Progress) -> None:
        """Add work that is complete to the pace of its kind."""
        self.paces[progress.kind] = self.paces.get(progress.kind, Pace()).plus(progress)

    def seconds_left(self, under_way: Sequence[Progress]) -> float | None:
        """Seconds until the run ends; None before any unit of its work was done."""
        paces = dict(self.paces)
        for progress in under_way:
            paces[progress.kind] = paces.get(progress.kind, Pace()).plus(progress)
        cost = sum(pace.units * self.costs.get(kind, 0.0) for kind, pace in paces.items())
        if not cost:
            return None
        seconds = sum(pace.seconds for kind, pace in paces.items() if kind in self.costs)

        def seconds_of(kind: Kind, units: float, unit_cost: float) -> float:
            pace = paces.get(kind, Pace())
            return units * (pace.seconds / pace.units if pace.units else unit_cost * seconds / cost)

        total = sum(seconds_of(step.kind, step.units, step.cost) for step in self.steps)
        for progress in under_way:
            own = progress.seconds_left()
            missing = progress.total - progress.done
            total += seconds_of(progress.kind, missing, self.costs.get(progress.kind, 0.0)) if own is None else own
        return total


@dataclass(frozen=True)
class Sizes:
    """Numbers that decide how much work a run is."""

    sampled: int  # completions of an iteration
    imported: int
    examples: int | None  # of a training set; None: all completions
    completions_per_example: int
    scored: bool  # whether μ is scored by the model
    test: int  # problems
    tested: int  # completions of each


def planned_steps(
    sizes: Sizes, schedule: ScheduleConfig, optim: OptimConfig, evaluation: EvaluationConfig, iterations: int
) -> list[Step]:
    """The work of a run that can be foreseen: an evaluation of the base model, then each iteration."""
    tested = Step("evaluation", "sampling", sizes.test * sizes.tested)
    evaluated = evaluated_per_update(sizes, evaluation)
    if schedule.in_rounds:
        work = [step_of_rounds(sizes, schedule, optim.batch_size, evaluated)]
    else:
        work = offline_steps(sizes, optim, evaluated)
    return [tested, *[*work, tested] * iterations]


def offline_steps(sizes: Sizes, optim: OptimConfig, evaluated: float) -> list[Step]:
    """The work of an iteration that trains on a fixed set; evaluated: completions of an update's evaluation."""
    candidates = sizes.sampled + sizes.imported
    examples = min(sizes.examples or candidates, candidates)
    updates = math.ceil(examples / optim.batch_size) * optim.epochs
    cost = TRAINED * sizes.completions_per_example * min(optim.batch_size, examples) + evaluated
    return [
        Step("sampling", "sampling", sizes.sampled),
        Step("scoring", "scoring", candidates if sizes.scored else 0, SCORED),
        Step("training", "training", updates, cost),
    ]


def step_of_rounds(sizes: Sizes, schedule: ScheduleConfig, batch: int, evaluated: float) -> Step:
    """The work of an iteration that samples, scores and trains in turns; sizes.sampled: completions of a round."""
    assert schedule.rounds is not None
    assert schedule.updates is not None
    sampled = sizes.sampled / schedule.updates
    return Step(
        "training",
        "training",
        schedule.rounds * schedule.updates,
        (1 + SCORED) * sampled + TRAINED * batch + evaluated,
    )


def evaluated_per_update(sizes: Sizes, evaluation: EvaluationConfig) -> float:
    """Completions that evaluations in training sample, by update."""
    if evaluation.every is None:
        return 0.0
    return min(evaluation.problems or sizes.test, sizes.test) * sizes.tested / evaluation.every
