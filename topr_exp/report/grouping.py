"""Groups of runs that differ in nothing but their seeds, named by the settings that tell them apart."""

import contextlib
import dataclasses
import importlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from topr_exp.config.retired import RETIRED
from topr_exp.report.estimates import Groups, best_first
from topr_exp.report.reader import FAILED, Run, find_runs
from topr_exp.report.repetitions import Repetitions, gold_answers, read_repetitions
from topr_exp.runtime.terminal import plural, printable
from topr_exp.schema import NOT_IDENTITY, default_of, flatten, is_number, plain
from topr_exp.types import TOPRError

IGNORED_KEYS = (*NOT_IDENTITY, *RETIRED, "evaluation.every")  # do not change a result
SEED_KEYS = ("seed", "sampler.seed", "data.seed")  # runs that differ in these alone are repetitions
TEST_KEY = "data.test"  # no setting: numbers the test problems, where those of some runs are known to differ
FIRST_KEYS = (
    "algo.name", "data.name", "model.name", "compose.name", "compose.positive_share", "effective_positive", "baseline",
)  # fmt: skip
SHORT_KEYS = {"effective_positive": "p̃", "baseline": "c", "compose.positive_share": "p"}
NAMING_GROUPS = ("algo", "data", "model")  # whose names stand for all of their settings
NULL_TEXT = "not set"


@dataclass(frozen=True)
class RunGroups:
    """Runs in groups of repetitions."""

    groups: dict[str, list[Run]]  # label -> repetitions, in the order of their settings, each identity once
    keys: list[str]  # settings that tell the groups apart
    differing: list[str]  # settings with more than one value; seeds and what changes no result left out
    fixed: list[str]  # settings that all runs share
    repeats: dict[str, str]  # run -> the run of its group with the same settings and seeds, which is counted
    runs: Sequence[Run]

    @cached_property
    def ranking(self) -> Groups:
        """The groups by their final pass@1, best first."""
        return best_first(self.groups)

    def value_texts(self, key: str) -> list[str]:
        """The setting's value in each run that has settings."""
        return [value_text(run.settings.get(key)) for run in self.runs if run.settings]

    @property
    def confounded(self) -> str:
        """Settings that differ with the keys and are not named by them, as an algorithm's are; with their values."""
        texts = []
        for key in self.differing:
            if key not in self.keys and not self.is_named(key):
                values = sorted(set(self.value_texts(key)))
                texts.append(f"{key} ({', '.join(values)})")
        return "; ".join(texts)

    def is_named(self, key: str) -> bool:
        """Return True where the name of an algorithm, data or model says the value, as algo.name that of algo.b_neg.

        The name of another group, as compose.name, says the values of the settings that only some of its choices have.
        """
        group = key.partition(".")[0]
        name_key = f"{group}.name"
        runs = [run for run in self.runs if run.settings]
        if name_key not in self.keys or not is_determined_by(name_key, key, runs):
            return False
        if group in NAMING_GROUPS:
            return True
        return not all(key in run.settings for run in runs)


def is_determined_by(name_key: str, key: str, runs: Sequence[Run]) -> bool:
    """Return True where runs with equal values of `name_key` have equal values of `key`."""
    value_by_name: dict[str, str] = {}
    for run in runs:
        name = canonical(run.settings.get(name_key))
        value = canonical(run.settings.get(key))
        if value_by_name.setdefault(name, value) != value:
            return False
    return True


