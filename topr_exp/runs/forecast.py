"""Forecast of the time that a run still takes, from the pace of the work that it has done."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        seconds_per_cost = self._seconds_per_cost(paces)
        if seconds_per_cost is None:
            return None
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

    def _seconds_per_cost(self, paces: Mapping[Kind, Pace]) -> float | None:
        """Return the seconds of a sampled completion, or of work that costs as much; None without any unit."""
        cost = 0.0
        seconds = 0.0
        for kind, pace in paces.items():
            if kind in self.costs:
                cost += pace.units * self.costs[kind]
                seconds += pace.seconds
        if not cost:
            return None
        return seconds / cost


def seconds_per_unit(pace: Pace, default: float) -> float:
    """Return the seconds of a unit by the pace of its kind; the default where that has no units."""
    if not pace.units:
        return default
    return pace.seconds / pace.units
