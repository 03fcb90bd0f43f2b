"""Staleness policies: which waiting group an asynchronous update trains on next, and which groups are dropped."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from topr_exp.schema import Section, at_least

MaxLag = Annotated[int, at_least(0)]
Rank = float | tuple[float, ...]  # compared among themselves: all ranks of a policy have one form


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """The completions of a problem that wait to be trained on, as a policy sees them."""

    position: int  # among all that are under way or wait, in the order in which they began
    age: int  # updates since the weights that drew them, or their first tokens
    complete_at: float  # time at which the longest is complete, in updates
    table: Any  # of pyarrow, a row a completion: tokens, verdict, logp and the other columns of `Completions`

    @property
    def longest(self) -> int:
        """Tokens of the longest completion."""
        return max(map(len, self.table["tokens"].to_pylist()))


class StalenessPolicy(Section, ABC):
    """Chooses among waiting groups; a frozen dataclass whose fields are its settings.

    A policy keeps no state: a killed run asks it again.
    """

    waits: ClassVar[bool] = False  # True: an update waits for the groups that come first, also for incomplete ones

    @abstractmethod
    def rank(self, group: WaitingGroup) -> Rank:
        """Return the rank of a group: the lowest are trained on first, of equal ones the one that began first."""

    def drops(self, group: WaitingGroup) -> bool:
        """Return True for a complete group that is never to be trained on."""
        return False

    def room(self, prompts: int, concurrency: int) -> int:
        """Return how many groups may be under way or wait at once; sampling pauses while there are as many.

        prompts: groups of an update; concurrency: groups that may be under way. By default as many may wait, or those
        of one update.
        """
        return concurrency + max(concurrency, prompts)


@dataclass(frozen=True)
class Keep(StalenessPolicy):
    """Train on groups as they are complete, however old."""

    def rank(self, group: WaitingGroup) -> Rank:
        return group.complete_at


@dataclass(frozen=True)
class Drop(Keep):
    """Train on groups as they are complete, none older than `max_lag`."""

    max_lag: MaxLag

    def drops(self, group: WaitingGroup) -> bool:
        return group.age > self.max_lag


@dataclass(frozen=True)
class Wait(StalenessPolicy):
    """Train on groups in the order in which they began, so few at once that none gets older than `max_lag`."""

    max_lag: MaxLag
    waits: ClassVar[bool] = True

    def rank(self, group: WaitingGroup) -> Rank:
        return group.position

    def room(self, prompts: int, concurrency: int) -> int:
        return prompts * (self.max_lag + 1)


@dataclass(frozen=True)
class FreshestFirst(Drop):
    """Train on the youngest complete groups, none older than `max_lag`."""

    def rank(self, group: WaitingGroup) -> Rank:
        return group.age, group.complete_at
