"""A check: figures whose runs were computed again, compared with what is recorded of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.figure import Figure
from reproduce.jobs import Need
from topr_exp.report.results import SHARES
from topr_exp.report.selection import Runs
from topr_exp.runs.console import plural
from topr_exp.runs.records import Record


@dataclass
class Check:
    """What running a figure again gave."""

    figure: Figure
    stored: dict[str, Any]  # the figure's file
    missing: list[str] = field(default_factory=list)  # why a run can't be compared
    again: dict[str, Record] = field(default_factory=dict)  # by identity; of recorded runs

    @property
    def differing(self) -> dict[str, list[str]]:
        """Of each run that is not the recorded one to the digit, what differs."""
        known = records.known(self.stored)
        found = {key: records.differences(known[key], record) for key, record in self.again.items()}
        return {key: differences for key, differences in found.items() if differences}

    @property
    def agrees(self) -> bool:
        return not self.missing and not self.differing

    def lines(self) -> list[str]:
        """How many runs agree, how far the others are off, whether a verdict changes; runs that can't be compared."""
        known, differing = records.known(self.stored), self.differing
        agreeing = len(self.again) - len(differing)
        text = f"{self.figure.name}: the same to the digit in {agreeing} of {plural(len(self.again), 'run')}"
        if differing:
            pairs = [(known[key], self.again[key]) for key in differing]
            final, curve = (max(apart(part, *pair) for pair in pairs) for part in ("final", "curve"))
            text += (
                f"; in the others shares differ by up to {100 * final:.2g} points in final figures and "
                f"{100 * curve:.2g} in curves, {self.changed_verdicts() or 'no verdict changes'}"
            )
        moved = [
            f"  {self.again[key]['run']}: {'; '.join(differences[:3])}"
            for key, differences in differing.items()
            if apart("final", known[key], self.again[key]) > 0
        ]
        return [*self.missing, text, *moved]

    def changed_verdicts(self) -> str:
        """The claims that the new runs decide otherwise than the recorded ones do."""
        known = records.known(self.stored)
        before, after = (words(self.figure, found, self.stored["extra"]) for found in (known, known | self.again))
        changed = [f"{claim}: {word}, was {before[claim]}" for claim, word in after.items() if word != before[claim]]
        return f"{plural(len(changed), 'verdict')} changed: {'; '.join(changed)}" if changed else ""


def check(need: Need, out: Path) -> Check:
    """Compare the finished runs of a figure with those that `out` records."""
    found = Check(need.figure, records.read(out / f"{need.figure.name}.json"))
    known = records.known(found.stored)
    for key, job in need.jobs.items():
        folder = job.config.folder
        if key not in known:
            found.missing.append(f"{folder.name}: not recorded in {out / (need.figure.name + '.json')}")
        elif not (folder / "DONE").exists():
            found.missing.append(f"{folder.name}: did not finish")
        else:
            record = records.trimmed(records.extract(folder), need.figure.metrics)
            found.again[key] = record | {"environment": known[key]["environment"]}
    return found


def apart(part: str, recorded: Record, again: Record) -> float:
    """The largest difference of a share in the final evaluation, or in the curve: [0, 1]."""
    one, other = recorded.get(part) or {}, again.get(part) or {}
    found = [0.0]
    for name in SHARES:
        values = [each.get(name) for each in (one, other)]
        pairs = zip(*(value if isinstance(value, list) else [value] for value in values), strict=False)
        found += [abs(first - second) for first, second in pairs if first is not None and second is not None]
    return max(found)


def words(figure: Figure, found: dict[str, Record], extra: dict[str, Any]) -> dict[str, str]:
    """Every claim's verdict, by model and text."""
    return {
        f"{model}, {claim.text}": claim.word
        for model, group in Runs(list(found.values())).split("model.name").items()
        for claim in figure.judge(group, extra)
    }
