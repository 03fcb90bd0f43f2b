"""Evaluations of runs, problem by problem, and scores of groups with intervals over seeds and problems at once.

Who ended best, by how much, and how sure that is.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.draws import INVALID
from topr_exp.evaluation.intervals import Interval, crossed_interval, t_interval
from topr_exp.evaluation.statistics import headline_k, measure
from topr_exp.report.runs import DAMAGE, Run
from topr_exp.runs.records import Record
from topr_exp.runtime.exit_status import plural
from topr_exp.runtime.files import number
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

SHARES = ("pass@1", *VERDICTS)
DIGITS = 6  # of what is written; a second machine has to agree in all of them
Matrix = NDArray[np.float64]  # [seeds, problems]
REWARD = "mean_reward"  # of an evaluation, where rewards are graded: no share
MOST = 5  # groups that the sentence names
Groups = Mapping[str, Sequence[Run]]  # label -> repetitions


class Runs(Sequence[Record]):
    """Records, by seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = sorted(records, key=lambda record: int(record["settings"]["seed"]))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    @property
    def seeds(self) -> list[int]:
        return [int(record["settings"]["seed"]) for record in self]

    def values(self, name: str = "pass@1", part: str = "final") -> Matrix:
        """[seeds, problems] a share of each problem's completions: pass@1, invalid, or maj (the headline maj@K)."""
        return np.stack([of_problems(record[part], name) for record in self])

    def interval(self, name: str = "pass@1", part: str = "final") -> Interval:
        """Over seeds and problems."""
        return crossed_interval(self.values(name, part))


def of_problems(results: Record, name: str) -> NDArray[np.float64]:
    """A share of each problem's completions; of a verifier's, which reads several solutions to it, their mean.

    A verifier is asked of the first solutions to all problems, then of the second ones, and so on.
    """
    kinds = results["of_problems"]
    if name.startswith("maj"):
        return unpacked(kinds["maj"]) / 1000
    if name == "incorrect":
        counts = results["n"] - unpacked(kinds["correct"]) - unpacked(kinds["invalid"])
    else:
        counts = unpacked(kinds[{"pass@1": "correct"}.get(name, name)])
    shares = counts / results["n"]
    return np.asarray(shares.reshape(results.get("solutions", 1), -1).mean(axis=0))


def contrast(combine: Callable[..., Matrix], *groups: Runs, name: str = "pass@1") -> Interval | None:
    """An interval of a combination of several groups' values, problem by problem, over the seeds that all have.

    combine: what is made of their [S, P] matrices, in order. None where they share no seed.
    """
    shared = sorted(set.intersection(*({*group.seeds} for group in groups))) if groups else []
    if not shared:
        return None
    paired = (Runs([group[group.seeds.index(seed)] for seed in shared]) for group in groups)
    return crossed_interval(combine(*(group.values(name) for group in paired)))


def difference(first: Runs, second: Runs, name: str = "pass@1") -> Interval | None:
    """second − first, paired by seed (which decides the training completions) and by problem."""
    return contrast(lambda a, b: b - a, first, second, name=name)


def gain(runs: Runs, name: str = "pass@1") -> Interval | None:
    """final − base."""
    return crossed_interval(runs.values(name) - runs.values(name, "base")) if len(runs) else None


# ---- from run folders


def records(runs: Iterable[Run], *parts: str) -> Runs:
    """The parts (base, final) of some runs, with their draws as seeds. TOPRError where one can't be read."""
    found = []
    for run in runs:
        for part in set(parts) - run.tested.keys():
            with readable(run):
                evaluation = run.evaluations[0 if part == "base" else -1]
                run.tested[part] = results(run, {**evaluation, "verdicts": verdicts(run, evaluation)})
        found.append({"settings": {"seed": run.draw}, **{part: run.tested[part] for part in parts}})
    return Runs(found)


