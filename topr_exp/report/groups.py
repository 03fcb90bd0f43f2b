"""Groups of runs: the settings that differ, which runs are repetitions; and both as tables. Needs no configuration."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import Groups, estimate, headlines, printed
from topr_exp.report.results import gold_answers
from topr_exp.report.runs import Run, was_cut_off
from topr_exp.runtime.json_files import as_number
from topr_exp.runtime.terminal import printable
from topr_exp.schema import NOT_IDENTITY, flatten
from topr_exp.types import VERDICTS, TOPRError

IGNORED = (*NOT_IDENTITY, "evaluation.every")  # no part of a result
SEEDS = ("seed", "sampler.seed", "data.seed")  # runs that differ in these alone are repetitions
TEST = "data.test"  # no setting: numbers the test problems, where those of some runs are known to differ
FIRST = (
    "algo.name", "data.name", "model.name", "compose.name", "compose.positive_share", "effective_positive", "baseline",
)  # fmt: skip
SHORT = {"effective_positive": "p̃", "baseline": "c", "compose.positive_share": "p"}
MISSING = "not set"  # of a setting that is null
OF_SUMMARY = ("baseline", "effective_positive", "positive_share", "n_train", "truncated_share")
OF_RUN = ("run", "folder", "status", "notes", "group", "updates", "seconds")
CUT_OFF = {  # title of a column -> where a summary has the share of completions that the token limit cut off
    "final cut off": ("final", "truncated_share"),
    "base cut off": ("base", "truncated_share"),
    "training cut off": ("truncated_share",),
}
FORMULAS = ("=", "+", "@", "\t", "\r")  # how text begins that a spreadsheet would compute


@dataclass(frozen=True)
class Comparison:
    """Runs beside one another."""

    groups: dict[str, list[Run]]  # label -> repetitions, in the order of their settings, each identity once
    keys: list[str]  # settings that tell the groups apart
    differing: list[str]  # those with more than one value, seeds and what does not matter left out
    fixed: list[str]  # those that all share
    repeats: dict[str, str]  # run -> the one in its group with the same settings and seeds, which is counted
    runs: Sequence[Run]

    def texts(self, key: str) -> list[str]:
        """The setting's value in each run that has settings."""
        return [text(run.settings.get(key)) for run in self.runs if run.settings]

    @property
    def confounded(self) -> str:
        """Settings that differ with the keys and are not named by them, as an algorithm's are; with their values."""
        named = tuple(f"{key.removesuffix('name')}" if key.endswith(".name") else f"{key}." for key in self.keys)
        others = [key for key in self.differing if key not in self.keys and not key.startswith(named)]
        return "; ".join(f"{key} ({', '.join(sorted({*self.texts(key)}))})" for key in others)


def group_runs(runs: Sequence[Run]) -> Comparison:
    """Group the runs by all settings that decide a result, seeds apart, and by their test problems."""
    leaves = {key for run in runs for key, _ in flatten(run.config)}
    for run in runs:
        run.settings = dict(flatten(run.config, leaves))
    known = [run for run in runs if run.settings]
    table = pd.DataFrame([{key: exact(value) for key, value in run.settings.items()} for run in known])
    table = table.reindex(columns=sorted({*table, *SEEDS}, key=rank)).fillna(exact(None))
    varied = table.columns[table.nunique() > 1]
    names = [key for key in table if not any(key == name or key.startswith(f"{name}.") for name in IGNORED)]
    differing = [key for key in names if key in varied and key not in SEEDS]
    fixed = [key for key in names if key not in varied and key not in SEEDS]
    golds = pd.Series([golds_of(run) for run in known], dtype=object)
    table[TEST] = pd.Series(golds.factorize()[0] + 1) * (golds.nunique() > 1)  # 0 for all, and where it is not known
    for run, test in zip(known, table[TEST], strict=True):
        run.settings[TEST] = test or None
    keys: list[str] = []  # that tell runs apart; the others follow from them
    for key in (*differing, TEST):
        if not (table.groupby(keys or (lambda _: 0))[key].nunique() <= 1).all():
            keys.append(key)
    draws = [tuple(exact(run.settings.get(key)) for key in SEEDS) for run in runs]
    for run, draw in zip(runs, draws, strict=True):
        run.group, run.draw = label(run, keys), sorted({*draws}).index(draw)
    groups: dict[str, dict[int, Run]] = {}
    repeats = {}
    for run in sorted(runs, key=lambda run: ([order(run.settings.get(key)) for key in keys], run.status != "done")):
        counted = groups.setdefault(run.group, {}).setdefault(run.draw, run)
        if counted is not run:
            repeats[run.name] = counted.name
    members = {name: [*each.values()] for name, each in groups.items()}
    return Comparison(members, keys, list(dict.fromkeys([*differing, *keys])), fixed, repeats, runs)


def golds_of(run: Run) -> str | None:
    with contextlib.suppress(TOPRError):
        return gold_answers(run)
    return None


