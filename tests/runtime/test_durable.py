"""What a power cut may lose: whatever is renamed has its content, and the folder its entry, on the disk at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import config_of, overrides
from topr_exp.pipeline import run
from topr_exp.runs.overwrite import move_overwritten_folder
from topr_exp.runtime.checksums import write_checksums
from topr_exp.runtime.files import TEMPORARY, atomic_folder, write_bytes, write_text
from topr_exp.runtime.json_files import write_json


class Event(NamedTuple):
    """An fsync of a path, or a rename."""

    path: Path
    target: Path | None = None  # of a rename
    renamed: frozenset[Path] = frozenset()  # the path and, of a folder, all that it holds


class Disk:
    """Records each fsync and each rename."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def fsync(self, descriptor: int) -> None:
        self.events.append(Event(Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def renaming(self, rename: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def recorded(source: Any, target: Any) -> None:
            before = Path(os.path.abspath(source))
            renamed = frozenset([before, *before.rglob("*")])
            self.events.append(Event(before, Path(os.path.abspath(target)), renamed))
            rename(source, target)

        return recorded


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "fsync", made.fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, made.renaming(getattr(os, name)))
    return made


def lost_by_a_power_cut(events: list[Event]) -> list[Path]:
    """The targets of renames whose content, or whose entry in a folder, may not be on the disk before the next one."""
    lost = []
    for number, event in enumerate(events):
        if event.target is None:
            continue
        synced_before = {other.path for other in events[:number] if other.target is None}
        synced_after = set()
        for other in events[number + 1 :]:
            if other.target is not None:
                break
            synced_after.add(other.path)
        is_new = TEMPORARY in event.path.name  # else something that was there is moved
        if is_new and not event.renamed <= synced_before:
            lost.append(event.target)
        if not {event.path.parent, event.target.parent} <= synced_after:
            lost.append(event.target)
    return lost


def folder_of_two(path: Path) -> None:
    with atomic_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"1")
        (folder / "state.json").write_text("{}")
        write_checksums(folder)


def moved_aside(path: Path) -> None:
    config = config_of(f"output_dir={path}", "overwrite=true")
    config.folder.mkdir(parents=True)
    move_overwritten_folder(config)


WRITERS: dict[str, Callable[[Path], None]] = {
    "a text": lambda path: write_text(path, "text"),
    "bytes": lambda path: write_bytes(path, b"bytes"),
    "JSON": lambda path: write_json(path, {"a": 1}),
    "a folder": folder_of_two,
    "overwrite": moved_aside,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_rename_is_durable_and_each_fsync_is_needed_for_that(kind: str, tmp_path: Path, disk: Disk) -> None:
    WRITERS[kind](tmp_path / "made")
    assert [event for event in disk.events if event.target is not None]
    assert lost_by_a_power_cut(disk.events) == []
    once = [event for event in disk.events if event.target is None and disk.events.count(event) == 1]
    assert once
    for event in once:
        fewer = [other for other in disk.events if other != event]
        assert lost_by_a_power_cut(fewer), event.path


def test_a_whole_run_renames_nothing_that_a_power_cut_may_lose(tmp_path: Path, disk: Disk) -> None:
    run(config_of(*overrides(tmp_path, "checkpoint.every_seconds=0")))
    names = {event.target.name for event in disk.events if event.target is not None}
    assert {"step-00000001", "model", "summary.json", "key.json", "shard-00000.arrow"} <= names
    assert lost_by_a_power_cut(disk.events) == []
