"""Training data of an iteration: its rows, a summary, and the store's tables that hold the completions."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.selection import no_positives
from topr_exp.grading.verdicts import grader_timeouts
from topr_exp.runs.records import Record, samples_of
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import disk_errors, open_regular, write_bytes
from topr_exp.runtime.json_files import write_json
from topr_exp.runtime.terminal import warn
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.composition.training_set import TrainingSet
    from topr_exp.sampling.completions import Completions

EXAMPLES = "examples.npy"  # rows that are trained on
IMPORTED = "imported.npy"  # rows of a log that were read
SOURCES = "sources.json"
SUMMARY = "training_set.json"
MEANS = ("positive_share", "mean_reward")
COUNTS_OF_ROUND = ("grader_timeouts", "problems_drawn", "problems_kept")
IDLE_TIMES = ("trainer_idle", "sampler_idle")  # units of virtual time, per update
RUNNING_FIGURES = ("virtual_time", "dropped_share")  # beginnings of names; the last update has their final values


@main_process_only
def save_training_set(
    folder: Path,
    training_set: TrainingSet,
    sources: Sequence[Completions],
    *,
    store: Path,
    mismatch: dict[str, Any] | None,
) -> None:
    """Save the training set of an offline iteration into its folder.

    sources: sampled completions, imported ones, or both in this order. mismatch: of μ and the sampler.
    """
    tables: dict[str, Any] = {"store": str(store)}
    for prefix, source in zip(("", "imported_"), sources, strict=False):  # imported ones alone have no prefix
        assert source.stored is not None, "offline, completions lie in the store"
        tables[f"{prefix}rollouts"] = source.stored.rollouts
        tables[f"{prefix}verdicts"] = source.stored.verdicts
    summary = {
        **training_set.summary(),
        "sampler": sources[0].made_by,
        "grader_timeouts": sum(grader_timeouts(source) for source in sources),
    }
    if mismatch is not None:
        summary["sampler_mismatch"] = mismatch
    with disk_errors(f"write in {folder}"):
        folder.mkdir(exist_ok=True)
        write_row_numbers(folder / EXAMPLES, training_set.examples)
        last_source = sources[-1]
        if last_source.has("row"):  # it is imported
            write_row_numbers(folder / IMPORTED, last_source.table["row"].to_numpy())
    write_json(folder / SOURCES, tables)
    write_json(folder / SUMMARY, summary)


@main_process_only
def save_empty_set(folder: Path, note: str, **counts: int) -> None:
    """Save the summary of an iteration that made no update into its folder; note: why. counts: more of its figures."""
    folder.mkdir(exist_ok=True)
    write_json(folder / SUMMARY, {"n_train": 0, "note": note, **counts})


@main_process_only
def warn_of_other_sources(folder: Path, earlier_sources: Mapping[str, str], *, updates: int) -> None:
    """Warn where updates of an earlier attempt were made on other tables of completions or verdicts than now."""
    sources, _ = read_run_file(folder / SOURCES)
    changes = []
    for name, table in earlier_sources.items():
        if name != "store" and sources.get(name) != table:
            changes.append(f"{table} (now {sources.get(name)})")
    if updates and changes:
        warn(
            f"{folder}: updates 1 to {updates} were made on {', '.join(changes)}: prompts, grader or program have "
            "changed since; overwrite=true begins the run again"
        )


def write_row_numbers(path: Path, rows: NDArray[np.integer]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, rows)
    write_bytes(path, buffer.getvalue())


def read_row_numbers(path: Path) -> NDArray[np.integer]:
    """Read numbers of rows; TOPRError for a file that can't be read."""
    try:
        with open_regular(path) as file:
            rows: NDArray[np.integer] = np.load(file)
        return rows
    except (OSError, EOFError, ValueError, MemoryError) as error:  # MemoryError: a damaged header has a huge shape
        raise TOPRError(f"{path} can't be read ({' '.join(str(error).split())})") from None