def verdicts(run: Run, evaluation: Record) -> Path:
    """Find the verdicts of an evaluation, in the run's store or the shared one, wherever these are now."""
    name = Path(evaluation.get("verdicts", "")).name
    places = [folder / "store" / "verdicts" / name for folder in (run.path, run.path.resolve().parents[1])]
    found = next((place for place in places if name and place.exists()), None)
    if found is None:
        raise TOPRError(f"{run.name}: the verdicts of its evaluation are gone")
    return found


def gold_answers(run: Run) -> str:
    """The answers to the problems that a run was tested on last, in one text."""
    with readable(run):
        place = verdicts(run, run.evaluations[-1])
        return str(Store(place.parent.parent).open(place).key["golds"])


@contextlib.contextmanager
def readable(run: Run) -> Iterator[None]:
    """Make one TOPRError of whatever damaged settings, evaluations or verdicts lead to."""
    try:
        yield
    except DAMAGE as error:
        raise TOPRError(f"{run.name}: its verdicts can't be read ({' '.join(str(error).split())[:100]})") from error


def results(run: Run, record: Record) -> Record:
    """An evaluation's shares, and of each problem the correct and invalid completions and maj@K."""
    asked = run.config.get("task", {}).get("test_solutions")
    solutions = 1 if asked is None else int(asked)  # that a verifier reads of each
    if missing := [name for name in SHARES if number(record.get(name)) is None]:
        raise TOPRError(f"{run.name}: its evaluation has no {missing[0]}")
    place = Path(record["verdicts"])
    table = Store(place.parent.parent).open(place)
    columns, problems = table.read(["verdict", "class"]), len(table.key["golds"])
    if len(columns) % problems or solutions < 1 or problems % solutions:
        raise TOPRError(f"{run.name}: {place} does not hold the same number of verdicts on each of its problems")
    codes = np.array([VERDICTS.index(name) for name in columns["verdict"].to_pylist()], np.int8).reshape(problems, -1)
    n, k = codes.shape[1], headline_k(codes.shape[1])
    majority = measure(codes, columns["class"].to_numpy().reshape(-1, n)).maj_at[k]
    counts = {
        "correct": packed(np.sum(codes == 0, axis=1)),
        "invalid": packed(np.sum(codes == INVALID, axis=1)),
        "maj": packed(np.rint(1000 * majority).astype(int)),  # per mille
    }
    found = {name: rounded(record[name]) for name in SHARES} | {"n": n, "k": k, "of_problems": counts}
    return found if asked is None else {**found, "solutions": solutions}


def packed(counts: Iterable[int]) -> str:
    """Whole numbers in one string, which JSON keeps on one line."""
    return " ".join(str(int(count)) for count in counts)


def unpacked(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.float64)


