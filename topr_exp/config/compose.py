"""Settings of the training set (the `compose` group)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from topr_exp.config.section import Count, CountOrAll, Section, within

MAX_DRAWS = 10
Unit = Literal["examples", "pairs", "groups"]  # what an algorithm trains on, and `n_examples` counts


class ComposeName(Enum):
    uniform = "uniform"
    positives = "positives"
    proportion = "proportion"
    anna_karenina = "anna_karenina"


class Duplicates(Enum):
    """Treatment of a problem's completions with the same tokens: keep all, or only the first."""

    keep = "keep"
    drop = "drop"


@dataclass(frozen=True, kw_only=True)
class ComposeConfig(Section):
    """Which of the sampled completions are trained on."""

    name: ComposeName = ComposeName.uniform
    n_examples: CountOrAll = None  # N: completions (for DPO pairs) of the set; null takes all there are
    positive_share: float | None = None  # p, exact; for proportion only
    pairs_per_problem: Count  # for DPO: at most this many pairs of a problem
    drop_truncated: bool = False  # leave out completions that the token limit cut off
    pass_rate: list[float] | None = None  # [low, high]: problems of which such a share of all completions is correct
    duplicates: Duplicates = Duplicates.keep
    mix: Annotated[float | None, within("(0, 1)")] = None  # share of imported completions, the others are sampled
    max_draws: Count = MAX_DRAWS  # with pass_rate: draw schedule.prompts problems at most so often to fill a round

    def check(self) -> None:
        if self.mix is not None and self.name not in (ComposeName.uniform, ComposeName.positives):
            raise ValueError(f"mix={self.mix:g} goes with compose=uniform or positives; got {self.name.name}")
        if self.pass_rate is not None:
            low, high = self.pass_rate if len(self.pass_rate) == 2 else (1.0, 0.0)
            if not 0 <= low <= high <= 1:
                raise ValueError(f"pass_rate must be [low, high] with 0 <= low <= high <= 1; got {self.pass_rate}")
        if self.positive_share is not None and not 0 < self.positive_share < 1:
            raise ValueError(f"positive_share must be in (0, 1); got {self.positive_share:g}")
        if self.name is ComposeName.proportion and self.positive_share is None:
            raise ValueError("positive_share must be in (0, 1) for compose=proportion; got null")

    def left_out(self) -> Iterator[tuple[str, object]]:
        """The settings that leave out single completions."""
        if self.drop_truncated:
            yield "drop_truncated", True
        if self.duplicates is Duplicates.drop:
            yield "duplicates", "drop"


def unit_of(needs: frozenset[str]) -> Unit:
    """Unit that an algorithm with these needs trains on."""
    return "pairs" if "pairs" in needs else "groups" if "groups" in needs else "examples"
