"""Numbers of runs that finished now, beside those that are recorded: written, or compared in a check."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce import records
from reproduce.draw import drawing, save
from reproduce.figure import Figure
from reproduce.jobs import Need, Request, jobs_of
from reproduce.records import SHARES
from reproduce.selection import Runs
from topr_exp.runs.records import Record
from topr_exp.runtime.terminal import plural, say


def finished(need: Need) -> dict[str, tuple[Record, Path]]:
    """The records of a figure's finished runs with their folders, by identity."""
    folders = {key: job.config.folder for key, job in need.jobs.items()}
    return {
        key: (records.extract(folder, need.figure.metrics), folder)
        for key, folder in folders.items()
        if (folder / "DONE").exists()
    }


def write_figure(need: Need, request: Request) -> int:
    """Write a figure's numbers and its picture; returns how many runs it rests on."""
    figure, found = need.figure, write_records(need, request)
    file = request.out / f"{figure.name}.json"
    extra, now = records.read(file)["extra"], [*finished(need).values()]
    if figure.extra is not None and (now or not extra):
        extra = {**extra, **figure.extra(now)}
    if request.full and not request.overrides:
        extra = {**extra, "missing": len(need.jobs) - len(found), "left_out": len(need.left_out)}
    if found:
        records.write(file, found, extra)
        with drawing():
            save(figure.draw(Runs(found), extra), request.out / f"{figure.name}.png")
    return len(found)


def write_records(need: Need, request: Request) -> list[Record]:
    """Write the records of a figure's finished runs beside those that it has, and return all of them.

    Records of runs with settings that the figure no longer has (another learning rate, say) are left out.
    """
    figure, file = need.figure, request.out / f"{need.figure.name}.json"
    stored = records.read(file)
    known = records.known(stored)
    if others := known.keys() - need.jobs.keys():
        everything = jobs_of(figure, dataclasses.replace(request, full=True, overrides=()))
        known = {key: record for key, record in known.items() if key not in others or key in everything}
    found = [*(known | {key: record for key, (record, _) in finished(need).items()}).values()]
    if found:
        records.write(file, found, stored["extra"])
    return found


def compare(figure: Figure, stored: dict[str, Any], again: dict[str, Record]) -> tuple[list[str], bool]:
    """How many runs agree with what is recorded, how far the others are off, which verdicts change; if all agree.

    stored: the figure's file; again: the runs of now by identity, all of them recorded.
    """
    known = records.known(stored)
    apart = {key: records.differences(known[key], record) for key, record in again.items()}
    apart = {key: found for key, found in apart.items() if found}
    text = f"{figure.name}: the same to the digit in {len(again) - len(apart)} of {plural(len(again), 'run')}"
    if apart:
        points = [100 * abs(shares(known[key]) - shares(again[key])).max() for key in apart]
        before, after = (verdicts(figure, stored, found) for found in (known, known | again))
        changed = [f"{claim}: {word}, was {before[claim]}" for claim, word in after.items() if word != before[claim]]
        told = f"{plural(len(changed), 'verdict')} changed: {'; '.join(changed)}" if changed else "no verdict changes"
        text += f"; in the others final shares differ by up to {max(points):.2g} points, {told}"
    return [text, *(f"  {again[key]['run']}: {'; '.join(found[:3])}" for key, found in apart.items())], not apart


def shares(record: Record) -> NDArray[np.float64]:
    return np.array([record["final"][name] for name in SHARES])


def verdicts(figure: Figure, stored: dict[str, Any], found: dict[str, Record]) -> dict[str, str]:
    """Every claim's verdict, by model and text."""
    judged = figure.decide(Runs(found.values()), stored["extra"])
    return {f"{model}, {claim.text}": claim.word for model, claims in judged.items() for claim in claims}


def check(need: Need, out: Path) -> bool:
    """Print how the finished runs of a figure compare with those that `out` records; true if they are the same."""
    file = out / f"{need.figure.name}.json"
    stored, now, again = records.read(file), finished(need), {}
    known = records.known(stored)
    for key, job in need.jobs.items():
        if key in known and key in now:
            again[key] = now[key][0]
        else:
            say(f"{job.config.folder.name}: {'did not finish' if key in known else f'not recorded in {file}'}")
    lines, agrees = compare(need.figure, stored, again)
    say("\n".join(lines))
    return agrees and len(again) == len(need.jobs)
