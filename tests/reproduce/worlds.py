"""Records of runs that nobody ran, with planted figures: TOPR at 70 % has exactly 70 % of its completions correct.

Problems differ in their difficulty and seeds by a point; what is not planted is alike everywhere, so that a claim which
looks at another column finds nothing there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.figures import FIGURES
from reproduce.jobs import Request
from reproduce.selection import Runs

PROBLEMS, COMPLETIONS = 200, 8
SEED_OFFSETS = (0.0, 1.0, -1.0, 0.5, -0.5, 0.25)  # points, alike in every group
BASE = {"correct": 30.0, "invalid": 20.0, "maj": 40.0}
SETTINGS = {
    "data.name": "gsm8k",
    "model.name": "tiny",
    "compose.name": "uniform",
    "optim.grad_clip": 1.0,
    "optim.lr": 1e-4,
    "sampler.top_k": 0,
    "mu": "scored",
    "algo.ratio": "sequence",
    "schedule.replay": 0.0,
}
Level = float | tuple[float, ...]  # percent, or that of each seed


def figure_named(name):
    return next(figure for figure in FIGURES if figure.name == name)


def request_for(*figures, full=False, overrides=()):
    return Request(figures, full, overrides, jobs=2, recorded=False, out=Path("nowhere"))


def ranks(shape, seed):
    """The ranks of random scores by problem and completion, of which a part is alike for every seed."""
    shared = np.random.default_rng(99)
    single = np.random.default_rng([97, seed])
    scores = shared.normal(size=(shape[0], 1)) + shared.normal(size=shape) + 0.5 * single.normal(size=shape)
    return np.argsort(np.argsort(scores, axis=None)).reshape(shape)


def evaluation(correct, invalid, maj, *, seed=0):
    """An evaluation with these shares, in percent, as a record holds it."""
    rank = ranks((PROBLEMS, COMPLETIONS), seed)
    is_correct = rank < round(correct / 100 * rank.size)
    is_invalid = rank >= rank.size - round(invalid / 100 * rank.size)
    assert not (is_correct & is_invalid).any(), "more than all completions"
    wins_vote = ranks((PROBLEMS, 1), seed)[:, 0] < round(maj / 100 * PROBLEMS)
    counts = {"correct": is_correct.sum(axis=1), "invalid": is_invalid.sum(axis=1), "maj": 1000 * wins_vote}
    return {
        "pass@1": is_correct.mean(),
        "correct": is_correct.mean(),
        "incorrect": 1 - is_correct.mean() - is_invalid.mean(),
        "invalid": is_invalid.mean(),
        "n": COMPLETIONS,
        "k": COMPLETIONS,
        "of_problems": {name: " ".join(map(str, values)) for name, values in counts.items()},
    }


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    algo: str
    correct: Level  # percent of the completions after training
    settings: Mapping[str, Any] = field(default_factory=dict)
    invalid: Level = 10.0
    maj: Level = 50.0
    base: Mapping[str, float] = field(default_factory=dict)  # in place of BASE
    seeds: Sequence[int] = (0, 1, 2)

    def records(self):
        return [self.record(index, seed) for index, seed in enumerate(self.seeds)]

    def record(self, index, seed):
        correct = level_of(self.correct, index)
        invalid = level_of(self.invalid, index, spread=0.1)
        seeds = {"seed": seed, "sampler.seed": seed}
        return {
            "run": f"{self.algo}_{seed}_{len(self.settings)}",
            "settings": SETTINGS | {"algo.name": self.algo} | seeds | dict(self.settings),
            "environment": {"git_commit": "abc"},
            "base": evaluation(**BASE | self.base),
            "final": evaluation(correct, invalid, level_of(self.maj, index), seed=seed),
            "metrics": {"step": list(range(1, 21))},
            "summary": {"n_train": 640},
        }


def level_of(level, index, spread=1.0):
    """The level of a seed, by its index in the group."""
    if isinstance(level, tuple):
        return level[index]
    return level + spread * SEED_OFFSETS[index]


def group(algo, correct, **options):
    """Runs that end at `correct` percent; an option that is no field of `Group` is a setting: algo__beta=0.1."""
    fields, settings = {}, {}
    for name, value in options.items():
        if name in Group.__dataclass_fields__:
            fields[name] = value
        else:
            settings[name.replace("__", ".")] = value
    return Group(algo, correct, settings, **fields)


def planted_runs(*groups):
    """The records of all groups, in no order."""
    records = [record for group in groups for record in group.records()]
    return Runs([records[i] for i in np.random.default_rng(3).permutation(len(records))])
