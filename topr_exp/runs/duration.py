"""About how long runs will take: as long as finished ones of their size took in the same output folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from topr_exp.config.cluster import LocalCluster
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config
from topr_exp.runs.console import plural

# What decides how much a run samples, grades and trains. Algorithms differ in cost too, but by less.
SIZE = {
    "data": ("name", "source", "train_problems", "n", "test_problems", "eval_n", "shots"),
    "model": ("path", "dtype"),
    "sampler": ("name", "max_new_tokens"),
    "compose": ("name", "n_examples", "pairs_per_problem"),
    "optim": ("epochs", "batch_size"),
    "schedule": None,  # all of it
    "evaluation": None,
    "iterations": None,
}
ENOUGH = 2000  # folders that are looked at: a dry run answers at once


def expected_time(configs: Sequence[Config]) -> str:
    """In words, about how long these runs take together; what it goes by stands in it."""
    took: dict[str, list[float]] = {}
    first = configs[0]
    for path in islice(Path(first.output_dir).glob("*/*/summary.json"), ENOUGH):
        try:
            settings = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))["resolved"]
            seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"].values()
            took.setdefault(size(settings), []).append(sum(seconds))
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # another version's, or being written
    known = [found for config in configs if (found := took.get(size(plain(config))))]
    if not known:
        return f"how long: not known, no run of this size has finished below {first.output_dir}"
    jobs = first.cluster.jobs if isinstance(first.cluster, LocalCluster) else len(configs)
    total = sum(median(found) for found in known) / min(jobs, len(configs))
    text = f"about {clock(total)}, as finished runs of this size took here"
    rest = len(configs) - len(known)
    return f"{text}; {plural(rest, 'run')} not counted, of a size that none had" if rest else text


def size(settings: dict[str, Any]) -> str:
    """Key of runs that take about as long. settings: nested, as config.json holds them."""
    found = {}
    for group, keys in SIZE.items():
        values = settings.get(group)
        found[group] = {key: values.get(key) for key in keys} if keys and isinstance(values, dict) else values
    return json.dumps(found, sort_keys=True, default=str)


def clock(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
