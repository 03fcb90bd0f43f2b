"""The card of a trained model, `model/README.md`: what it is, for those who get the folder and nothing else."""

from __future__ import annotations

import shlex
from typing import Any

from topr_exp.config.data import Split
from topr_exp.config.settings import Config
from topr_exp.runs import console
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.provenance import command_of
from topr_exp.runs.task_set import TrainedOn
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.verifier import table as verifier_table
from topr_exp.verifier.table import cell

FILE = "README.md"
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


@main_process_only
def write(run: RunFolder, config: Config, summary: dict[str, Any], trained_on: TrainedOn) -> None:
    """Write the card into the folder of the model that the run has trained.

    No run reads it: models are known by the other files of their folder.
    """
    environment = run.read("environment.json") or {}
    write_text(run.model_of(config.iterations) / FILE, text(config, summary, environment, trained_on))


def text(config: Config, summary: dict[str, Any], environment: dict[str, Any], trained_on: TrainedOn) -> str:
    """Compose the card: the hub's metadata, then a page for people."""
    line = (type(config.algo).__doc__ or "").strip().partition("\n")[0]
    version, commit = environment.get("versions", {}).get("topr-exp", ""), environment.get("git_commit")
    validation = " (of the training split)" if config.data.test_split is Split.validation else ""
    rows = {
        "Base model": f"`{config.model.path}`",
        "Algorithm": f"{console.algorithm(config)}{f': {line}' if line else ''}",
        "Trained on": summary["trained_on"],
        "Tested on": f"{summary['problems']['test']} {config.data.described}{validation}",
        "Sampling": console.sampling(config),
        "Training": f"{summary['n_train']} examples, {console.training(config)}",
        "Software": f"topr_exp {version}".strip() + (f", commit {commit[:10]}" if commit else ""),
    }
    return CARD.format(
        matter=front_matter(config, summary, trained_on),
        name=config.folder.name,
        adapter=ADAPTER if config.model.lora is not None else "",
        rows="\n".join(f"| {name} | {cell_of(value)} |" for name, value in rows.items()),
        results=results(config, summary),
        command=shlex.join(command_of(config.folder, environment)),
    )


def cell_of(value: str) -> str:
    """A text that ends no cell of a table."""
    return " ".join(value.split()).replace("|", r"\|")


def front_matter(config: Config, summary: dict[str, Any], trained_on: TrainedOn) -> str:
    """Compose the hub's metadata; the licence is left to the user, who knows that of the base.

    A data set of the hub is named only where its own problems were trained on, or tested on.
    """
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


def results(config: Config, summary: dict[str, Any]) -> str:
    """Base against trained, with intervals."""
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
