"""Forecast of the time that a run still takes, from the pace of the work that it has done."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from topr_exp.config.groups import EvaluationConfig, OptimConfig, ScheduleConfig
from topr_exp.runtime.progress import Kind, Progress

# Cost of a completion, in completions that are sampled, before its kind of work has a pace.
SCORING_COST = 0.5
TRAINING_COST = 2.0


@dataclass(frozen=True)
class PlannedWork:
    """Work of a stage that is to come."""

    stage: str
    kind: Kind
    units: int  # completions; of training, updates
    cost: float = 1.0  # of a unit, in completions that are sampled


@dataclass(frozen=True)
class Pace:
    """Units of a kind of work, and the seconds that they took."""

    units: float = 0.0
    seconds: float = 0.0

    def plus(self, progress: Progress) -> "Pace":
        """Add the units of `progress`, unless the store had them all."""
        if progress.done == progress.done_before:
            return self
        return Pace(self.units + progress.units_made, self.seconds + progress.seconds)


class Forecast:
    """Estimate of a run's time left, whose stages come in the order of `plan`.

    A kind of work without a pace is estimated by its cost from those that have one; grading is left out. Work that the
    store holds already takes less time, which shows when its stage begins.
    """

    def __init__(self, plan: Sequence[PlannedWork]) -> None:
        self.remaining_work = list(plan)
        self.costs = {work.kind: work.cost for work in plan}
        self.paces: defaultdict[Kind, Pace] = defaultdict(Pace)  # of complete work

    def enter(self, stage: str) -> None:
        """Drop the work up to and including the first of a stage that begins."""
        stages = [work.stage for work in self.remaining_work]
        if stage in stages:
            del self.remaining_work[: stages.index(stage) + 1]

    def complete(self, progress: Progress) -> None:
        """Add complete work to the pace of its kind."""
        self.paces[progress.kind] = self.paces[progress.kind].plus(progress)

    def seconds_left(self, under_way: Sequence[Progress]) -> float | None:
        """Return the seconds until the run ends; None before any unit of its work is done."""
        paces = self.paces.copy()
        for progress in under_way:
            paces[progress.kind] = paces[progress.kind].plus(progress)
        cost = 0.0
        seconds = 0.0
        for kind, pace in paces.items():
            if kind in self.costs:
                cost += pace.units * self.costs[kind]
                seconds += pace.seconds
        if not cost:
            return None
        seconds_per_cost = seconds / cost  # of a sampled completion, or work that costs as much

        total = 0.0
        for work in self.remaining_work:
            total += work.units * seconds_per_unit(paces[work.kind], work.cost * seconds_per_cost)
        for progress in under_way:
            progress_seconds = progress.seconds_left()
            if progress_seconds is None:
                cost_of_unit = self.costs.get(progress.kind, 0.0)
                units = progress.total - progress.done
                progress_seconds = units * seconds_per_unit(paces[progress.kind], cost_of_unit * seconds_per_cost)
            total += progress_seconds
        return total


def seconds_per_unit(pace: Pace, default: float) -> float:
    """Return the seconds of a unit by the pace of its kind; the default where that has no units."""
    if not pace.units:
        return default
    return pace.seconds / pace.units


@dataclass(frozen=True)
class Sizes:
    """Numbers that decide how much work a run is."""

    sampled_completions: int  # of an iteration; of a round, with rounds
    imported_completions: int
    examples: int | None  # of a training set; None: all completions
    completions_per_example: int
    scores_mu: bool  # log μ of all completions is computed
    test_problems: int
    completions_per_test: int  # of each test problem


def planned_work(
    sizes: Sizes, schedule: ScheduleConfig, optim: OptimConfig, evaluation: EvaluationConfig, iterations: int
) -> list[PlannedWork]:
    """Return the foreseeable work of a run: an evaluation of the base model, then each iteration."""
    evaluation_work = PlannedWork("evaluation", "sampling", sizes.test_problems * sizes.completions_per_test)
    evaluation_cost = evaluation_cost_per_update(sizes, evaluation)
    if schedule.in_rounds:
        training_work = [work_of_rounds(sizes, schedule, optim.batch_size, evaluation_cost)]
    else:
        training_work = offline_work(sizes, optim, evaluation_cost)
    work_of_iteration = [*training_work, evaluation_work]
    return [evaluation_work, *work_of_iteration * iterations]


def offline_work(sizes: Sizes, optim: OptimConfig, evaluation_cost: float) -> list[PlannedWork]:
    """Return the work of an iteration on a fixed set; evaluation_cost: of evaluations during training, per update."""
    candidates = sizes.sampled_completions + sizes.imported_completions
    examples = min(sizes.examples or candidates, candidates)
    updates = math.ceil(examples / optim.batch_size) * optim.epochs
    scored_completions = candidates if sizes.scores_mu else 0
    cost = TRAINING_COST * sizes.completions_per_example * min(optim.batch_size, examples) + evaluation_cost
    return [
        PlannedWork("sampling", "sampling", sizes.sampled_completions),
        PlannedWork("scoring", "scoring", scored_completions, SCORING_COST),
        PlannedWork("training", "training", updates, cost),
    ]


def work_of_rounds(sizes: Sizes, schedule: ScheduleConfig, batch_size: int, evaluation_cost: float) -> PlannedWork:
    """Return the work of an iteration that samples, scores and trains in turns."""
    assert schedule.rounds is not None
    assert schedule.updates is not None
    sampled_per_update = sizes.sampled_completions / schedule.updates
    cost = (1 + SCORING_COST) * sampled_per_update + TRAINING_COST * batch_size + evaluation_cost
    return PlannedWork("training", "training", schedule.rounds * schedule.updates, cost)


def evaluation_cost_per_update(sizes: Sizes, evaluation: EvaluationConfig) -> float:
    """Return the cost of evaluations during training, per update: the completions that they sample."""
    if evaluation.every is None:
        return 0.0
    problem_count = min(evaluation.problems or sizes.test_problems, sizes.test_problems)
    return problem_count * sizes.completions_per_test / evaluation.every