# ---- rounds


@main_process_only
def save_rounds(
    folder: Path,
    records: list[Record],
    *,
    n_train: int,
    tokens_sampled: int,
    baseline: float,
    mismatch: Any,
    note: str | None = None,
) -> None:
    """Save a summary of the training data of an iteration with rounds into its folder.

    records: of its updates. n_train: completions trained on. tokens_sampled: by all attempts. mismatch: settings of the
    sampler's deliberate one. note: on how training ended.
    """
    summary = {
        **mean_over_samples(records),
        **sum_over_rounds(records),
        "n_train": n_train,
        "baseline": baseline,
        "effective_positive": None,
    }
    notes = [no_positives(summary["positive_share"], n_train), note]
    summary["note"] = "; ".join(filter(None, notes)) or None
    summary["tokens_sampled"] = tokens_sampled
    records_of_draws = [record for record in records if record.get("sampled_truncated") is not None]
    summary["truncated_share"] = None
    if records_of_draws:
        record_by_round = {record["round"]: record for record in records_of_draws}
        summary["truncated_share"] = mean_over_draws([*record_by_round.values()], "sampled_truncated")
    if "age" in records[-1]:
        summary["asynchrony"] = summarize_asynchrony(records)
    if "sampler_kl_token" in records[0]:
        summary["sampler_mismatch"] = {
            "put_in": mismatch,
            "kl_token": mean_over_draws(records_of_draws, "sampler_kl_token", by_token=True),
            "kl_answer": mean_over_draws(records_of_draws, "sampler_kl_answer"),
        }
    folder.mkdir(exist_ok=True)
    write_json(folder / SUMMARY, summary)


def mean_over_samples(records: list[Record]) -> dict[str, Any]:
    """Average figures over all samples."""
    means = {}
    for name in MEANS:
        if name in records[0]:
            means[name] = mean_of(records, name, update_sizes(records))
    return means


def update_sizes(records: list[Record]) -> NDArray[np.integer]:
    """Return the samples of each update; `samples` counts those of all before it, too."""
    return np.diff([0, *map(samples_of, records)])


def sum_over_rounds(records: list[Record]) -> dict[str, int]:
    """Sum counts over the rounds; "grader_timeouts" is there even where no round had any."""
    totals = {}
    for name in COUNTS_OF_ROUND:
        if name == "grader_timeouts" or all(name in record for record in records):
            totals[name] = int(sum(values_by_round(records, name).values()))
    return totals


def values_by_round(records: list[Record], name: str) -> dict[int, Any]:
    """Return a figure by round: each update of a round has the same one."""
    return {record["round"]: record[name] for record in records if record.get(name) is not None}


def summarize_asynchrony(records: list[Record]) -> dict[str, float]:
    """Return the mean age of completions, the idle times, and the final values of running figures."""
    last_record = records[-1]
    figures: dict[str, float] = {"age": mean_of(records, "age", update_sizes(records))}
    for name in IDLE_TIMES:
        if name in last_record:
            figures[name] = sum(record[name] for record in records)
    for name, value in last_record.items():
        if name.startswith(RUNNING_FIGURES):
            figures[name] = value
    return figures


def mean_over_draws(records: list[Record], name: str, *, by_token: bool = False) -> float:
    """Average a figure over the completions that were drawn before each update, or over their tokens.

    Before the first update of a lagged run, many times as many are drawn as before a later one. Without
    `problems_drawn` each round draws as many.
    """
    weights = np.ones(len(records))
    if all("problems_drawn" in record for record in records):
        weights = np.array([record["problems_drawn"] for record in records])
    if by_token:
        weights = weights * [record["sampled_length"] for record in records]
    return mean_of(records, name, weights)


def mean_of(records: list[Record], name: str, weights: NDArray[np.number]) -> float:
    return float(np.average([record[name] for record in records], weights=weights))
