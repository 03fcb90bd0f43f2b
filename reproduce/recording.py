"""What a figure leaves in its folder: the numbers of its runs, finished now or recorded before, and its picture."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.draw import drawing, save
from reproduce.jobs import Need, Request, jobs_of
from topr_exp.report.selection import Runs
from topr_exp.runs.records import Record


def stored(need: Need, request: Request) -> tuple[dict[str, Record], dict[str, Any]]:
    """What the figure's file records, and its extra numbers.

    Runs with settings that the figure no longer has (another learning rate, say) are left out.
    """
    content = records.read(request.out / f"{need.figure.name}.json")
    known = records.known(content)
    if others := known.keys() - need.jobs.keys():
        everything, _ = jobs_of(need.figure, dataclasses.replace(request, full=True, overrides=()))
        known = {key: record for key, record in known.items() if key not in others or key in everything}
    return known, content["extra"]


def collect_records(need: Need, request: Request) -> tuple[list[Record], dict[str, Any]]:
    """The records of the figure's finished runs, beside those that are recorded and were not run again."""
    figure, (known, extra) = need.figure, stored(need, request)
    finished: list[tuple[Record, Path]] = []
    for job in need.jobs.values():
        folder = job.config.folder
        if (folder / "DONE").exists():
            record = records.trimmed(records.extract(folder), figure.metrics)
            finished.append((record | {"environment": records.environment_of(folder)}, folder))
    if figure.extra is not None and (finished or not extra):
        extra = {**extra, **figure.extra(finished)}
    found = known | {json.dumps(record["settings"], sort_keys=True): record for record, _ in finished}
    return list(found.values()), extra


def write_figure(need: Need, request: Request) -> int:
    """Write a figure's numbers and its picture; returns how many runs it rests on."""
    found, extra = collect_records(need, request)
    figure, out = need.figure, request.out
    if found:
        records.write(out / f"{figure.name}.json", found, extra)
        with drawing():
            save(figure.draw(Runs(found), extra), out / f"{figure.name}.png")
    return len(found)
