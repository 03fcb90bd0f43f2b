"""Scores of the bench: what each loss did in each condition, and its difference to TOPR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from reproduce.bench.cells import REPORTED_SEEDS
from reproduce.bench.conditions import REFERENCE
from reproduce.claims import Claim, claim_above, holm
from reproduce.groups import RATE
from reproduce.panels import PERCENT
from reproduce.selection import Record, Runs, collapsed_seeds
from topr_exp.report import Interval, difference


class Place(NamedTuple):
    """A cell by the names of its row and its condition."""

    row: str
    condition: str


@dataclass(frozen=True)
class Score:
    """What a loss did in a condition."""

    runs: Runs  # of the reported seeds
    rate: float | None = None
    collapsed_count: int = 0  # of seeds
    difference: Interval | None = None  # to TOPR; None: it has no runs here, or is TOPR
    claim: Claim | None = None  # that it ends above TOPR
    note: str = ""  # why there is no number

    @property
    def is_equal(self) -> bool:
        """True where every seed and problem came out as with TOPR."""
        return self.claim is not None and self.claim.equal

    @property
    def is_decided(self) -> bool:
        return self.claim is not None and self.claim.holds is not None and not self.claim.left_open


def score_number(score: Score, digits: int) -> str:
    """The number of a score in points: TOPR's own in brackets, = where it is equal, a dash where there is none."""
    if score.is_equal:
        return "="
    if score.difference is not None:
        return f"{PERCENT * score.difference.value:+.{digits}f}"
    if score.runs:
        return f"({PERCENT * score.runs.mean():.{digits}f})"
    return "–"


def score_cells(stored: Mapping[str, Any]) -> dict[Place, Score]:
    """The scores of a bench's records, with Holm's correction over all differences."""
    scores = {}
    for place, cell_records in reported_records(stored["runs"]).items():
        scores[place] = score_runs(cell_records)
    for row, note in stored["rows"].items():
        for condition, reason in note["without"].items():
            scores[Place(row, condition)] = Score(Runs([]), note=reason)
    compared: dict[Place, Score] = {}
    claims: list[Claim] = []
    for place, score in scores.items():
        reference = scores.get(Place(REFERENCE, place.condition))
        if place.row == REFERENCE or not score.runs or reference is None or not reference.runs:
            continue
        compared[place] = replace(score, difference=difference(reference.runs, score.runs))
        text = f"{place.condition}: {place.row} ends above {REFERENCE}"
        claims.append(claim_above(text, score.runs, reference.runs))
    for (place, score), claim in zip(compared.items(), holm(claims), strict=True):
        scores[place] = replace(score, claim=claim)
    return scores


def reported_records(records: Iterable[Record]) -> dict[Place, list[Record]]:
    """The records of the reported seeds, by cell."""
    records_of_place: dict[Place, list[Record]] = {}
    for record in records:
        settings = record["settings"]
        if settings["seed"] in REPORTED_SEEDS:
            place = Place(settings["row"], settings["condition"])
            records_of_place.setdefault(place, []).append(record)
    return records_of_place


def score_runs(cell_records: Sequence[Record]) -> Score:
    """The score of a cell by its records alone; those of runs that were not finite have no counts."""
    runs = Runs(record for record in cell_records if "of_problems" in record["final"])
    collapsed_count = sum(collapsed_seeds(runs)) + len(cell_records) - len(runs)
    return Score(runs, cell_records[0]["settings"][RATE], collapsed_count)
