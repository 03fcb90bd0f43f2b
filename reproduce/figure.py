"""A figure: whose runs it is made of, how these are grouped and named, drawn and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.claims import Claim
from topr_exp.report.selection import Level, Runs, group_by
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Extra = dict[str, Any]  # numbers of a figure that no run's record holds
NAMES = {
    "topr": "TOPR", "tis": "TIS", "is": "IS", "naive": "naive REINFORCE", "sft": "positives only", "ppo": "PPO",
    "dpo": "DPO", "agro": "AGRO", "kl_pg": "KL-PG", "rloo": "RLOO", "agro_on_policy": "AGRO on-policy",
    "grpo": "GRPO", "opmd": "OPMD", "asymre": "AsymRE", "rec": "REC", "gspo": "GSPO", "cispo": "CISPO",
    "vespo": "VESPO", "m2po": "M2PO", "sapo": "SAPO", "oapl": "OAPL", "base": "base",
    "gsm8k": "GSM8K-like", "math": "MATH-like", "uniform": "uniform", "positives": "TOPR on positives",
    "anna_karenina": "Anna Karenina", "weight_neg": "weight of negatives", "grad_norm": "gradient norm",
}  # fmt: skip
ORDER = ("topr", "naive", "ppo", "dpo", "sft", "tis", "is")  # the papers' algorithms come first


def name_of(key: Any) -> str:
    return NAMES.get(str(key), str(key))


def algorithms(runs: Runs) -> dict[str, Runs]:
    """Group the runs by algorithm, the paper's first and in its order."""
    found = runs.split("algo.name")
    order = [*ORDER, *found]
    return {name: found[name] for name in sorted(found, key=order.index)}


def by_model(runs: Runs) -> dict[str, Runs]:
    return runs.split("model.name")


BY_ALGORITHM: Level = (algorithms, name_of)


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, or a question beyond them."""

    name: str  # of its files, and the command's word for it
    title: str
    claim: str  # the paper's, in our sentence; for a question beyond the papers: the question
    experiments: tuple[str, ...]  # whose runs it is made of
    draw: Callable[[Runs, Extra], Drawing]
    judge: Callable[[Runs, Extra], list[Claim]]  # for one model
    levels: tuple[Level, ...] = (BY_ALGORITHM,)  # the table's rows are these groups
    wider: tuple[str, ...] = ("seed=0,1,2,3,4", "model=tiny,tiny_noise")  # added to them in the full version
    only_full: bool = False
    own_model: bool = False  # its experiments name their models: model=NAME is not for it
    extra: Callable[[Sequence[tuple[Record, Path]]], Extra] | None = None  # computed from finished runs
    metrics: tuple[str, ...] = ()  # of the updates, by records.METRICS, that it needs
    own_table: Callable[[Runs, Extra], list[str]] | None = None  # in Markdown, for one model, beside that of numbers
    note: str = ""  # what a reader must know of how it was made
    names: tuple[str, ...] = ("pass@1", "maj", "invalid")  # columns of the table

    def table(self, runs: Runs) -> dict[str, Runs]:
        """Group one model's runs as the rows of the table of numbers."""
        return group_by(runs, *self.levels)


def of_model(runs: Runs, extra: Mapping[str, Any]) -> list[Any]:
    """Return what extra numbers by "MODEL SEED" say of each model and seed of these runs."""
    keys = dict.fromkeys(f"{each['settings']['model.name']} {each['settings']['seed']}" for each in runs)
    return [extra[key] for key in keys if key in extra]