def rounded(value: float | None) -> float | None:
    """To DIGITS significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


# ---- scores of groups


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Interval | None:
    """The mean of a share, or of REWARD, over repetitions with its interval; final figures are of finished runs.

    Over seeds and problems where the verdicts are there, else over seeds; of one run, or where all have the same
    completions, over problems.
    """
    known = [run for run in runs if run.figure(part, name) is not None and (part == "base" or run.status == "done")]
    if not known:
        return None
    own = measured(known[0].summary[part], name)
    if len({Path(str(run.summary[part].get("verdicts", run.path))).name for run in known}) == 1:
        if not math.isnan(own.low):
            return own
        known = known[:1]
    if name != REWARD:
        with contextlib.suppress(TOPRError):  # the verdicts are gone
            return records(known, part).interval(name, part)
    values = [run.summary[part][name] for run in known]
    return t_interval(values, share=name != REWARD) if len(set(values)) > 1 else own


def measured(evaluation: Record, name: str) -> Interval:
    """A figure as its run measured it, with its interval over problems, else 1.96 standard errors."""
    name = "pass@1" if name == "correct" else name
    value, (curve, _, k) = float(evaluation[name]), name.partition("@")
    low = high = None
    with contextlib.suppress(*DAMAGE):
        low, high = (number(evaluation[f"{curve}@k"][k][end]) for end in ("low", "high"))
    if low is None or high is None:
        if (error := number(evaluation.get(f"{name}_se"))) is None:
            return Interval(value)
        low, high = value - 1.96 * error, value + 1.96 * error
    return Interval(value, low, high)


def headlines(runs: Sequence[Run]) -> list[str]:
    """The figures that these runs are told by: pass@1, the mean reward where there is one, maj@K of the largest K."""
    names = {name for run in runs for name in run.summary.get("final", run.summary.get("base", {}))}
    ks = [int(name[4:]) for name in names if name.startswith("maj@") and name[4:].isdigit()]
    return ["pass@1", *[REWARD] * (REWARD in names), *(f"maj@{k}" for k in sorted(ks)[-1:])]


def printed(runs: Sequence[Run], name: str, part: str = "final") -> str:
    """An estimate for people: shares in percent."""
    found = estimate(runs, name, part)
    return "–" if found is None else found.written(".3g") if name == REWARD else found.percent()


def best_first(groups: Groups) -> Groups:
    """Order groups by their final pass@1, those without one last."""
    found = {label: estimate(runs, "pass@1") for label, runs in groups.items()}
    values = {label: -1.0 if each is None else each.value for label, each in found.items()}
    return {label: groups[label] for label in sorted(groups, key=lambda label: -values[label])}


# ---- groups beside one another


def minus(runs: Sequence[Run], reference: Sequence[Run], name: str) -> Interval | str:
    """The final figure of some runs minus that of others, paired by seed and problem; else why there is none."""
    try:
        if len({gold_answers(run) for run in (*reference, *runs)}) > 1:
            return "other test problems"
        found = difference(records(reference, "final"), records(runs, "final"), name)
    except TOPRError as error:
        return str(error)
    return found if found is not None else "no seed in common"


def versus(groups: Groups, references: Mapping[str, str | None], head: str, name: str) -> list[dict[str, str]]:
    """A row for each group of finished runs: its figure, and the difference to its reference (None: it has none)."""
    rows = []
    for label, runs in groups.items():
        score, reference = estimate(runs, name), references[label]
        row = {f"{name}, %": label, "runs": str(len(runs)), "mean": printed(runs, name)}
        row |= {"over": score.over if score is not None else "", f"minus {head}": "", " ": ""}
        if reference != label:
            found = "nothing to compare with" if reference is None else minus(runs, groups[reference], name)
            told = (found, "") if isinstance(found, str) else (found.percent(sign=True), found.over)
            row |= zip((f"minus {head}", " "), told, strict=True)
        rows.append(row)
    return rows


def ranking(groups: Groups) -> tuple[str, list[dict[str, str]]]:
    """Say who ended best, and of which others that is not sure; rows of `versus`. groups: best first."""
    done = {label: found for label, runs in groups.items() if (found := [run for run in runs if run.status == "done"])}
    if not done:
        return "No run has finished yet.", []
    best, runs = next(iter(done.items()))
    ended = f"{printed(runs, 'pass@1')} % pass@1 ({plural(len(runs), 'run')})"
    if len(done) == 1:
        return f"{best} went from {printed(runs, 'pass@1', 'base')} to {ended}{gained(runs)}.", []
    compared = {label: minus(done[label], runs, "pass@1") for label in done if label != best}
    known = {label: each for label, each in compared.items() if isinstance(each, Interval)}
    below = [label for label, each in known.items() if each.high < 0]
    kinds = {
        "Below it, each beyond its own 95 % interval": below,
        "Not told apart from it": [label for label in known if label not in below],
        "Not compared": [label for label in compared if label not in known],
    }
    said = [f"{best} has the highest mean, {ended}."]
    for words, labels in kinds.items():
        if labels:
            rest = [f"{len(labels) - MOST} more"] * (len(labels) > MOST)
            said.append(f"{words}: {'; '.join([*labels[:MOST], *rest])}.")
    return " ".join(said), versus(done, dict.fromkeys(done, best), best, "pass@1")


def gained(runs: Sequence[Run]) -> str:
    with contextlib.suppress(TOPRError):  # the verdicts are gone
        if (found := gain(records(runs, "base", "final"))) is not None:
            return f", by {found.percent(sign=True)} points"
    return ""