def group_runs(runs: Sequence[Run]) -> RunGroups:
    """Group runs by all settings that decide a result, seeds apart, and by their test problems."""
    runs = with_settings(runs)
    table = settings_table([run for run in runs if run.settings])
    differing = []
    fixed = []
    for key in filter(decides_result, table.columns):
        if table[key].nunique() > 1:
            differing.append(key)
        else:
            fixed.append(key)
    keys = distinguishing_keys(table, [*differing, TEST_KEY])
    runs = with_groups(runs, keys)

    groups: dict[str, list[Run]] = {}
    counted_runs: dict[tuple[str, int], Run] = {}  # by group and seed index
    repeats = {}
    for run in sorted(runs, key=lambda run: sort_key(run, keys)):
        counted_run = counted_runs.setdefault((run.group, run.seed_index), run)
        if counted_run is run:
            groups.setdefault(run.group, []).append(run)
        else:
            repeats[run.name] = counted_run.name
    if TEST_KEY in keys:
        differing.append(TEST_KEY)
    return RunGroups(groups, keys, differing, fixed, repeats, runs)


def read_groups(*folders: str | Path) -> dict[str, Repetitions]:
    """Read the finished runs in and below some folders by group, with the names of `topr_exp.compare_runs`.

    A seed numbers the seeds of all these runs, so that groups of one call can be paired. TOPRError where no run is
    finished, or the verdicts of one are gone.
    """
    runs = find_runs(map(Path, folders))
    finished_runs = [run for run in runs if run.is_done]
    if not finished_runs:
        raise TOPRError(f"none of {plural(len(runs), 'run')} there is finished")
    groups = group_runs(finished_runs).groups
    return {label: read_repetitions(members, "base", "final") for label, members in groups.items()}


def count_failed(run_groups: RunGroups, runs: Sequence[Run]) -> Counter[str]:
    """How many of some runs failed, by the label of their group; those that ended in another folder are left out."""
    grouped_seeds = {(run.group, seeds_of(run)) for run in run_groups.runs}
    failed_counts = Counter[str]()
    for run in with_settings([run for run in runs if run.status == FAILED]):
        label = group_label(run, run_groups.keys)
        if (label, seeds_of(run)) not in grouped_seeds:
            failed_counts[label] += 1
    return failed_counts


def decides_result(key: str) -> bool:
    """Return False for seeds, test problems and settings that change no result."""
    if key in SEED_KEYS or key == TEST_KEY:
        return False
    return not any(key == name or key.startswith(f"{name}.") for name in IGNORED_KEYS)


def with_settings(runs: Sequence[Run]) -> list[Run]:
    """Runs with their settings by dotted key; TEST_KEY numbers their test problems, where these differ."""
    leaf_keys: set[str] = set()  # a group of settings that is null in another run is a setting, too
    for run in runs:
        leaf_keys |= dict(flatten(run.config)).keys()
    golds_of_runs = list(map(read_golds, runs))
    distinct_golds = dict.fromkeys(golds for golds in golds_of_runs if golds is not None)
    test_numbers: dict[str | None, int] = {}
    if len(distinct_golds) > 1:
        test_numbers = {golds: number for number, golds in enumerate(distinct_golds, start=1)}
    runs_with_settings = []
    for run, golds in zip(runs, golds_of_runs, strict=True):
        settings = dict(flatten(run.config, leaf_keys))
        if settings:
            settings = loss_defaults(settings.get("algo._target_")) | settings
            settings[TEST_KEY] = test_numbers.get(golds)
        runs_with_settings.append(replace(run, settings=settings))
    return runs_with_settings


def loss_defaults(target: Any) -> dict[str, Any]:
    """The defaults of a shipped loss by dotted key: what runs of a version before these settings had."""
    module, _, name = str(target).rpartition(".")
    if not module.startswith("topr_exp.algorithms."):  # code that a run's folder names does not run
        return {}
    try:
        loss = getattr(importlib.import_module(module), name)
        fields = dataclasses.fields(loss)
    except (ImportError, AttributeError, TypeError):  # of another version
        return {}
    defaults = {}
    for field in fields:
        default = default_of(field)
        if default is not dataclasses.MISSING:
            defaults[f"algo.{field.name}"] = plain(default)
    return defaults


def read_golds(run: Run) -> str | None:
    """The gold answers of a run's test problems as one text; None where its settings or verdicts are gone."""
    with contextlib.suppress(TOPRError):
        if run.config:
            return gold_answers(run)
    return None


