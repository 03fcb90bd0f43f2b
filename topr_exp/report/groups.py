"""Groups of runs: the settings that differ, and which runs are repetitions. Needs no configuration."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from topr_exp.config.identity import NOT_IDENTITY
from topr_exp.report.results import gold_answers
from topr_exp.report.runs import Run
from topr_exp.runtime.exit_status import printable
from topr_exp.runtime.jsonfiles import number
from topr_exp.types import VERDICTS, TOPRError

IGNORED = (*NOT_IDENTITY, "evaluation.every", "evaluation.problems")  # no part of a result
SEEDS = ("seed", "sampler.seed", "data.seed")  # runs that differ in these alone are repetitions
TEST = "data.test"  # no setting: numbers the test problems, where those of some runs are known to differ
FIRST = (
    "algo.name", "data.name", "model.name", "compose.name", "compose.positive_share", "effective_positive", "baseline",
)  # fmt: skip
OF_THE_BASE = ("model.", "data.", "sampler.", "evaluation.seed")  # settings that decide the base's figures
RESULTS = ("effective_positive", "baseline", "positive_share", "n_train")  # of the summary, as axes of sweep plots
SHORT = {"effective_positive": "p~", "baseline": "c", "compose.positive_share": "p", "data.seed": "data.seed"}
MISSING = "–"


@dataclass(frozen=True)
class Comparison:
    """Runs beside one another."""

    settings: list[dict[str, Any]]  # dotted key -> value of each run
    fixed: dict[str, Any]  # settings that all share, what does not matter left out
    differing: list[str]  # keys with more than one value, seeds and what does not matter left out
    keys: list[str]  # those that tell the groups apart
    labels: list[str]  # of each run's group
    groups: dict[str, list[int]]  # label -> runs, in the order of their settings, each identity once
    repeats: dict[int, int]  # run -> the one in its group with the same settings and seeds, which is counted

    @property
    def draws(self) -> list[int]:
        """A number for the seeds of each run, the same where all of them are."""
        found = [values(one, SEEDS) for one in self.settings]
        numbers = {draw: number for number, draw in enumerate(sorted(set(found)))}
        return [numbers[draw] for draw in found]

    @property
    def confounded(self) -> str:
        """Settings that differ with the keys and are not named by them, as an algorithm's are; with their values."""
        names = [key for key in self.differing if key not in self.keys and not named(key, self.keys)]
        found = {key: sorted({text(one.get(key)) for one in self.settings if one}) for key in names}
        return "; ".join(f"{key} ({', '.join(values)})" for key, values in found.items())


def group_runs(runs: list[Run]) -> Comparison:
    """Group the runs by all settings that decide a result, seeds apart, and by their test problems."""
    leaves = {key for run in runs for key, _ in flatten(run.config)}
    settings = [dict(flatten(run.config, leaves)) for run in runs]
    known = [one for one in settings if one]
    names = sorted({key for one in known for key in one if not ignored(key)}, key=rank)
    fixed = {key: known[0][key] for key in names if all(key in one for one in known) and one_value(key, known)}
    differing = [key for key in names if key not in SEEDS and not follows(key, [], known)]
    number_tests(runs, settings, differing)
    keys = telling(differing, known)
    if not follows(TEST, keys, known):
        by_seed = follows("data.seed", [*keys, TEST], known) and follows(TEST, [*keys, "data.seed"], known)
        keys.append("data.seed" if by_seed else TEST)
    # Settings that another algorithm, say, does not have.
    differing = [key for key in differing if key in keys or not (one_value(key, known) and named(key, keys))]
    labels = [label(run, one, keys) for run, one in zip(runs, settings, strict=True)]
    groups: dict[str, dict[Any, int]] = {}
    repeats = {}
    by_settings = sorted(range(len(runs)), key=lambda i: [order(settings[i].get(key)) for key in keys])
    for i in sorted(by_settings, key=lambda i: runs[i].status != "done"):
        draw = values(settings[i], SEEDS) if settings[i] else i
        counted = groups.setdefault(labels[i], {}).setdefault(draw, i)
        if counted != i:
            repeats[i] = counted
    members = {labels[i]: sorted(groups[labels[i]].values()) for i in by_settings}
    differing += [key for key in keys if key not in differing]
    return Comparison(settings, fixed, differing, keys, labels, members, repeats)


def number_tests(runs: list[Run], settings: list[dict[str, Any]], differing: list[str]) -> None:
    """Set TEST where runs are known to have been tested on different problems.

    Where a run's are not known (not evaluated yet, or its verdicts are gone), they are those of the same settings.
    """
    tests = [golds(run) for run in runs]
    numbers = {test: i for i, test in enumerate(dict.fromkeys(test for test in tests if test), 1)}
    if len(numbers) < 2:
        return
    alike: dict[tuple[str, ...], set[str]] = {}
    for one, test in zip(settings, tests, strict=True):
        alike.setdefault(values(one, differing), set()).update({test} if test else ())
    for one, test in zip(settings, tests, strict=True):
        others = alike[values(one, differing)]
        if one:
            one[TEST] = numbers.get(test or (next(iter(others)) if len(others) == 1 else ""))


