"""A figure: what runs, what is drawn, what is claimed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.claims import Claim, Extra, Judge, holm
from reproduce.groups import Split, algorithms, models
from reproduce.records import identity_text
from reproduce.selection import Record, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

ALL_SEEDS = "seed=0,1,2,3,4"  # of the full version; three where cost forbids five
BOTH_BASES = "model=tiny,tiny_noise"
RATIO_QUANTILES = (
    "log_ratio_q05_pos",
    "log_ratio_q05_neg",
    "log_ratio_q50_pos",
    "log_ratio_q50_neg",
    "log_ratio_q95_pos",
    "log_ratio_q95_neg",
)

FinishedRuns = Sequence[tuple[Record, Path]]  # with their folders


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure or table of a paper, or a question beyond them."""

    name: str  # of its files, and the command's word for it
    title: str
    claim: str  # the paper's, in our sentence; for a question beyond the papers: the question
    experiments: tuple[str, ...]  # words of the sweeps that it is made of: experiment=NAME KEY=VALUE ...
    draw: Callable[[Runs, Extra], Drawing]
    judge: Judge  # the claims about one model
    levels: tuple[Split, ...] = (algorithms,)  # the table's rows are these groups
    full_words: tuple[str, ...] = (ALL_SEEDS, BOTH_BASES)  # added to the sweeps in the full version
    metrics: tuple[str, ...] = ()  # of the updates that records hold; length: of the completions too
    columns: tuple[str, ...] = ("pass@1", "maj", "invalid")  # of the table
    note: str = ""  # for readers: how it was made
    only_full: bool = False
    names_models: bool = False  # its experiments name their models: model=NAME is not for it
    compute_extra: Callable[[FinishedRuns], Extra] | None = None  # numbers that no record holds
    table: Callable[[Runs, Extra], list[str]] | None = None  # in Markdown, for one model, beside that of numbers

    def decide(self, runs: Runs, extra: Extra) -> dict[str, list[Claim]]:
        """Decide the claims by model, with Holm's correction over all of them."""
        claims_of_model = {}
        for model, group in models(runs).items():
            claims_of_model[model] = self.judge(group, extra)
        all_claims = itertools.chain.from_iterable(claims_of_model.values())
        corrected = iter(holm(list(all_claims)))
        for model, claims in claims_of_model.items():
            claims_of_model[model] = [next(corrected) for _ in claims]
        return claims_of_model


# ---- numbers beside records, by run or by model and seed


def key_of(record: Record) -> str:
    """A run's key in its figure's extra numbers."""
    return identity_text(record["settings"])


def model_and_seed(record: Record) -> str:
    """The key of extra numbers of a model and seed."""
    settings = record["settings"]
    return f"{settings['model.name']} {settings['seed']}"


def numbers_of_seeds(runs: Runs, extra: Extra, suffix: str = "") -> list[Any]:
    """The extra numbers of each model and seed of some runs, in order; suffix: of their keys."""
    numbers = {}
    for record in runs:
        key = model_and_seed(record) + suffix
        if key in extra:
            numbers[key] = extra[key]
    return list(numbers.values())
