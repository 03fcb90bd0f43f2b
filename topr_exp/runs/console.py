"""Header and results of a run as text: its settings, and the base model against the trained one."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import GRADERS, SOURCES
from topr_exp.config.sampler_choice import why_not_vllm
from topr_exp.config.settings import Config
from topr_exp.config.yamls import OwnFolder
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.runs.provenance import COMMAND_LINE_KEYS
from topr_exp.runtime.distributed import visible_gpus
from topr_exp.runtime.json_files import DAMAGE
from topr_exp.runtime.machine import describe_slow_precision
from topr_exp.schema import class_path, drop_keys, flatten, identity, show
from topr_exp.types import VERDICTS
from topr_exp.verifier.figures import cell, run_table

if TYPE_CHECKING:
    from topr_exp.data.problems import ProblemSets, SplitReport
    from topr_exp.models.policy import Policy

REWARD_WORDS = {"pm1": "1 and -1", "zero_one": "1 and 0", "graded": "as graded", "given": "as the log has them"}
MU_WORDS = {"sampler": "what the sampler drew with", "none": "none"}
SLOW_SIZE = 50_000_000  # weights from which vLLM samples many times faster


# ---- header


def format_header(
    config: Config,
    policy: Policy,
    sets: ProblemSets,
    train: TokenizedProblems,
    test: TokenizedProblems,
    trained_on: str,
    log_report: Mapping[str, str],
) -> str:
    """Format the settings that decide the result, a row per group, without the rows that have no text.

    trained_on: numbers of problems, in words. log_report: rows on imported completions.
    """
    data = config.data
    schedule = config.schedule
    task = describe_group(config.task, "task.") if config.task.verifies else ""
    sampling = f"{describe_group(config.sampler, 'sampler.')}{slow_sampler(config, policy)}"
    rounds = list_settings(schedule) if schedule.in_rounds else ""
    iterations = str(config.iterations) if config.iterations > 1 else ""
    gpus = idle_gpus(config.cluster.world_size) if policy.device.type == "cuda" else ""
    rows = {
        "algorithm": describe_algorithm(config),
        "task": task,
        "trained on": trained_on + count_left_out(sets.train_report, train),
        "tested on": describe_test(config, test) + count_left_out(sets.test_report, test),
        "model": describe_model(config, policy),
        "precision": describe_slow_precision(policy.device.type, policy.precision),
        "sampling": f"{sampling}; n={data.n} to train, eval_n={data.eval_n} to evaluate",
        "examples": describe_group(config.compose, "compose."),
        "completions": data.completions or "",
        "log μ": MU_WORDS.get(config.mu, ""),
        **log_report,
        "training": describe_group(config.optim, "optim."),
        "rounds": rounds,
        "iterations": iterations,
        "seed": str(config.seed),
        "folder": str(config.folder),
        "GPUs": gpus,
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items() if text)


def describe_algorithm(config: Config) -> str:
    text = f"{config.algo.name} ({list_settings(config.algo)})"
    if config.baseline is not None:
        text += f", baseline={config.baseline:g}"
    if config.effective_positive is not None:
        text += f", effective_positive={config.effective_positive:g}"
    return f"{text}, rewards {REWARD_WORDS[config.reward]}"


def describe_test(config: Config, test: TokenizedProblems) -> str:
    text = f"{len(test.problems)} {config.task.question_kind}{config.data.described}"
    if config.data.test_split == "validation":
        text += " of the training split"
    return text


def describe_model(config: Config, policy: Policy) -> str:
    model = config.model
    text = model.name
    if model.path != model.name:
        text += f" ({model.path})"
    text += f", {policy.model.num_parameters() / 1e6:,.2f} M parameters, {policy.device_description}"
    if model.lora is not None:
        text += f", lora ({list_settings(model.lora)})"
    return text


def slow_sampler(config: Config, policy: Policy) -> str:
    """Say why a large model is not sampled by vLLM; "" for others."""
    if config.sampler.name != "hf" or policy.model.num_parameters() < SLOW_SIZE:
        return ""
    reason = why_not_vllm()
    if reason is None:
        return ""
    return f", many times slower than vllm: {reason}"


def idle_gpus(used: int) -> str:
    """Say what to set where a run sees more GPUs than it uses; "" for others."""
    visible = len(visible_gpus())
    if visible <= used:
        return ""
    return (
        f"{used} of {visible} are used: cluster.processes={visible} divides this run over all (docs/gpu.md), "
        f"cluster.jobs={visible} starts as many runs of a sweep at once"
    )


def describe_group(group: Any, prefix: str) -> str:
    """Name a group's choice, with its settings that decide a result and are not neutral."""
    text: str = group.name
    settings = list_settings(group, prefix)
    if settings:
        text += f" ({settings})"
    return text


def list_settings(group: Any, prefix: str = "") -> str:
    """List the settings of a group that decide a result, but for its `retired_settings`, in one line."""
    hidden_keys = ("name", "_target_", *getattr(group, "retired_settings", ()))
    settings = drop_keys(identity(group, prefix), *hidden_keys)
    text = ", ".join(f"{key}={show(value)}" for key, value in settings.items())
    return text.replace("\n", "\\n")


