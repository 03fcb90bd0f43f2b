"""The card of a trained model, `model/README.md`: what it is, for those who get the folder and nothing else."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from topr_exp.config.data import Split
from topr_exp.config.settings import Config
from topr_exp.runs import console
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.provenance import command_of
from topr_exp.runs.task_set import TrainedOn
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.verifier import table as verifier_table

FILE = "README.md"
SOFTWARE = "topr_exp"
LICENCE = "# license: fill in that of the base model, which holds for these weights too\n"


@main_process_only
def write(
    folder: Path, config: Config, summary: dict[str, Any], environment: dict[str, Any], trained_on: TrainedOn
) -> None:
    """Write the card into the folder of the model that the run has trained.

    No run reads it: models are known by the other files of their folder.
    """
    matter = front_matter(config, summary, trained_on)
    write_text(folder / FILE, f"---\n{matter}---\n{text(config, summary, environment)}")


def front_matter(config: Config, summary: dict[str, Any], trained_on: TrainedOn) -> str:
    """Compose the hub's metadata; the licence is left to the user, who knows that of the base.

    A data set of the hub is named only where its own problems were trained on, or tested on.
    """
    import yaml

    on_hub = "model.path" not in model_folders(config)
    data = config.data.hub_name("train") if trained_on.of_data else None
    tested = "train" if config.data.test_split is Split.validation else "test"
    test = None if config.task.verifies else config.data.hub_name(tested)
    values = {
        "base_model": config.model.path if on_hub else None,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [SOFTWARE, "reinforcement-learning", config.algo.name, *(["lora"] if config.model.lora else [])],
        "datasets": [data] if data else None,
        "model-index": [index(config, summary, test, tested)] if test else None,
    }
    stated = {key: value for key, value in values.items() if value is not None}
    return LICENCE + str(yaml.safe_dump(stated, sort_keys=False, allow_unicode=True))


def index(config: Config, summary: dict[str, Any], data: str, split: str) -> dict[str, Any]:
    """pass@1 on a split of a data set of the hub in the form of the hub's model index, in percent."""
    metric = {"type": "pass@1", "name": "pass@1", "value": round(100 * summary["final"]["pass@1"], 2)}
    dataset = {"type": data, "name": f"{data} ({summary['problems']['test']} problems)", "split": split}
    result = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": [metric]}
    return {"name": config.folder.name, "results": [result]}


def text(config: Config, summary: dict[str, Any], environment: dict[str, Any]) -> str:
    """The card as people read it."""
    data = config.data
    what = (type(config.algo).__doc__ or "").strip().splitlines()[:1]
    software = f"{SOFTWARE} {environment.get('versions', {}).get('topr-exp', '')}".strip()
    commit = f", commit {environment['git_commit'][:10]}" if environment.get("git_commit") else ""
    rows = {
        "Base model": f"`{config.model.path}`",
        "Algorithm": f"{console.algorithm(config)}{f': {what[0]}' if what else ''}",
        "Trained on": summary["trained_on"],
        "Tested on": f"{summary['problems']['test']} {data.described}"
        + (" (of the training split)" if data.test_split is Split.validation else ""),
        "Sampling": console.sampling(config),
        "Training": f"{summary['n_train']} examples, {console.training(config)}",
        "Software": f"{software}{commit}",
    }
    table = "\n".join(f"| {name} | {cell(value)} |" for name, value in rows.items())
    return f"""# {config.folder.name}

A language model trained with reinforcement learning on answers to problems, as an experiment: it was tested on the
problems below and on nothing else.

Licence: to be filled in by whoever publishes it. That of the base model holds for these weights too.
{adapter(config)}
| | |
|---|---|
{table}

## Results

{results(config, summary)}

## Made by

```
{shlex.join(["python", "-m", SOFTWARE, *command_of(config.folder, environment)])}
```
"""


def adapter(config: Config) -> str:
    """Describe the adapter, its folder, and this folder's weights."""
    if config.model.lora is None:
        return ""
    return """
What was trained is an adapter (LoRA): `adapter/` holds it in peft's format, for `PeftModel.from_pretrained` on the base
model. The weights beside this card are the base model's with the adapter merged in, and load without peft.
"""


def results(config: Config, summary: dict[str, Any]) -> str:
    """Base against trained, with intervals."""
    base, final = summary["base"], summary["final"]
    if config.task.verifies:
        lines = verifier_table.run_table(base["verifier"], final["verifier"])
        return "\n".join(["```", *lines, "```"])
    rows = ["| % | base | trained |", "|---|---|---|"]
    for curve in ("pass@k", "maj@k"):
        for k in ends(final[curve]) if curve == "pass@k" else ends(final[curve])[1:]:  # maj@1 is pass@1
            each = [interval(figures[curve][k]) for figures in (base, final)]
            rows.append(f"| {curve[:-1]}{k} | {' | '.join(each)} |")
    if "mean_reward" in final:
        rows.append("| mean reward (no percentage) | " + " | ".join(with_error(each) for each in (base, final)) + " |")
    return "\n".join(
        [*rows, "", f"95 % intervals over {final['problems']} test problems, {final['samples']} completions each, "
         f"seed {config.seed}; one run says nothing of other seeds."]
    )  # fmt: skip


def ends(curve: dict[str, Any]) -> list[str]:
    """The first and the last k of a curve."""
    numbers = sorted(curve, key=int)
    return list(dict.fromkeys([*numbers[:1], *numbers[-1:]]))


def interval(point: dict[str, float | None]) -> str:
    """A share in percent with its interval, as far as there are any."""
    value, low, high = (point.get(name) for name in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{100 * value:.1f}" + (
        f" [{100 * low:.1f}, {100 * high:.1f}]" if low is not None and high is not None else ""
    )


def with_error(figures: dict[str, Any]) -> str:
    """The mean reward with its interval."""
    value, error = figures["mean_reward"], figures["mean_reward_se"]
    return f"{value:.3g}" + (f" [{value - 1.96 * error:.3g}, {value + 1.96 * error:.3g}]" if error is not None else "")


def cell(value: str) -> str:
    """A text that ends no cell of a table."""
    return " ".join(value.split()).replace("|", r"\|")
