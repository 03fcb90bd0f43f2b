"""Numbers of finished runs: written as records, or compared with the recorded ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reproduce import records
from reproduce.figure import Figure
from reproduce.files import plural
from reproduce.jobs import FigurePlan, Request, is_finished, plan_in_full
from reproduce.panels import project_style, save_picture
from reproduce.records import SHARES
from reproduce.selection import Record, Runs

MOST_DIFFERENCES = 3  # of a run, that are printed


def finished_records(plan: FigurePlan) -> dict[str, tuple[Record, Path]]:
    """The records of a figure's finished runs with their folders, by identity."""
    finished = {}
    for identity, job in plan.jobs.items():
        folder = job.config.folder
        if is_finished(folder):
            finished[identity] = records.extract(folder, plan.figure.metrics), folder
    return finished


# ---- written


def write_figure(plan: FigurePlan, request: Request) -> int:
    """Write a figure's numbers and its picture; returns how many runs it rests on."""
    figure = plan.figure
    finished = finished_records(plan)
    all_records = write_records(plan, request, finished)
    file = request.out / f"{figure.name}.json"
    extra = records.read(file)["extra"]
    if figure.compute_extra is not None and (finished or not extra):
        extra = {**extra, **figure.compute_extra(list(finished.values()))}
    if request.full and not request.overrides:
        extra = {**extra, "missing": len(plan.jobs) - len(all_records), "left_out": len(plan.left_out)}
    if all_records:
        records.write(file, all_records, extra)
        with project_style():
            drawing = figure.draw(Runs(all_records), extra)
            save_picture(drawing, request.out / f"{figure.name}.png")
    return len(all_records)


def write_records(plan: FigurePlan, request: Request, finished: Mapping[str, tuple[Record, Path]]) -> list[Record]:
    """Write the records of a figure's finished runs beside those that it has, and return all of them.

    finished: from `finished_records`.

    Records of runs with settings that the figure no longer has (another learning rate, say) are left out.
    """
    file = request.out / f"{plan.figure.name}.json"
    stored = records.read(file)
    all_records = records.records_by_identity(stored)
    if not all_records.keys() <= plan.jobs.keys():
        full_plan = plan_in_full(plan.figure, request)
        for identity in all_records.keys() - plan.jobs.keys() - full_plan.jobs.keys():
            del all_records[identity]
    for identity, (record, _) in finished.items():
        all_records[identity] = record
    if all_records:
        records.write(file, all_records.values(), stored["extra"])
    return list(all_records.values())


# ---- compared


def check(plan: FigurePlan, out: Path) -> bool:
    """Print how the finished runs of a figure compare with those that `out` records; True if they are the same."""
    file = out / f"{plan.figure.name}.json"
    stored = records.read(file)
    recorded = records.records_by_identity(stored)
    finished = finished_records(plan)
    computed = {}
    for identity, job in plan.jobs.items():
        name = job.config.folder.name
        if identity not in recorded:
            print(f"{name}: not recorded in {file}", flush=True)
        elif identity not in finished:
            print(f"{name}: did not finish", flush=True)
        else:
            computed[identity], _ = finished[identity]
    lines = compare(plan.figure, stored, computed)
    print("\n".join(lines), flush=True)
    return len(lines) == 1 and len(computed) == len(plan.jobs)


def compare(figure: Figure, stored: Mapping[str, Any], computed: Mapping[str, Record]) -> list[str]:
    """Say how many runs agree with their records, how far the others are off, and which verdicts change.

    stored: the figure's file; computed: runs by identity, all of them recorded. The first line is about all runs; one
    follows for each run that differs.
    """
    recorded = records.records_by_identity(dict(stored))
    gaps, details = [], []
    for identity, record in computed.items():
        if differences := records.differences(recorded[identity], record):
            gaps.append(largest_gap(recorded[identity], record))
            details.append(f"  {record['run']}: {'; '.join(differences[:MOST_DIFFERENCES])}")
    equal_count = len(computed) - len(details)
    text = f"{figure.name}: the same to the digit in {equal_count} of {plural(len(computed), 'run')}"
    if not details:
        return [text]
    changed = changed_verdicts(figure, stored["extra"], recorded, {**recorded, **computed})
    text += f"; in the others final shares differ by up to {max(gaps):.2g} points, "
    if changed:
        text += f"{plural(len(changed), 'verdict')} changed: {'; '.join(changed)}"
    else:
        text += "no verdict changes"
    return [text, *details]


def largest_gap(first: Record, second: Record) -> float:
    """The largest difference of final shares, in points."""
    gaps = [first["final"][name] - second["final"][name] for name in SHARES]
    return float(100 * np.abs(gaps).max())


def changed_verdicts(
    figure: Figure, extra: dict[str, Any], recorded: Mapping[str, Record], computed: Mapping[str, Record]
) -> list[str]:
    """The claims, by model and text, whose words are others in other records."""
    recorded_words = claim_words(figure, extra, recorded)
    changed = []
    for claim, word in claim_words(figure, extra, computed).items():
        if word != recorded_words[claim]:
            changed.append(f"{claim}: {word}, was {recorded_words[claim]}")
    return changed


def claim_words(figure: Figure, extra: dict[str, Any], table: Mapping[str, Record]) -> dict[str, str]:
    """The word of each claim, by model and text; table: records by identity."""
    runs = Runs(table.values())
    words: dict[str, str] = {}
    for model, claims in figure.decide(runs, extra).items():
        for claim in claims:
            words[f"{model}, {claim.text}"] = claim.word
    return words
