"""Summary of a finished run, as summary.json and a sweep's table have it."""

from __future__ import annotations

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
    folder: RunFolder, config: Config, base: dict[str, Any], final: dict[str, Any], problems: dict[str, Any]
) -> dict[str, Any]:
    """Return the run in numbers, on every process; shares lie between 0 and 1, seconds are this run's own work.

    base, final: evaluations of the base and of the trained model. problems: numbers of those trained and tested on.
    """
    if not distributed.is_main_process():
        return distributed.broadcast(dict[str, Any]())
    name = f"iteration-{config.iterations}/{SUMMARY}"
    training_set = folder.read(name, *REQUIRED_FIGURES)
    if not training_set:
        raise TOPRError(f"{folder.path / name} is missing or damaged; remove model/ to train it again")
    figures = [*REQUIRED_FIGURES, *(figure for figure in OPTIONAL_FIGURES if figure in training_set)]
    summary = {
        "base": base,
        "final": final,
        **({} if config.checkpoint.save_model else {"model_saved": False}),
        "algo": config.algo.name,
        "data": config.data.name,
        "source": config.data.source_name,
        "model": config.model.name,
        "task": config.task.name,
        "seed": config.seed,
        "sampler_seed": config.sampler.seed,
        **{figure: training_set[figure] for figure in figures},
        **problems,
        "truncated_share": training_set.get("truncated_share"),
        "grader_timeouts": training_set.get("grader_timeouts", 0),
        "note": "; ".join(filter(None, [training_set.get("note"), *folder.lost()])) or None,
        "sampler_mismatch": training_set.get("sampler_mismatch"),
        "seconds": {stage: round(seconds, 3) for stage, seconds in folder.timer.seconds.items()},
        "tokens": count_tokens(folder, config),
    }
    return distributed.broadcast(summary)


def count_tokens(folder: RunFolder, config: Config) -> dict[str, int]:
    """Return the tokens that the run sampled and scored; rounds count theirs in each iteration's summary."""
    if not config.schedule.in_rounds:
        return folder.counts
    tokens_sampled = 0
    for iteration in range(1, config.iterations + 1):
        tokens_sampled += folder.read(f"iteration-{iteration}/{SUMMARY}").get("tokens_sampled", 0)
    return {**folder.counts, "tokens_sampled": tokens_sampled}
