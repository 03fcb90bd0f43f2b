"""Summary of a finished run, as summary.json and a sweep's table have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from topr_exp.runs.training_data import SUMMARY
from topr_exp.runtime import distributed
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.runs.folder import RunFolder

REQUIRED_FIGURES = ("baseline", "effective_positive", "positive_share", "n_train")
OPTIONAL_FIGURES = ("mean_reward", "asynchrony")


def summarize_run(
    folder: RunFolder,
    config: Config,
    base_figures: dict[str, Any],
    final_figures: dict[str, Any],
    problem_figures: dict[str, Any],
) -> dict[str, Any]:
    """Return the run in numbers, on every process; shares lie between 0 and 1, seconds are this run's own work.

    base_figures, final_figures: evaluations of the base and of the trained model. problem_figures: numbers of the
    problems trained and tested on.
    """
    if not distributed.is_main_process():
        return distributed.broadcast(dict[str, Any]())  # receives the main process's
    training_sets = [folder.read(f"iteration-{iteration}/{SUMMARY}") for iteration in range(1, config.iterations + 1)]
    last_iteration = config.iterations
    while last_iteration > 1 and training_sets[last_iteration - 1].get("n_train") == 0:  # it made no update
        last_iteration -= 1
    file_name = f"iteration-{last_iteration}/{SUMMARY}"
    training_set = training_sets[last_iteration - 1]
    if not training_set.keys() >= {*REQUIRED_FIGURES}:
        raise TOPRError(f"{folder.path / file_name} is missing or damaged; remove model/ to train it again")
    figure_names = (*REQUIRED_FIGURES, *OPTIONAL_FIGURES)
    training_figures = {name: training_set[name] for name in figure_names if name in training_set}
    notes = [*notes_of_iterations(training_sets, last_iteration), *folder.lost_records()]
    summary: dict[str, Any] = {"base": base_figures, "final": final_figures}
    if config.checkpoint.weights == "none":
        summary["model_saved"] = False
    summary |= {
        "algo": config.algo.name,
        "data": config.data.name,
        "source": config.data.source_name,
        "model": config.model.name,
        "task": config.task.name,
        "seed": config.seed,
        "sampler_seed": config.sampler.seed,
        **training_figures,
        **problem_figures,
        "truncated_share": training_set.get("truncated_share"),
        "grader_timeouts": add_up(training_sets, "grader_timeouts"),
        "note": "; ".join(notes) or None,
        "sampler_mismatch": training_set.get("sampler_mismatch"),
        "seconds": {stage: round(seconds, 3) for stage, seconds in folder.timer.seconds.items()},
        "tokens": count_tokens(folder, config, training_sets),
    }
    return distributed.broadcast(summary)


def notes_of_iterations(training_sets: Sequence[dict[str, Any]], last_iteration: int) -> Iterator[str]:
    """Yield the notes on the training set of each iteration; all but those of the last that trained name theirs."""
    for iteration, training_set in enumerate(training_sets, start=1):
        note = training_set.get("note")
        if note and iteration != last_iteration:
            note = f"iteration {iteration}: {note}"
        if note:
            yield note


def count_tokens(folder: RunFolder, config: Config, training_sets: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the tokens that the run sampled and scored; rounds count theirs in each iteration's summary.

    Not counted are shards of a stage that was stopped: the next attempt has them from the store.
    """
    if not config.schedule.in_rounds:
        return folder.counts
    return {**folder.counts, "tokens_sampled": add_up(training_sets, "tokens_sampled")}


def add_up(training_sets: Sequence[dict[str, Any]], name: str) -> int:
    """Sum a count over the iterations."""
    return sum(training_set.get(name, 0) for training_set in training_sets)
