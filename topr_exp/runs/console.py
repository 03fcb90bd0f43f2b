"""Console output of a run: its settings at the start, a table of results at the end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import Reward
from topr_exp.config.groups import ComposeName, Duplicates, Schedule
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
    """Format the settings: algorithm, data and source, model and size, device, and folder.

    trained_on: the problems, where completions made elsewhere decide them.
    """
    chosen, task = choice(config), config.task
    each = f"{task.solutions} a training problem, {task.test_solutions} a test problem"
    rows = {
        "algorithm": algorithm(config),
        "task": f"verify solutions by {task.solver}: {each}" if task.verifies else "",
        "data": problems(config, sets, train, test, trained_on),
        "model": f"{config.model.name}, {policy.parameters / 1e6:,.2f} M parameters, {policy.place}",
        "sampling": sampling(config),
        "examples": chosen if chosen != "all completions" else "",
        "log μ": "what the sampler drew with" if config.mu is Mu.sampler else "",
        "training": training(config),
        "iterations": str(config.iterations) if config.iterations > 1 else "",
        "folder": str(config.folder),
    }
    return "\n".join(f"{name:<11} {text}" for name, text in rows.items() if text)


def algorithm(config: Config) -> str:
    """The loss with its settings, how positives and negatives are weighted, and the rewards."""
    fields = [field.name for field in dataclasses.fields(config.algo) if field.name != "name"]
    settings = ", ".join(f"{name}={plain(getattr(config.algo, name))}" for name in fields)
    weighting = ""
    if config.baseline is not None:
        weighting = f", baseline c = {config.baseline:g}"
    elif config.effective_positive is not None:
        weighting = f", effective positive proportion p~ = {config.effective_positive:g}"
    return f"{config.algo.name} ({settings}){weighting}, rewards {REWARDS[config.reward]}"


def problems(
    config: Config, sets: ProblemSets, train: TokenizedProblems, test: TokenizedProblems, trained_on: str = ""
) -> str:
    """The data set, where it is from, and how many problems (of a verifier: solutions) each split has."""
    noun = "solutions" if config.task.verifies else "problems"
    trained = f"trained on: {trained_on}" if trained_on else counted(f"train {noun}", sets.train_report, train)
    return f"{config.data.name} from {config.data.place}, {trained}; {counted(f'test {noun}', sets.test_report, test)}"


def sampling(config: Config) -> str:
    """Format the number of completions and the sampler's settings."""
    sampler, data = config.sampler, config.data
    noun = "solution" if config.task.verifies else "problem"
    wanted = f"{data.n} completions a {noun} ({data.eval_n}"
    if data.completions is not None and config.compose.mix is None:
        wanted = f"none to train on: {data.completions} has them ({data.eval_n} completions a {noun}"
    cut = f", top-k {sampler.top_k}" if sampler.top_k else ""
    cut += f", top-p {sampler.top_p:g}" if sampler.top_p < 1 else ""
    return (
        f"{sampler.name}, {wanted} to evaluate), temperature {sampler.temperature:g}{cut}, at most "
        f"{sampler.max_new_tokens} tokens, sampler.seed {sampler.seed}"
    )


def training(config: Config) -> str:
    """The optimizer, the size of an update, and how long."""
    optim = config.optim
    rate = f"{optim.lr:g}"
    if optim.warmup_steps:
        rate += f" after {plural(optim.warmup_steps, 'update')} of warm-up"
    if optim.schedule is not Schedule.constant:
        rate += f", falling to 0 ({optim.schedule.name})"
    return (
        f"{adapter(config)}{optim.name.name}, learning rate {rate}, {optim.batch_size} examples an update, "
        f"gradient clip {optim.grad_clip:g}, {duration(config)}, seed {config.seed}"
    )


def adapter(config: Config) -> str:
    """Format the adapter's settings, before the rest of the line."""
    lora = config.model.lora
    if lora is None:
        return ""
    return f"LoRA of rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.names) or 'all linear layers'}; "


