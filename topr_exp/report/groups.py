"""What differs between runs, and which runs are repetitions of one another. Needs no configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from topr_exp.config.optim import OptimConfig
from topr_exp.config.sampler import VLLMConfig
from topr_exp.report.curves import number
from topr_exp.report.runs import Run

# Where a run computes and reports, and what follows from another setting.
IGNORED = (
    "dry_run", "output_dir", "cluster", "tracking", "checkpoint", "name", "algo._target_", "data._target_",
    *(f"sampler.{key}" for key in VLLMConfig.PLACE), *(f"optim.{key}" for key in OptimConfig.PLACE),
    "evaluation.every", "evaluation.problems",
)  # fmt: skip
SEEDS = ("seed", "sampler.seed", "data.seed")  # runs that differ in these alone are repetitions
FIRST = (
    "algo.name",
    "data.name",
    "model.name",
    "compose.name",
    "compose.positive_share",
    "effective_positive",
    "baseline",
)
OF_THE_BASE = ("model.", "data.", "sampler.", "evaluation.seed")  # settings that decide the base's figures
RESULTS = ("effective_positive", "baseline", "positive_share", "n_train")  # of the summary, as axes of sweep plots
MISSING = "–"


@dataclass(frozen=True)
class Comparison:
    """Runs beside one another."""

    settings: list[dict[str, Any]]  # dotted key -> value of each run
    fixed: dict[str, Any]  # settings that all share, what does not matter left out
    differing: list[str]  # keys with more than one value, seeds and what does not matter left out
    keys: list[str]  # those that tell the groups apart; the others follow from them
    labels: list[str]  # of each run's group
    groups: dict[str, list[int]]  # label -> runs, in the order of their settings


def group_runs(runs: list[Run]) -> Comparison:
    """Group the runs by the settings that differ, seeds apart."""
    settings = [dict(flatten(run.config)) for run in runs]
    known = [one for one in settings if one]
    names = sorted({key for one in known for key in one if not ignored(key)}, key=rank)
    fixed = {key: known[0][key] for key in names if all(key in one for one in known) and one_value(key, known)}
    # A setting that some runs lack (another algorithm's, another version's) differs where the others have two values.
    differing = [key for key in names if not one_value(key, known)]
    keys = telling((key for key in differing if key not in SEEDS), known)
    labels = [label(run, one, keys) for run, one in zip(runs, settings, strict=True)]
    groups: dict[str, list[int]] = {}
    for i in sorted(range(len(runs)), key=lambda i: [order(settings[i].get(key)) for key in keys]):
        groups.setdefault(labels[i], []).append(i)
    return Comparison(settings, fixed, [key for key in differing if key not in SEEDS], keys, labels, groups)


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings by dotted key."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flatten(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def ignored(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in IGNORED)


def rank(key: str) -> tuple[int, str]:
    """The order of keys in labels: what readers look for first, then by name."""
    return (FIRST.index(key) if key in FIRST else len(FIRST), key)


def one_value(key: str, settings: list[dict[str, Any]]) -> bool:
    """Whether a setting is the same in all runs that have it."""
    return len({text(one[key]) for one in settings if key in one}) < 2


def telling(names: Iterable[str], settings: list[dict[str, Any]]) -> list[str]:
    """Those of the settings that tell runs apart; the others follow from them."""
    keys: list[str] = []
    for key in names:
        if not follows(key, keys, settings):
            keys.append(key)
    return keys


def follows(key: str, others: list[str], settings: list[dict[str, Any]]) -> bool:
    """Whether the values of `others` decide that of `key` in all runs."""
    decided: dict[tuple[str, ...], str] = {}
    for one in settings:
        given = tuple(text(one.get(other)) for other in others)
        if decided.setdefault(given, text(one.get(key))) != text(one.get(key)):
            return False
    return True


def order(value: Any) -> tuple[int, float, str]:
    """A key to sort settings by: nothing first, then numbers by their size, then texts."""
    if value is None:
        return (0, 0.0, "")
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, text(value))


def label(run: Run, settings: dict[str, Any], keys: list[str]) -> str:
    """A group's name: the values that tell it from the others."""
    if not settings:
        return f"{run.name} (settings unknown)"
    if not keys:
        return text(settings.get("algo.name")) if "algo.name" in settings else run.name
    return ", ".join(tell(key, settings) for key in keys)


def tell(key: str, settings: dict[str, Any]) -> str:
    """A setting in a label: key=value, of names the value alone."""
    value = text(settings.get(key))
    return value if key.endswith(".name") else f"{short(key)}={value}"


def short(key: str) -> str:
    """The last part of a dotted key, where that is clear enough."""
    return {"effective_positive": "p~", "baseline": "c", "compose.positive_share": "p"}.get(key, key.rsplit(".", 1)[-1])


def text(value: Any) -> str:
    """A value as it stands in a label."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def different_bases(runs: list[Run], comparison: Comparison) -> list[str]:
    """A note where runs that ask the same of the same model began with different figures: something else changed."""
    found: dict[tuple[str, ...], set[float]] = {}
    for run, settings in zip(runs, comparison.settings, strict=True):
        base = run.figure("base", "pass@1")
        asked = [f"{key}={text(settings[key])}" for key in sorted(settings) if key.startswith(OF_THE_BASE)]
        if base is not None and asked:
            found.setdefault(tuple(asked), set()).add(base)
    return [
        f"runs with the same model and test began from different bases (pass@1 "
        f"{', '.join(f'{100 * value:.1f}' for value in sorted(bases))} %): were weights, problems or code changed?"
        for bases in found.values()
        if len(bases) > 1
    ]


def bases(runs: list[Run], comparison: Comparison) -> dict[str, list[Run]]:
    """The runs by what they began from: "base", where its figures differ with the settings that tell bases apart."""
    if len({run.figure("base", "pass@1") for run in runs} - {None}) < 2:
        return {"base": runs}
    known = [one for one in comparison.settings if one]
    keys = telling((key for key in comparison.differing if key.startswith(OF_THE_BASE)), known)
    found: dict[str, list[Run]] = {}
    for run, settings in zip(runs, comparison.settings, strict=True):
        found.setdefault(", ".join(["base", *(tell(key, settings) for key in keys)]), []).append(run)
    return found


def axes(runs: list[Run], comparison: Comparison) -> dict[str, list[float | None]]:
    """What can be the x axis of a sweep: numbers that differ, of the settings or of the results, by run."""
    found = {
        key: [number(one.get(key)) for one in comparison.settings] for key in comparison.differing if key not in RESULTS
    }
    found |= {key: [run.figure(key) for run in runs] for key in RESULTS}
    # p~ and p first: what the paper sweeps.
    order = [*RESULTS, *(key for key in found if key not in RESULTS)]
    return {key: found[key] for key in order if len({value for value in found[key] if value is not None}) > 1}