def settings_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Tabulate settings as `canonical` texts, a row a run, the keys in the order in which they name groups."""
    rows = []
    for run in runs:
        rows.append({key: canonical(value) for key, value in run.settings.items()})
    table = pd.DataFrame(rows)
    keys = {*table.columns, *SEED_KEYS, TEST_KEY}
    ordered_table = table.reindex(columns=sorted(keys, key=key_rank))
    return ordered_table.fillna(canonical(None))


def distinguishing_keys(table: pd.DataFrame, candidates: Sequence[str]) -> list[str]:
    """The keys that tell runs apart; the other candidates follow from them."""
    keys: list[str] = []
    group_count = 1
    for key in candidates:
        finer_groups = table[[*keys, key]].drop_duplicates()
        if len(finer_groups) > group_count:
            keys.append(key)
            group_count = len(finer_groups)
    return keys


def with_groups(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """Runs with the label of their group, and the index of their seeds."""
    seeds_of_runs = list(map(seeds_of, runs))
    distinct_seeds = sorted(set(seeds_of_runs))
    grouped_runs = []
    for run, seeds in zip(runs, seeds_of_runs, strict=True):
        label = group_label(run, keys)
        grouped_runs.append(replace(run, group=label, seed_index=distinct_seeds.index(seeds)))
    return grouped_runs


def seeds_of(run: Run) -> tuple[str, ...]:
    return tuple(canonical(run.settings.get(key)) for key in SEED_KEYS)


def key_rank(key: str) -> tuple[int, str]:
    if key in FIRST_KEYS:
        return FIRST_KEYS.index(key), key
    return len(FIRST_KEYS), key


def canonical(value: Any) -> str:
    """A value as it is compared; a whole number is the same with and without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


class Rank(NamedTuple):
    """The place of a value in an order: null, then numbers by size, then texts."""

    kind: int
    number: float
    text: str


def value_rank(value: Any) -> Rank:
    text = value_text(value)
    if value is None:
        return Rank(0, 0.0, text)
    if isinstance(value, (int, float)):
        return Rank(1, float(value), text)
    return Rank(2, 0.0, text)


def sort_key(run: Run, keys: Sequence[str]) -> tuple[list[Rank], bool]:
    """Order runs by their values of the keys, then finished ones first."""
    ranks = [value_rank(run.settings.get(key)) for key in keys]
    return ranks, not run.is_done


# ---- labels


def group_label(run: Run, keys: Sequence[str]) -> str:
    """A group's name: the values that tell it from the others."""
    if not run.settings:
        return f"{run.path} (settings unknown)"
    if not keys:
        return value_text(run.settings.get("algo.name", run.name))
    return settings_text(keys, run)


def settings_text(keys: Sequence[str], run: Run) -> str:
    return ", ".join(setting_text(key, run) for key in keys)


def setting_text(key: str, run: Run) -> str:
    """A setting in a label: key=value, of names the value alone; of most keys the last part is clear enough."""
    value = value_text(run.settings.get(key))
    if key.endswith(".name"):
        return value
    last_part = key.rpartition(".")[2]
    return f"{SHORT_KEYS.get(key, last_part)}={value}"


def value_text(value: Any) -> str:
    """A value as it stands in a label: different values are different texts."""
    if value is None:
        return NULL_TEXT
    if isinstance(value, float):
        short_text = f"{value:g}"
        if float(short_text) == value:
            return short_text
        return repr(value)
    if isinstance(value, dict):
        items = [f"{key}: {value_text(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, str) and is_unambiguous(value):
        return printable(value, keep="")
    return json.dumps(value)


def is_unambiguous(text: str) -> bool:
    """Return True for a text that can't be read as another value, or as several."""
    if text in (NULL_TEXT, "true", "false") or text.startswith(("[", "{", '"')) or ", " in text:
        return False
    return not is_number(text)