def duration(config: Config) -> str:
    """Epochs over a fixed training set, or rounds."""
    schedule = config.schedule
    if schedule.prompts is None:
        return plural(config.optim.epochs, "epoch")
    assert schedule.rounds is not None
    assert schedule.updates is not None
    replay = f", replay {schedule.replay:g}" if schedule.replay else ""
    problems, updates = plural(schedule.prompts, "problem"), plural(schedule.updates, "update")
    return f"{plural(schedule.rounds, 'round')} of {problems} and {updates}{replay}"


def choice(config: Config) -> str:
    """Which of the sampled completions are trained on."""
    compose = config.compose
    if config.data.completions is not None and compose.mix is None:
        return f"from {config.data.completions}"
    count = "all" if compose.n_examples is None else f"{compose.n_examples:,}"
    share = f", {100 * compose.positive_share:g} % of them correct" if compose.positive_share is not None else ""
    if compose.mix is not None:
        share += f", {100 * compose.mix:g} % of them from {config.data.completions}"
    kind = "" if compose.name is ComposeName.uniform else f" by {compose.name.name}"
    cut = ", truncated ones left out" if compose.drop_truncated else ""
    cut += ", repeated ones left out" if compose.duplicates is Duplicates.drop else ""
    often = (
        "" if compose.pass_rate is None else " of problems solved {:g} to {:g} of the time".format(*compose.pass_rate)
    )
    return f"{count} completions{often}{kind}{share}{cut}"


def results(summary: dict[str, Any], folder: Path) -> str:
    """The table at the end: base against trained, seconds a stage, where the files are."""
    base, final = summary["base"], summary["final"]
    trained = (
        f"{summary['n_train']} training examples, {100 * summary['positive_share']:.1f} % positive, "
        f"baseline {summary['baseline']:g}"
    )
    if "verifier" in base:
        table = [*verifier_table.run_table(base["verifier"], final["verifier"]), trained]
    else:
        *table, note = solved(base, final)
        table.append(f"{note}; {trained}")
    if summary.get("note"):
        table.append(f"note: {summary['note']}")
    if cut_off := sum(each.get("cut_off", 0) for each in (base, summary, final)):
        table.append(f"note: the grader was cut off twice on {cut_off} completions, which count as incorrect")
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in summary["seconds"].items())
    return "\n".join(
        [
            *table,
            f"seconds: {seconds} (total {sum(summary['seconds'].values()):.1f})",
            f"files: {folder}/ (summary.json, metrics.jsonl, eval.jsonl, model/)",
        ]
    )


def solved(base: dict[str, Any], final: dict[str, Any]) -> list[str]:
    """The table of a model that answers the problems."""
    # One, or none where the grader does not say what incorrect completions answer.
    majorities = [name for name in base if name.startswith("maj@") and not name.endswith(("_se", "k"))]
    columns, graded = ("pass@1", *majorities, *VERDICTS), "mean_reward" in base

    def row(name: str, figures: dict[str, Any]) -> str:
        error = figures["pass@1_se"]
        interval = f" ± {200 * error:.1f}" if error is not None else ""
        cells = [f"{100 * figures['pass@1']:.1f}{interval}"]
        cells += [f"{100 * figures[key]:.1f}" for key in columns[1:]]
        cells += [f"{figures['mean_reward']:.3g}"] if graded else []
        return f"{name:<9}" + "".join(f"{cell:>13}" for cell in cells)

    titles = "".join(f"{title:>13}" for title in (*columns, *(["mean reward"] if graded else [])))
    return [
        f"{'%':<9}{titles}",
        row("base", base),
        row("trained", final),
        f"pass@1 ± 2 standard errors over {base['problems']} problems",
    ]


def counted(name: str, report: SplitReport, questions: TokenizedProblems) -> str:
    """Format a split's number of problems and what was left out of it."""
    left_out = [
        f"{count} left out: {reason}"
        for count, reason in (
            (report.unparsable, "no answer can be read"),
            (report.overlapping, "the question is in test"),
            (questions.too_long, "the prompt is too long"),
        )
        if count
    ]
    return ", ".join([f"{len(questions.problems)} {name}", *left_out])


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
