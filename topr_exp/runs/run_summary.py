"""Summary of a finished run, as summary.json and a sweep's table have it."""

from __future__ import annotations

from collections.abc import Iterator
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
    file_name = f"iteration-{config.iterations}/{SUMMARY}"
    training_set = folder.read(file_name, *REQUIRED_FIGURES)
    if not training_set:
        raise TOPRError(f"{folder.path / file_name} is missing or damaged; remove model/ to train it again")
    figure_names = (*REQUIRED_FIGURES, *OPTIONAL_FIGURES)
    training_figures = {name: training_set[name] for name in figure_names if name in training_set}
    notes = [*earlier_notes(folder, config.iterations), training_set.get("note"), *folder.lost_records()]
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
        "grader_timeouts": training_set.get("grader_timeouts", 0),
        "note": "; ".join(filter(None, notes)) or None,
        "sampler_mismatch": training_set.get("sampler_mismatch"),
        "seconds": {stage: round(seconds, 3) for stage, seconds in folder.timer.seconds.items()},
        "tokens": count_tokens(folder, config),
    }
    return distributed.broadcast(summary)


def earlier_notes(folder: RunFolder, iterations: int) -> Iterator[str]:
    """Yield the notes on the training sets of the iterations before the last."""
    for iteration in range(1, iterations):
        note = folder.read(f"iteration-{iteration}/{SUMMARY}").get("note")
        if note:
            yield f"iteration {iteration}: {note}"


def count_tokens(folder: RunFolder, config: Config) -> dict[str, int]:
    """Return the tokens that the run sampled and scored; rounds count theirs in each iteration's summary.

    Not counted are shards of a stage that was stopped: the next attempt has them from the store.
    """
    if not config.schedule.in_rounds:
        return folder.counts
    tokens_sampled = 0
    for iteration in range(1, config.iterations + 1):
        tokens_sampled += folder.read(f"iteration-{iteration}/{SUMMARY}").get("tokens_sampled", 0)
    return {**folder.counts, "tokens_sampled": tokens_sampled}
