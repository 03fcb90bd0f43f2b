"""A run for people to read: its first prompt, its settings, a table of results at the end, the card of its model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.sampler_choice import why_not_vllm
from topr_exp.config.settings import Config
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.runtime.distributed import visible_gpus
from topr_exp.runtime.machine import slow_precision
from topr_exp.schema import identity, plain
from topr_exp.types import VERDICTS
from topr_exp.verifier.figures import cell, run_table

if TYPE_CHECKING:
    from topr_exp.data.problems import ProblemSets, SplitReport
    from topr_exp.models.policy import Policy
    from topr_exp.runs.tasks import TrainedOn


REWARDS = {"pm1": "1 and -1", "zero_one": "1 and 0", "graded": "as graded", "given": "as the log has them"}


def header(
    config: Config,
    policy: Policy,
    sets: ProblemSets,
    train: TokenizedProblems,
    test: TokenizedProblems,
    trained_on: TrainedOn,
    log_report: Mapping[str, str],
) -> str:
    """Format the settings that decide the result, a row a group; log_report: rows on imported completions."""
    data, model, algo, schedule = config.data, config.model, config.algo, config.schedule
    weighting = {"baseline": config.baseline, "effective_positive": config.effective_positive}
    shown = "".join(f", {key}={value:g}" for key, value in weighting.items() if value is not None)
    split = " of the training split" if data.test_split == "validation" else ""
    tested = f"{len(test.problems)} {config.task.question_kind}{data.described}{split}"
    size = f"{policy.model.num_parameters() / 1e6:,.2f} M parameters"
    rows = {
        "algorithm": f"{algo.name} ({settings_of(algo)}){shown}, rewards {REWARDS[config.reward]}",
        "task": described(config.task, "task.") if config.task.verifies else "",
        "trained on": trained_on.text + left_out(sets.train_report, train),
        "tested on": tested + left_out(sets.test_report, test),
        "model": f"{model.name}{f' ({model.path})' * (model.path != model.name)}, {size}, {policy.device_description}"
        + (f", lora ({settings_of(model.lora)})" if model.lora is not None else ""),
        "settings": f"of {model.settings_of}" if model.settings_of is not None else "",
        "precision": slow_precision(policy.device.type, policy.precision),
        "sampling": f"{described(config.sampler, 'sampler.')}{slow_sampler(config)}; "
        f"n={data.n} to train, eval_n={data.eval_n} to evaluate",
        "examples": described(config.compose, "compose."),
        "completions": data.completions or "",
        "log μ": {"sampler": "what the sampler drew with", "none": "none"}.get(config.mu, ""),
        **log_report,
        "training": described(config.optim, "optim."),
        "rounds": settings_of(schedule) if schedule.in_rounds else "",
        "iterations": str(config.iterations) if config.iterations > 1 else "",
        "seed": str(config.seed),
        "folder": str(config.folder),
        "GPUs": idle_gpus(config.cluster.world_size) if policy.device.type == "cuda" else "",
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items() if text)


def slow_sampler(config: Config) -> str:
    """Say why a large model is not sampled by vLLM; "" where it is, and where it could be."""
    reason = why_not_vllm() if config.sampler.name == "hf" and config.model.size == "large" else None
    return f", many times slower than vllm: {reason}" if reason is not None else ""


def idle_gpus(taken: int) -> str:
    """What to set where a run sees more GPUs than it takes; "" where it takes all."""
    seen = len(visible_gpus())
    if seen <= taken:
        return ""
    return (
        f"{taken} of {seen} are used: cluster.processes={seen} divides this run over all (docs/parallel.md), "
        f"cluster.jobs={seen} starts as many runs of a sweep at once"
    )


def described(group: Any, prefix: str) -> str:
    """The name of a group's choice with the settings that decide a result and are not neutral."""
    settings = settings_of(group, prefix)
    return str(plain(group.name)) + (f" ({settings})" if settings else "")


def settings_of(group: Any, prefix: str = "") -> str:
    decides = identity(group, prefix)
    return ", ".join(f"{key}={value}" for key, value in decides.items() if key not in ("name", "_target_"))


