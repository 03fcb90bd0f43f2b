"""Worlds: records of runs that nobody ran, in which it is known which claims of a figure are true.

What is true in a world is what a person reads in the claim's sentence, never what the code computes. Levels are planted
exactly: TOPR at 70 % ends with 70 % of its completions correct. Problems differ in their difficulty, seeds by a point,
and what is not planted is the same everywhere, so that a claim which looks at another column finds nothing there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reproduce.claims import Claim
from reproduce.figure import Figure, key_of
from reproduce.figures import FIGURES
from reproduce.jobs import Request
from reproduce.selection import Runs


def named(name: str) -> Figure:
    return next(figure for figure in FIGURES if figure.name == name)


def request_for(*figures: Figure, full: bool = False, overrides: tuple[str, ...] = ()) -> Request:
    return Request(figures, full, overrides, jobs=2, recorded=False, out=Path("nowhere"))


PROBLEMS, N = 200, 8
WOBBLE = (0.0, 1.0, -1.0, 0.5, -0.5, 0.25)  # points that the seeds of a group lie apart, the same for every group
Level = float | tuple[float, ...]  # percent, or that of each seed
Few = tuple[float, int]  # this many percent of the problems have exactly so many correct completions


def results(
    correct: float, invalid: float, maj: float, *, seed: int = 0, n: int = N, few: Few | None = None
) -> dict[str, Any]:
    """An evaluation with these shares, in percent, as a record holds it; seed: of how problems differ."""
    difficulty = np.random.default_rng(99).normal(size=PROBLEMS)
    scores = np.random.default_rng(98).normal(size=(PROBLEMS, n))
    scores = difficulty[:, None] + scores + 0.5 * np.random.default_rng([97, seed]).normal(size=scores.shape)
    rank = np.argsort(np.argsort(-scores, axis=None)).reshape(scores.shape)  # 0: the completion that is right first
    right = rank < round(correct / 100 * scores.size)
    wrong = rank >= scores.size - round(invalid / 100 * scores.size)
    assert not (right & wrong).any(), "more than all completions"
    counts = {"correct": right.sum(axis=1), "invalid": wrong.sum(axis=1)}
    if few is not None:
        counts["correct"] = with_few(few, correct, n)
        counts["invalid"] = np.minimum(counts["invalid"], n - counts["correct"])
    votes = difficulty + 0.5 * np.random.default_rng([96, seed]).normal(size=PROBLEMS)
    elected = np.argsort(np.argsort(-votes)) < round(maj / 100 * PROBLEMS)
    total = PROBLEMS * n
    shares = {name: counts[name].sum() / total for name in ("correct", "invalid")}
    return {
        "pass@1": shares["correct"],
        "correct": shares["correct"],
        "incorrect": 1 - shares["correct"] - shares["invalid"],
        "invalid": shares["invalid"],
        "n": n,
        "k": min(n, 8),
        "of_problems": {name: " ".join(map(str, scores.tolist()))
                        for name, scores in {**counts, "maj": 1000 * elected}.items()},
    }  # fmt: skip


def with_few(few: Few, correct: float, n: int) -> NDArray[np.int64]:
    """[problems] counts of which so many are exactly at `few`, the others as alike as the share of all allows."""
    share, count = few
    low = round(share / 100 * PROBLEMS)
    remaining = round(correct / 100 * PROBLEMS * n) - low * count
    assert low < PROBLEMS
    quotient, remainder = divmod(remaining, PROBLEMS - low)
    assert count < quotient < n, "the others are few too, or more than all"
    return np.array([count] * low + [quotient + 1] * remainder + [quotient] * (PROBLEMS - low - remainder))


BASE = {"correct": 30.0, "invalid": 20.0, "maj": 40.0}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    algo: str
    correct: Level  # percent of the completions after training
    settings: Mapping[str, Any] = field(default_factory=dict)
    invalid: Level = 10.0
    maj: Level = 50.0  # percent of the problems
    few: Few | None = None
    base: Mapping[str, float] = field(default_factory=dict)  # what of BASE is otherwise
    seeds: tuple[int, ...] = (0, 1, 2)
    n: int = N
    curve: Mapping[str, Sequence[float]] | None = None  # step, and pass@1 in percent; a seed's level added to it
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    lengths: Mapping[str, Level] | None = None  # mean tokens of the last evaluation's answers; the first one's are 100
    between: Sequence[Level] = ()  # pass@1 after the iterations before the last
    noted: Any = None  # what the figure's extra numbers hold of each run: one thing for all, or a function of the seed

    def records(self) -> list[dict[str, Any]]:
        return [self.record(i, seed) for i, seed in enumerate(self.seeds)]

    def record(self, i: int, seed: int) -> dict[str, Any]:
        base = {**BASE, **self.base}
        first = results(base["correct"], base["invalid"], base["maj"], n=self.n)
        last = results(of_seed(self.correct, i), of_seed(self.invalid, i, 0.1), of_seed(self.maj, i), seed=seed,
                       n=self.n, few=self.few)  # fmt: skip
        names = {"algo.name": self.algo, "data.name": "gsm8k", "model.name": "tiny", "seed": seed, "sampler.seed": seed,
                 "compose.name": "uniform", "optim.grad_clip": 1.0, "sampler.top_k": 0, "mu": "scored",
                 "algo.ratio": "sequence", "optim.lr": 1e-4, "schedule.replay": 0.0}  # fmt: skip
        record = {
            "run": f"{self.algo}_{seed}_{len(self.settings)}",
            "settings": names | dict(self.settings),
            "environment": {"git_commit": "abc"},
            "base": first,
            "final": last,
            "metrics": {"step": list(range(1, 21)), **self.metrics},
            "summary": {"n_train": 640},
        }
        if self.curve is not None:
            shift = WOBBLE[i] / 10
            record["curve"] = {"step": list(self.curve["step"])} | {
                name: [(value + shift) / 100 for value in values]
                for name, values in self.curve.items()
                if name != "step"
            }
        if self.lengths is not None:
            record["lengths"] = {"step": [0, 20]} | {
                name: [100.0, of_seed(level, i)] for name, level in self.lengths.items()
            }
        if self.between:
            record["iterations"] = [
                first, *(results(of_seed(level, i), 10, 50, seed=seed, n=self.n) for level in self.between), last
            ]  # fmt: skip
        return record

    def number(self, seed: int) -> Any:
        return self.noted(seed) if callable(self.noted) else self.noted


def of_seed(level: Level, i: int, wobble: float = 1.0) -> float:
    return level[i] if isinstance(level, tuple) else level + wobble * WOBBLE[i]


def group(algo: str, correct: Level, **options: Any) -> Group:
    """Runs that end at `correct` percent; what is no field of `Group` is a setting, its dots as two underscores."""
    fields = {name: options.pop(name) for name in list(options) if name in Group.__dataclass_fields__}
    return Group(algo, correct, {name.replace("__", "."): value for name, value in options.items()}, **fields)


@dataclass(frozen=True)
class World:
    """What was found of one model, and which of the figure's claims are then true."""

    figure: str
    what: str  # is so in it: what makes the sentences true, or false
    groups: Sequence[Group]
    rest: str  # the word of every claim that `but` does not name
    but: Mapping[str, str] = field(default_factory=dict)  # by a part of a sentence, ^ before its beginning
    extra: Mapping[str, Any] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)  # points that the evidence of a sentence begins with

    def runs(self) -> Runs:
        """All its runs, in no order."""
        records = [record for group in self.groups for record in group.records()]
        return Runs([records[i] for i in np.random.default_rng(3).permutation(len(records))])

    def numbers(self) -> dict[str, Any]:
        """The figure's extra numbers, those of single runs by their settings."""
        of_runs = {
            key_of(record): group.number(record["settings"]["seed"])
            for group in self.groups
            if group.noted is not None
            for record in group.records()
        }
        return {**self.extra, **of_runs}

    def claims(self) -> list[Claim]:
        return list(named(self.figure).judge(self.runs(), self.numbers()))

    def check(self) -> None:
        claims = self.claims()
        assert claims, self.what
        unused = {*self.but, *self.effects}
        for claim in claims:
            matching = {part for part in (*self.but, *self.effects) if part in f"^{claim.text}"}
            unused -= matching
            words = {self.but[part] for part in matching if part in self.but} or {self.rest}
            word = claim.word.replace("not shown", "reversed")
            assert words == {word}, f"{self.what}\n{claim.text}: {claim.word} ({claim.evidence})"
            for part in matching & {*self.effects}:
                number = re.search(r"[-+]\d+\.\d", claim.evidence)
                assert number is not None, claim.evidence
                assert float(number[0]) == pytest.approx(self.effects[part], abs=0.25), f"{self.what}\n{claim.text}"
        assert not unused, f"{self.figure} claims no more: {unused}"