def rank(key: str) -> tuple[int, str]:
    return (FIRST.index(key) if key in FIRST else len(FIRST), key)


def exact(value: Any) -> str:
    """A value as it is compared; a whole number is the same with and without a point."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True, default=str)


def order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    return (1, float(value), "") if isinstance(value, (int, float)) else (2, 0.0, text(value))


def label(run: Run, keys: list[str]) -> str:
    """A group's name: the values that tell it from the others."""
    if not run.settings:
        return f"{run.path} (settings unknown)"
    if not keys:
        return text(run.settings.get("algo.name", run.name))
    return ", ".join(tell(key, run) for key in keys)


def tell(key: str, run: Run) -> str:
    """A setting in a label: key=value, of names the value alone; of most keys the last part is clear enough."""
    value = text(run.settings.get(key))
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


# ---- as data frames, and these as CSV and LaTeX


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """A row a run, as `topr_exp.read_runs` names the columns."""
    names, rows = [*headlines(runs), *VERDICTS], []
    for run in runs:
        seconds = run.summary.get("seconds")
        spent = [as_number(one) or 0.0 for one in seconds.values()] if isinstance(seconds, dict) else []
        told = {f"{key} (setting)" if key in (*OF_SUMMARY, *OF_RUN) else key: run.settings[key] for key in run.settings}
        rows.append(
            {"run": run.name, "folder": str(run.path), "status": run.status, "notes": run.notes, "group": run.group}
            | told
            | {name: run.figure(name) for name in OF_SUMMARY}
            | {"updates": len(run.updates), "seconds": sum(spent) if spent else None}
            | {f"{part}_truncated_share": run.figure(part, "truncated_share") for part in ("base", "final")}
            | estimates([run], names)
        )
    return pd.DataFrame(rows).set_index("run")


def groups_frame(comparison: Comparison) -> pd.DataFrame:
    """A row a group: means over its runs with 95 % intervals, and what the intervals are over."""
    names, rows = [*headlines(comparison.runs), *VERDICTS], []
    for label, runs in comparison.groups.items():
        keys = {key: text(runs[0].settings.get(key)) for key in comparison.keys}
        rows.append({"group": label, **keys, "runs": len(runs)} | estimates(runs, names))
    return pd.DataFrame(rows).set_index("group")


def estimates(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for part in ("base", "final"):
        for name in names:
            row |= columns_of(f"{part}_{name}", estimate(runs, name, part))
    return row


def columns_of(name: str, found: Interval | None) -> dict[str, Any]:
    ends = found.as_dict().values() if found is not None else (None, None, None)
    over = {f"{name}_interval_over": found.over if found is not None else None}
    return dict(zip((f"{name}{end}" for end in ("", "_low", "_high")), ends, strict=True)) | over


def as_csv(frame: pd.DataFrame) -> str:
    """CSV that a spreadsheet shows and does not compute: text that looks like a formula gets an apostrophe."""
    safe = frame.reset_index().map(lambda cell: f"'{cell}" if str(cell).startswith(FORMULAS) else cell)
    return str(safe.to_csv(index=False, lineterminator="\n"))


def groups_tex(comparison: Comparison) -> str:
    r"""The groups as a LaTeX tabular (needs \usepackage{booktabs}), in percent with 95 % intervals."""
    tex = pd.DataFrame(group_rows(comparison, comparison.groups)).to_latex(index=False, escape=True)
    for character, shown in (("<", r"\textless{}"), (">", r"\textgreater{}"), ("–", "--"), ("p̃", r"$\tilde{p}$")):
        tex = tex.replace(character, shown)
    return f"% Percent (mean_reward as it is); 95 % intervals over a group's runs and the test problems.\n{tex}"


# ---- for people: shares in percent


def group_rows(comparison: Comparison, groups: Groups) -> list[dict[str, Any]]:
    return [{"group": label, "runs": len(runs)} | scores(comparison, runs) for label, runs in groups.items()]


def run_rows(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {"run": run.name, "status": run.status, "updates": len(run.updates)}
        | {key: text(run.settings.get(key)) for key in [*comparison.keys, "seed"]}
        | scores(comparison, [run])
        for run in comparison.runs
    ]


def scores(comparison: Comparison, runs: Sequence[Run]) -> dict[str, str]:
    """Estimates of runs after and before training by their titles."""
    names = [*headlines(comparison.runs), "invalid"]
    found = {f"{part} {name}": printed(runs, name, part) for part in ("final", "base") for name in names}
    if any(map(was_cut_off, comparison.runs)):
        found |= {title: cut_off(runs, *path) for title, path in CUT_OFF.items()}
    return found


def cut_off(runs: Sequence[Run], *path: str) -> str:
    """The mean share of completions that the token limit cut off, in percent."""
    shares = [share for run in runs if (share := run.figure(*path)) is not None]
    return f"{100 * sum(shares) / len(shares):.1f}" if shares else "–"
