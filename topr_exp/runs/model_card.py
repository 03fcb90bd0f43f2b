"""Card of a trained model, for people who get its folder and nothing else; no run reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runs.console import results_table
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.provenance import command_of
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

    from topr_exp.config.settings import Config
    from topr_exp.runs.tasks import ProblemCounts

CARD_FILE = "README.md"
TASK = "text-generation"
CARD = """---
# license: fill in that of the base model, which holds for these weights too
{metadata}
---
# {name}

A language model trained with reinforcement learning on answers to problems, as an experiment: it was tested on the
problems below and on nothing else.

Licence: to be filled in by whoever publishes it. That of the base model holds for these weights too.
{adapter}
```
{header}
```

## Results

```
{results}
```

## Made by

topr_exp {version}{commit}:

```
{command}
```
"""
ADAPTER = """
What was trained is an adapter (LoRA): `adapter/` holds it in peft's format, for `PeftModel.from_pretrained` on the base
model. The weights beside this card are the base model's with the adapter merged in, and load without peft.
"""


@main_process_only
def write_card(
    model_folder: Path,
    config: Config,
    summary: dict[str, Any],
    environment: dict[str, Any],
    problem_counts: ProblemCounts,
    header: str,
) -> None:
    """Write the card into a trained model's folder."""
    commit = environment.get("git_commit")
    commit_words = f", commit {commit}" if commit else ""
    adapter_words = ADAPTER if config.model.lora is not None else ""
    text = CARD.format(
        metadata=card_data(config, summary, problem_counts).to_yaml(),
        name=config.folder.name,
        adapter=adapter_words,
        header=header,
        results=results_table(summary),
        version=environment.get("versions", {}).get("topr-exp"),
        commit=commit_words,
        command=command_of(config.folder, environment),
    )
    write_text(model_folder / CARD_FILE, text)


def card_data(config: Config, summary: dict[str, Any], problem_counts: ProblemCounts) -> ModelCardData:
    """Return the hub's metadata: no licence, and only those of its data sets whose own problems were used."""
    from huggingface_hub import EvalResult, ModelCardData

    tags = ["topr_exp", "reinforcement-learning", config.algo.name]
    if config.model.lora is not None:
        tags.append("lora")
    train_sets = None
    train_set = config.data.hub_name("train")
    if train_set is not None and problem_counts.data_set_count:
        train_sets = [train_set]
    base_model = None  # of a folder, whose path names nothing elsewhere
    if "model.path" not in model_folders(config):
        base_model = config.model.path
    test_set = config.data.hub_name("test")
    eval_results = None
    if test_set is not None and not config.task.verifies:
        eval_results = [
            EvalResult(
                task_type=TASK,
                dataset_type=test_set,
                dataset_name=config.data.name,
                metric_type="pass@1",
                metric_value=summary["final"]["pass@1"],
            )
        ]
    return ModelCardData(
        base_model=base_model,
        model_name=config.folder.name,
        library_name="transformers",
        pipeline_tag=TASK,
        tags=tags,
        datasets=train_sets,
        eval_results=eval_results,
    )
