"""Numbers of runs that finished now, beside those that are recorded: written, or compared in a check."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.draw import drawing, save
from reproduce.figure import Figure, key_of
from reproduce.jobs import Need, Request, jobs_of
from reproduce.selection import Runs
from topr_exp.report.results import SHARES
from topr_exp.runs.console import plural
from topr_exp.runs.records import Record


def finished(need: Need) -> dict[str, tuple[Record, Path]]:
    """The records of a figure's finished runs with their folders, by identity."""
    folders = {key: job.config.folder for key, job in need.jobs.items()}
    return {
        key: (records.trimmed(records.extract(folder), need.figure.metrics), folder)
        for key, folder in folders.items()
        if (folder / "DONE").exists()
    }


def write_figure(need: Need, request: Request) -> int:
    """Write a figure's numbers and its picture; returns how many runs it rests on.

    Records of runs with settings that the figure no longer has (another learning rate, say) are left out.
    """
    figure, file = need.figure, request.out / f"{need.figure.name}.json"
    stored = records.read(file)
    known, extra = records.known(stored), stored["extra"]
    if others := known.keys() - need.jobs.keys():
        everything = jobs_of(figure, dataclasses.replace(request, full=True, overrides=()))
        known = {key: record for key, record in known.items() if key not in others or key in everything}
    now = [
        (record | {"environment": records.environment_of(folder)}, folder) for record, folder in finished(need).values()
    ]
    if figure.extra is not None and (now or not extra):
        extra = {**extra, **figure.extra(now)}
    found = [*(known | {key_of(record): record for record, _ in now}).values()]
    if found:
        records.write(file, found, extra)
        with drawing():
            save(figure.draw(Runs(found), extra), request.out / f"{figure.name}.png")
    return len(found)


@dataclass
class Check:
    """What running a figure again gave."""

    figure: Figure
    stored: dict[str, Any]  # the figure's file
    missing: list[str] = field(default_factory=list)  # why a run can't be compared
    again: dict[str, Record] = field(default_factory=dict)  # by identity; of recorded runs

    def __post_init__(self) -> None:
        self.known = records.known(self.stored)

    @property
    def differing(self) -> dict[str, list[str]]:
        """Of each run that is not the recorded one to the digit, what differs."""
        found = {key: records.differences(self.known[key], record) for key, record in self.again.items()}
        return {key: differences for key, differences in found.items() if differences}

    @property
    def agrees(self) -> bool:
        return not self.missing and not self.differing

    def lines(self) -> list[str]:
        """How many runs agree, how far the others are off, whether a verdict changes; runs that can't be compared."""
        differing = self.differing
        agreeing = len(self.again) - len(differing)
        text = f"{self.figure.name}: the same to the digit in {agreeing} of {plural(len(self.again), 'run')}"
        if differing:
            pairs = [(self.known[key], self.again[key]) for key in differing]
            final, curve = (max(apart(part, *pair) for pair in pairs) for part in ("final", "curve"))
            text += (
                f"; in the others shares differ by up to {100 * final:.2g} points in final figures and "
                f"{100 * curve:.2g} in curves, {self.changed_verdicts() or 'no verdict changes'}"
            )
        moved = {key for key in differing if apart("final", self.known[key], self.again[key]) > 0}
        return [*self.missing, text, *(f"  {self.again[key]['run']}: {'; '.join(differing[key][:3])}" for key in moved)]

    def changed_verdicts(self) -> str:
        """The claims that the new runs decide otherwise than the recorded ones do."""
        before, after = (self.words(found) for found in (self.known, self.known | self.again))
        changed = [f"{claim}: {word}, was {before[claim]}" for claim, word in after.items() if word != before[claim]]
        return f"{plural(len(changed), 'verdict')} changed: {'; '.join(changed)}" if changed else ""

    def words(self, found: dict[str, Record]) -> dict[str, str]:
        """Every claim's verdict, by model and text."""
        return {
            f"{model}, {claim.text}": claim.word
            for model, group in Runs(list(found.values())).split("model.name").items()
            for claim in self.figure.judge(group, self.stored["extra"])
        }


def check(need: Need, out: Path) -> Check:
    """Compare the finished runs of a figure with those that `out` records."""
    file = out / f"{need.figure.name}.json"
    found, now = Check(need.figure, records.read(file)), finished(need)
    for key, job in need.jobs.items():
        if key not in found.known:
            found.missing.append(f"{job.config.folder.name}: not recorded in {file}")
        elif key not in now:
            found.missing.append(f"{job.config.folder.name}: did not finish")
        else:
            found.again[key] = now[key][0] | {"environment": found.known[key]["environment"]}
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
