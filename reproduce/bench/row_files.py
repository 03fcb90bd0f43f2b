"""FOLDER/bench/ROW.json: the records of a row of the bench, so that rows made at once or elsewhere stand together."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from reproduce import records
from reproduce.__main__ import refuse_changed_code
from reproduce.bench.cells import Cell
from reproduce.bench.conditions import Row

BENCH = "bench"


class RowFile:
    """The records of a row, and a note on it: seconds that it took, and why a cell has no number."""

    def __init__(self, folder: Path, row: Row) -> None:
        self.folder = folder
        self.path = folder / BENCH / f"{quote_plus(row.name, safe='=,')}.json"
        stored = records.read(self.path)
        self.by_identity = records.records_by_identity(stored)
        self.note: dict[str, Any] = stored["extra"] or {"row": row.name, "seconds": 0.0, "without": {}}

    def forget_outdated(self, cell: Cell) -> None:
        """Drop records of a cell that its number no longer rests on: another rate's, or of other conditions."""
        identities = {cell.identity(trial) for trial in cell.trials(self.by_identity)}
        outdated = []
        for identity, record in self.by_identity.items():
            is_of_cell = record["settings"]["condition"] == cell.condition.name
            if is_of_cell and identity not in identities:
                outdated.append(identity)
        for identity in outdated:
            del self.by_identity[identity]

    def write(self) -> None:
        """Write the file; ConfigError where the code has changed since the command began."""
        refuse_changed_code(self.folder)
        records.write(self.path, self.by_identity.values(), self.note)


def read_rows(folder: Path) -> dict[str, Any]:
    """Read the rows in FOLDER: the records of all (`runs`) and the note on each by its name (`rows`)."""
    runs: list[records.Record] = []
    notes = {}
    for path in sorted((folder / BENCH).glob("*.json")):
        stored = records.read(path)
        runs += records.records_by_identity(stored).values()
        note = stored["extra"]
        notes[note["row"]] = note
    return {"runs": runs, "rows": notes}