def left_out(report: SplitReport, questions: TokenizedProblems) -> str:
    """Count what was left out of a split."""
    reasons = {
        "no answer can be read": report.unparsable,
        "the question is in test": report.overlapping,
        "the prompt is too long": questions.too_long,
    }
    return "".join(f", {count} left out: {reason}" for reason, count in reasons.items() if count)


def results(summary: dict[str, Any], folder: Path) -> str:
    """What is printed at the end: base against trained, seconds a stage, the files, what to do next."""
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in summary["seconds"].items())
    run, beside = shlex.quote(str(folder)), shlex.quote(str(folder.parent))
    total = sum(summary["seconds"].values())
    files, evaluate = "model/", f"\n      python -m topr_exp.evaluate model={run} data.eval_n=64"
    if summary.get("model_saved") is False:
        files, evaluate = "no model: checkpoint.save_model=false", ""
    return (
        f"{results_table(summary)}\nseconds: {seconds} (total {total:.1f})\n"
        f"files: {folder}/ (summary.json, metrics.jsonl, eval.jsonl, {files})\n"
        f"next: python -m topr_exp.report {run}\n"
        f"      python -m topr_exp.compare {beside}{evaluate}"
    )


def results_table(summary: dict[str, Any]) -> str:
    """Base against trained, and what to know of the numbers."""
    base, final = summary["base"], summary["final"]
    trained = f"{summary['n_train']} training examples, {100 * summary['positive_share']:.1f} % positive, "
    if truncated := summary.get("truncated_share"):
        trained += f"{100 * truncated:.1f} % of those sampled cut off, "
    trained += f"baseline {summary['baseline']:g}"
    if "verifier" in base:
        lines = [*run_table(base["verifier"], final["verifier"]), trained]
        if any(cut_off_of(figures) for figures in (base, final)):
            shares = (f"{name} {cut_off_cell(figures)} %" for name, figures in (("base", base), ("trained", final)))
            lines.append(f"cut off by the token limit: {', '.join(shares)}")
    else:
        lines = solved(base, final)
        lines.append(f"[ ]: 95 % over {base['problems']} problems; {trained}")
    if summary.get("note"):
        lines.append(f"note: {summary['note']}")
    if timeouts := sum(each.get("grader_timeouts", 0) for each in (base, summary, final)):
        lines.append(f"note: the grader was cut off twice on {timeouts} completions, which count as incorrect")
    return "\n".join(lines)


def solved(base: dict[str, Any], final: dict[str, Any]) -> list[str]:
    """The table of a model that answers the problems; with the share cut off by the token limit where there is one."""
    # One, or none where the grader does not say what incorrect completions answer.
    majorities = [name for name in base if name.startswith("maj@") and not name.endswith("k")]
    columns = ("pass@1", *majorities, *VERDICTS)
    graded = ["mean reward"] if "mean_reward" in base else []
    truncated = ["cut off"] if any(cut_off_of(figures) for figures in (base, final)) else []
    lines = [f"{'%':<9}{'pass@1':>20}" + "".join(f"{title:>13}" for title in (*columns[1:], *truncated, *graded))]
    for name, figures in (("base", base), ("trained", final)):
        cells = [f"{100 * figures[key]:.1f}" for key in columns[1:]]
        cells += [cut_off_cell(figures) for _ in truncated]
        cells += [f"{figures['mean_reward']:.3g}" for _ in graded]
        lines.append(f"{name:<9}{cell(figures['pass@k']['1']):>20}" + "".join(f"{each:>13}" for each in cells))
    return lines


def cut_off_of(figures: Mapping[str, Any]) -> float | None:
    """The share of an evaluation's completions that the token limit cut off; None where an older run has none."""
    share: float | None = figures.get("truncated_share")
    return share


def cut_off_cell(figures: Mapping[str, Any]) -> str:
    share = cut_off_of(figures)
    return "–" if share is None else f"{100 * share:.1f}"