def count_left_out(report: SplitReport, questions: TokenizedProblems) -> str:
    """Count what was left out of a split, by reason."""
    counts = {
        "no answer can be read": report.unparsable,
        "the question is in test": report.overlapping,
        "the prompt is too long": questions.too_long,
    }
    return "".join(f", {count} left out: {reason}" for reason, count in counts.items() if count)


# ---- results


def format_results(summary: dict[str, Any], folder: Path, evaluation: str) -> str:
    """Format the end of a run: base against trained, seconds per stage, files, and what to do next.

    evaluation: the command that evaluates its model.
    """
    stage_seconds = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in summary["seconds"].items())
    total_seconds = sum(summary["seconds"].values())
    run = shlex.quote(str(folder))
    sweep = shlex.quote(str(folder.parent))
    if summary.get("model_saved") is False:
        model = "no model: checkpoint.weights=none"
        evaluate_line = ""
    else:
        model = "model/"
        evaluate_line = f"\n      {evaluation}"
    return (
        f"{results_table(summary)}\n"
        f"seconds: {stage_seconds} (total {total_seconds:.1f})\n"
        f"files: {folder}/ (summary.json, metrics.jsonl, eval.jsonl, {model})\n"
        f"next: python -m topr_exp.report {run}\n"
        f"      python -m topr_exp.compare {sweep}{evaluate_line}"
    )


def evaluation_command(config: Config) -> str:
    """Return a command that evaluates a run's model; it names the user's code, which is not taken from a folder."""
    words = ["python", "-m", "topr_exp.evaluate"]
    is_users_source = class_path(config.data) not in SOURCES.values()
    is_users_sampler = class_path(config.sampler) is not None
    if OwnFolder.path is not None and (is_users_source or is_users_sampler):
        words += ["--config-dir", str(OwnFolder.path)]
    words += [f"model={config.folder}", "data.eval_n=64"]
    if is_users_sampler:
        words.append(f"sampler={config.sampler.name}")
    if config.data.grader not in (None, *GRADERS):
        for key, value in flatten({"data.grader": config.data.grader}):
            words.append(f"{key}={show(value)}")
    for key in COMMAND_LINE_KEYS:
        group, name = key.split(".")
        value = getattr(getattr(config, group), name, None)
        if value:
            words.append(f"{key}={show(value)}")
    return shlex.join(words)


def describes_run(summary: dict[str, Any]) -> bool:
    """True if a summary has all that `format_results` shows, each of its type."""
    with contextlib.suppress(*DAMAGE):
        format_results(summary, Path(), "")
        return True
    return False


def results_table(summary: dict[str, Any]) -> str:
    """Format base against trained, with what to know of the numbers."""
    base = summary["base"]
    final = summary["final"]
    training_set = describe_training_set(summary)
    has_truncated = any(figures.get("truncated_share") for figures in (base, final))
    if "verifier" in base:
        lines = [*run_table(base["verifier"], final["verifier"]), training_set]
        if has_truncated:
            shares = f"base {truncated_cell(base)} %, trained {truncated_cell(final)} %"
            lines.append(f"cut off by the token limit: {shares}")
    else:
        lines = pass_table(base, final, with_truncated=has_truncated)
        lines.append(f"[ ]: 95 % over {base['problems']} problems; {training_set}")
    if summary.get("note"):
        lines.append(f"note: {summary['note']}")
    figures_of_stages = (base, summary, final)  # the summary counts those of training
    timeouts = sum(figures.get("grader_timeouts", 0) for figures in figures_of_stages)
    if timeouts:
        lines.append(f"note: the grader was cut off twice on {timeouts} completions, which count as incorrect")
    return "\n".join(lines)


def describe_training_set(summary: dict[str, Any]) -> str:
    text = f"{summary['n_train']} training examples, {100 * summary['positive_share']:.1f} % positive, "
    if summary.get("truncated_share"):
        text += f"{truncated_cell(summary)} % of those sampled cut off, "
    return text + f"baseline {summary['baseline']:g}"


def pass_table(base: dict[str, Any], final: dict[str, Any], *, with_truncated: bool) -> list[str]:
    """Format the table of a model that answers the problems."""
    # There is one majority besides the curve maj@k, or none where the grader does not say what incorrect completions
    # answer.
    majorities = [name for name in base if name.startswith("maj@") and not name.endswith("k")]
    shares = [*majorities, *VERDICTS]
    titles = [*shares]
    if with_truncated:
        titles.append("cut off")
    if "mean_reward" in base:
        titles.append("mean reward")
    lines = [f"{'%':<9}{'pass@1':>20}{align_right(titles)}"]
    for name, figures in (("base", base), ("trained", final)):
        cells = [f"{100 * figures[share]:.1f}" for share in shares]
        if with_truncated:
            cells.append(truncated_cell(figures))
        if "mean_reward" in base:
            cells.append(f"{figures['mean_reward']:.3g}")
        pass_at_1 = cell(figures["pass@k"]["1"])
        lines.append(f"{name:<9}{pass_at_1:>20}{align_right(cells)}")
    return lines


def align_right(texts: Sequence[str]) -> str:
    return "".join(f"{text:>13}" for text in texts)


def truncated_cell(figures: Mapping[str, Any]) -> str:
    """Format the share of completions that the token limit cut off."""
    share = figures.get("truncated_share")
    if share is None:  # of an older run
        return "–"
    return f"{100 * share:.1f}"
