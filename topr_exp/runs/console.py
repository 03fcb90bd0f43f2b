"""A run for people to read: its settings at the start, a table of results at the end, the card of its model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import Reward, Split
from topr_exp.config.identity import identity
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config, Mu
from topr_exp.runs.attempt import command_of
from topr_exp.runs.preflight import model_folders
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.types import VERDICTS
from topr_exp.verifier import table as verifier_table
from topr_exp.verifier.table import cell

if TYPE_CHECKING:
    from topr_exp.data.problems import ProblemSets, SplitReport
    from topr_exp.data.prompts import TokenizedProblems
    from topr_exp.models.policy import Policy
    from topr_exp.runs.task_set import TrainedOn


REWARDS = {Reward.pm1: "1 and -1", Reward.zero_one: "1 and 0", Reward.graded: "as graded"}
CARD_FILE = "README.md"
BAR = r"\|"  # that ends no cell
CARD = """---
# license: fill in that of the base model, which holds for these weights too
{matter}---
# {name}

A language model trained with reinforcement learning on answers to problems, as an experiment: it was tested on the
problems below and on nothing else.

Licence: to be filled in by whoever publishes it. That of the base model holds for these weights too.
{adapter}
| | |
|---|---|
{rows}

## Results

{results}

## Made by

```
python -m topr_exp {command}
```
"""
ADAPTER = """
What was trained is an adapter (LoRA): `adapter/` holds it in peft's format, for `PeftModel.from_pretrained` on the base
model. The weights beside this card are the base model's with the adapter merged in, and load without peft.
"""


def header(
    config: Config,
    policy: Policy,
    sets: ProblemSets,
    train: TokenizedProblems,
    test: TokenizedProblems,
    trained_on: str = "",
) -> str:
    """Format the settings that decide the result, a row a group; trained_on: problems of completions made elsewhere."""
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


# ---- the card of a trained model, for those who get the folder and nothing else


@main_process_only
def write_card(
    model: Path, config: Config, summary: dict[str, Any], environment: dict[str, Any], trained_on: TrainedOn
) -> None:
    """Write the card into a trained model's folder; no run reads it."""
    write_text(model / CARD_FILE, card(config, summary, environment, trained_on))


def card(config: Config, summary: dict[str, Any], environment: dict[str, Any], trained_on: TrainedOn) -> str:
    """Compose the card: the hub's metadata, then a page for people."""
    line = (type(config.algo).__doc__ or "").strip().partition("\n")[0]
    version, commit = environment.get("versions", {}).get("topr-exp", ""), environment.get("git_commit")
    validation = " (of the training split)" if config.data.test_split is Split.validation else ""
    rows = {
        "Base model": f"`{config.model.path}`",
        "Algorithm": f"{algorithm(config)}{f': {line}' if line else ''}",
        "Trained on": summary["trained_on"],
        "Tested on": f"{summary['problems']['test']} {config.data.described}{validation}",
        "Sampling": sampling(config),
        "Training": f"{summary['n_train']} examples, {training(config)}",
        "Software": f"topr_exp {version}".strip() + (f", commit {commit[:10]}" if commit else ""),
    }
    return CARD.format(
        matter=front_matter(config, summary, trained_on),
        name=config.folder.name,
        adapter=ADAPTER if config.model.lora is not None else "",
        rows="\n".join(f"| {name} | {' '.join(value.split()).replace('|', BAR)} |" for name, value in rows.items()),
        results=card_results(config, summary),
        command=shlex.join(command_of(config.folder, environment)),
    )


def front_matter(config: Config, summary: dict[str, Any], trained_on: TrainedOn) -> str:
    """Compose the hub's metadata: no licence, and only data sets whose own problems were trained or tested on."""
    from huggingface_hub import EvalResult, ModelCardData

    split = "train" if config.data.test_split is Split.validation else "test"
    test = None if config.task.verifies else config.data.hub_name(split)
    train = config.data.hub_name("train") if trained_on.of_data else None
    pass_at_1 = EvalResult(
        task_type="text-generation", metric_type="pass@1", metric_name="pass@1", dataset_type=str(test),
        metric_value=round(100 * summary["final"]["pass@1"], 2), dataset_split=split,
        dataset_name=f"{test} ({summary['problems']['test']} problems)",
    )  # fmt: skip
    data = ModelCardData(
        base_model=None if "model.path" in model_folders(config) else config.model.path,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["topr_exp", "reinforcement-learning", config.algo.name, *(["lora"] if config.model.lora else [])],
        datasets=[train] if train else None,
        model_name=config.folder.name if test is not None else None,
        eval_results=[pass_at_1] if test is not None else None,
    )
    return f"{data.to_yaml()}\n"


def card_results(config: Config, summary: dict[str, Any]) -> str:
    both = base, final = summary["base"], summary["final"]
    if config.task.verifies:
        return "\n".join(["```", *verifier_table.run_table(base["verifier"], final["verifier"]), "```"])
    rows = ["| % | base | trained |", "|---|---|---|"]
    for curve in ("pass@k", "maj@k"):
        numbers = sorted(final[curve], key=int)
        ends = {"1", *numbers[-1:]} if curve == "pass@k" else {*numbers[-1:]} - {"1"}  # maj@1 is pass@1
        for k in sorted(ends, key=int):
            rows.append(f"| {curve[:-1]}{k} | {' | '.join(cell(figures[curve][k]) for figures in both)} |")
    if "mean_reward" in final:
        rows.append("| mean reward (no percentage) | " + " | ".join(map(mean_reward, both)) + " |")
    caption = (
        f"95 % intervals over {final['problems']} test problems, {final['samples']} completions each, seed "
        f"{config.seed}; one run says nothing of other seeds."
    )
    return "\n".join([*rows, "", caption])


def mean_reward(figures: dict[str, Any]) -> str:
    """The mean reward with its interval."""
    value, error = figures["mean_reward"], figures["mean_reward_se"]
    return f"{value:.3g}" + (f" [{value - 1.96 * error:.3g}, {value + 1.96 * error:.3g}]" if error is not None else "")