def golds(run: Run) -> str:
    """The answers to a run's test problems in one text; empty where they are not known."""
    try:
        return str(gold_answers(run))
    except TOPRError:
        return ""


def flatten(value: Any, leaves: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings by dotted key.

    leaves: keys that are null, or empty, in another run: a group within a group in their place is a value of theirs.
    """
    for key, item in value.items():
        if not isinstance(item, dict) or not item or (prefix and f"{prefix}{key}" in leaves):
            yield f"{prefix}{key}", item
        if isinstance(item, dict):
            yield from flatten(item, leaves, f"{prefix}{key}.")


def ignored(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in IGNORED)


def rank(key: str) -> tuple[int, str]:
    """The order of keys in labels: what readers look for first, then by name."""
    return (FIRST.index(key) if key in FIRST else len(FIRST), key)


def named(key: str, keys: list[str]) -> bool:
    """Check that a setting belongs to a group that is among the keys, or whose name is, as an algorithm's do."""
    return f"{key.partition('.')[0]}.name" in keys or any(key.startswith(f"{other}.") for other in keys)


def one_value(key: str, settings: list[dict[str, Any]]) -> bool:
    """Check that a setting is the same in all runs that have it."""
    return len({exact(one[key]) for one in settings if key in one}) < 2


def exact(value: Any) -> str:
    """A value as it is compared; a whole number is the same with and without a point."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True, default=str)


def values(settings: dict[str, Any], keys: Iterable[str]) -> tuple[str, ...]:
    """The values of some settings as they are compared; one that is missing counts as null."""
    return tuple(exact(settings.get(key)) for key in keys)


def telling(names: Iterable[str], settings: list[dict[str, Any]]) -> list[str]:
    """Those of the settings that tell runs apart; the others follow from them."""
    keys: list[str] = []
    for key in names:
        if not follows(key, keys, settings):
            keys.append(key)
    return keys


def follows(key: str, others: list[str], settings: list[dict[str, Any]]) -> bool:
    """Check that the values of `others` decide that of `key` in all runs."""
    decided: dict[tuple[str, ...], str] = {}
    return all(decided.setdefault(values(one, others), exact(one.get(key))) == exact(one.get(key)) for one in settings)


def order(value: Any) -> tuple[int, float, str]:
    """A key to sort settings by: nothing first, then numbers by their size, then texts."""
    if value is None:
        return (0, 0.0, "")
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, text(value))


def label(run: Run, settings: dict[str, Any], keys: list[str]) -> str:
    """A group's name: the values that tell it from the others."""
    if not settings:
        return f"{run.path} (settings unknown)"
    if not keys:
        return text(settings.get("algo.name")) if "algo.name" in settings else run.name
    return ", ".join(tell(key, settings) for key in keys)


def tell(key: str, settings: dict[str, Any]) -> str:
    """A setting in a label: key=value, of names the value alone; of most keys the last part is clear enough."""
    value = text(settings.get(key))
    return value if key.endswith(".name") else f"{SHORT.get(key, key.rpartition('.')[2])}={value}"


def text(value: Any) -> str:
    """A value as it stands in a label: different values are different texts."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {text(item)}' for key, item in value.items())}}}"
    return printable(value, keep="") if isinstance(value, str) and plain(value) else json.dumps(value)


def plain(value: str) -> bool:
    """Check that a text can't be read as another value, or as several."""
    try:
        float(value)
    except ValueError:
        return value not in (MISSING, "true", "false") and value[:1] not in ("[", "{", '"') and ", " not in value
    return False


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
    figures = {tuple(run.figure("base", name) for name in ("pass@1", *VERDICTS)) for run in runs}
    if len({each for each in figures if any(value is not None for value in each)}) < 2:
        return {"base": runs}
    known = [one for one in comparison.settings if one]
    keys = telling((key for key in comparison.differing if key.startswith(OF_THE_BASE)), known)
    found: dict[str, list[Run]] = {}
    for i, (run, settings) in enumerate(zip(runs, comparison.settings, strict=True)):
        if i not in comparison.repeats:
            found.setdefault(", ".join(["base", *(tell(key, settings) for key in keys)]), []).append(run)
    return found


def axes(runs: list[Run], comparison: Comparison) -> dict[str, list[float | None]]:
    """Candidates for the x axis of a sweep: numbers that differ, of the settings or of the results, by run."""
    found = {
        key: [number(one.get(key)) for one in comparison.settings] for key in comparison.differing if key not in RESULTS
    }
    found |= {key: [run.figure(key) for run in runs] for key in RESULTS}
    # p~ and p first: what the paper sweeps.
    order = [*RESULTS, *(key for key in found if key not in RESULTS)]
    return {key: found[key] for key in order if len({value for value in found[key] if value is not None}) > 1}
