"""Card of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.settings import Config
from topr_exp.runs.console import results_table
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.provenance import command_of
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text

if TYPE_CHECKING:
    from topr_exp.runs.tasks import TrainedOn
CARD_FILE = "README.md"
CARD = """---
# license: fill in that of the base model, which holds for these weights too
{matter}
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


# ---- the card of a trained model, for those who get the folder and nothing else


@main_process_only
def write_card(
    model: Path, config: Config, summary: dict[str, Any], environment: dict[str, Any], trained_on: TrainedOn, shown: str
) -> None:
    """Write the card into a trained model's folder; no run reads it. shown: the header.

    The hub's metadata name no licence, and a data set only where its own problems were trained on.
    """
    from huggingface_hub import ModelCardData

    train = config.data.hub_name("train") if trained_on.of_data else None
    matter = ModelCardData(
        base_model=None if "model.path" in model_folders(config) else config.model.path,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["topr_exp", "reinforcement-learning", config.algo.name, *(["lora"] if config.model.lora else [])],
        datasets=[train] if train else None,
    )
    text = CARD.format(
        matter=matter.to_yaml(),
        name=config.folder.name,
        adapter=ADAPTER if config.model.lora is not None else "",
        header=shown,
        results=results_table(summary),
        version=environment.get("versions", {}).get("topr-exp"),
        commit=f", commit {commit}" if (commit := environment.get("git_commit")) else "",
        command=command_of(config.folder, environment),
    )
    write_text(model / CARD_FILE, text)
