"""What the registry knows of a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.claims import Claim
from topr_exp.report.selection import Runs
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Extra = dict[str, Any]  # numbers of a figure that no run's record holds


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, or a question beyond them."""

    name: str  # of its files, and the command's word for it
    title: str
    claim: str  # the paper's, in a sentence of ours; for a question beyond the papers: the question
    experiments: tuple[str, ...]  # whose runs it is made of
    draw: Callable[[Runs, Extra], Drawing]
    judge: Callable[[Runs, Extra], list[Claim]]  # for one model
    table: Callable[[Runs], Mapping[str, Runs]]  # rows of numbers, for one model
    wider: tuple[str, ...] = ("seed=0,1,2,3,4", "model=tiny,tiny_noise")  # added to them in the full version
    only_full: bool = False
    own_model: bool = False  # its experiments name their models: model=NAME is not for it
    extra: Callable[[Sequence[tuple[Record, Path]]], Extra] | None = None  # computed from finished runs
    metrics: tuple[str, ...] = ()  # of the updates, by records.METRICS, that it needs
    own_table: Callable[[Runs, Extra], list[str]] | None = None  # in Markdown, for one model, beside that of numbers
    note: str = ""  # what a reader must know of how it was made
    names: tuple[str, ...] = field(default=("pass@1", "maj", "invalid"))  # columns of the table


def of_model(runs: Runs, extra: Mapping[str, Any]) -> list[Any]:
    """What extra numbers by "MODEL SEED" say of each model and seed of these runs."""
    keys = dict.fromkeys(f"{each['settings']['model.name']} {each['settings']['seed']}" for each in runs)
    return [extra[key] for key in keys if key in extra]
