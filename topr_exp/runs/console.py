"""Console output of a run: its settings at the start, a table of results at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import Reward
from topr_exp.config.identity import identity
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config, Mu
from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import print_warning
from topr_exp.types import VERDICTS
from topr_exp.verifier import table as verifier_table

if TYPE_CHECKING:
    from topr_exp.data.problems import ProblemSets, SplitReport
    from topr_exp.data.prompts import TokenizedProblems
    from topr_exp.models.policy import Policy


REWARDS = {Reward.pm1: "1 and -1", Reward.zero_one: "1 and 0", Reward.graded: "as graded"}


def say(text: str = "") -> None:
    """A line for the user, at once also when piped; once for all processes of a run."""
    if distributed.is_main_process():
        print(text, flush=True)


def warn(text: str) -> None:
    """A line that must not be lost among results; once for all processes of a run."""
    if distributed.is_main_process():
        print_warning(text)


def header(
    config: Config,
    policy: Policy,
    sets: ProblemSets,
    train: TokenizedProblems,
    test: TokenizedProblems,
    trained_on: str = "",
) -> str:
    """Format the settings that decide the result: a row a group, each setting by the key that sets it.

    trained_on: the problems, where completions made elsewhere decide them.
    """
    noun = "solutions" if config.task.verifies else "problems"
    trained = f"trained on: {trained_on}" if trained_on else counted(f"train {noun}", sets.train_report, train)
    tested = counted(f"test {noun}", sets.test_report, test)
    data, lora = config.data, config.model.lora
    completions = f", trains on {data.completions}" if data.completions is not None else ""
    rows = {
        "algorithm": algorithm(config),
        "task": described(config.task, "task.") if config.task.verifies else "",
        "data": f"{data.name} from {data.place}, {trained}; {tested}",
        "model": f"{config.model.name}, {policy.parameters / 1e6:,.2f} M parameters, {policy.place}"
        + (f", lora ({settings_of(lora)})" if lora is not None else ""),
        "sampling": f"{sampling(config)}; n={data.n} to train, eval_n={data.eval_n} to evaluate{completions}",
        "examples": described(config.compose, "compose."),
        "log μ": "what the sampler drew with" if config.mu is Mu.sampler else "",
        "training": training(config),
        "iterations": str(config.iterations) if config.iterations > 1 else "",
        "folder": str(config.folder),
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items() if text)


def algorithm(config: Config) -> str:
    """The loss with its settings, how positives and negatives are weighted, and the rewards."""
    fields = {key: value for key, value in plain(config.algo).items() if key not in ("_target_", "name")}
    weighting = {"baseline": config.baseline, "effective_positive": config.effective_positive}
    shown = "".join(f", {key}={value:g}" for key, value in weighting.items() if value is not None)
    return f"{config.algo.name} ({listed(fields)}){shown}, rewards {REWARDS[config.reward]}"


def sampling(config: Config) -> str:
    """The sampler with the settings of its distribution."""
    return described(config.sampler, "sampler.")


def training(config: Config) -> str:
    """The optimizer, the rounds of sampling anew, and the seed."""
    rounds = f", rounds ({settings_of(config.schedule)})" if config.schedule.prompts is not None else ""
    return f"{described(config.optim, 'optim.')}{rounds}, seed={config.seed}"


def described(group: Any, prefix: str) -> str:
    """The name of a group's choice with the settings that decide a result and are not neutral."""
    settings = settings_of(group, prefix)
    return str(plain(group.name)) + (f" ({settings})" if settings else "")


def settings_of(group: Any, prefix: str = "") -> str:
    return listed({key: value for key, value in identity(group, prefix).items() if key != "name"})


def listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def results(summary: dict[str, Any], folder: Path) -> str:
    """The table at the end: base against trained, seconds a stage, where the files are."""
    base, final = summary["base"], summary["final"]
    trained = (
        f"{summary['n_train']} training examples, {100 * summary['positive_share']:.1f} % positive, "
        f"baseline {summary['baseline']:g}"
    )
    if "verifier" in base:
        lines = [*verifier_table.run_table(base["verifier"], final["verifier"]), trained]
    else:
        lines = solved(base, final)
        lines.append(f"pass@1 ± 2 standard errors over {base['problems']} problems; {trained}")
    notes = [summary["note"]] if summary.get("note") else []
    if cut_off := sum(each.get("cut_off", 0) for each in (base, summary, final)):
        notes.append(f"the grader was cut off twice on {cut_off} completions, which count as incorrect")
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in summary["seconds"].items())
    total = sum(summary["seconds"].values())
    return "\n".join(
        [
            *lines,
            *(f"note: {note}" for note in notes),
            f"seconds: {seconds} (total {total:.1f})",
            f"files: {folder}/ (summary.json, metrics.jsonl, eval.jsonl, model/)",
        ]
    )


def solved(base: dict[str, Any], final: dict[str, Any]) -> list[str]:
    """The table of a model that answers the problems."""
    # One, or none where the grader does not say what incorrect completions answer.
    majorities = [name for name in base if name.startswith("maj@") and not name.endswith(("_se", "k"))]
    columns = ("pass@1", *majorities, *VERDICTS)
    graded = ["mean reward"] if "mean_reward" in base else []
    lines = [f"{'%':<9}" + "".join(f"{title:>13}" for title in (*columns, *graded))]
    for name, figures in (("base", base), ("trained", final)):
        error = figures["pass@1_se"]
        cells = [f"{100 * figures[key]:.1f}" for key in columns] + [f"{figures['mean_reward']:.3g}" for _ in graded]
        cells[0] += f" ± {200 * error:.1f}" if error is not None else ""
        lines.append(f"{name:<9}" + "".join(f"{cell:>13}" for cell in cells))
    return lines


def counted(name: str, report: SplitReport, questions: TokenizedProblems) -> str:
    """Format a split's number of problems and what was left out of it."""
    left_out = {
        "no answer can be read": report.unparsable,
        "the question is in test": report.overlapping,
        "the prompt is too long": questions.too_long,
    }
    shown = [f"{count} left out: {reason}" for reason, count in left_out.items() if count]
    return ", ".join([f"{len(questions.problems)} {name}", *shown])


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
