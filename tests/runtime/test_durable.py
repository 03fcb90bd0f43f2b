"""What a power cut may lose: whatever is renamed has its content, and the folder its entry, on the disk at once."""

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import config_of, small_config, write_file
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

    def __init__(self):
        self.events = []

    def fsync(self, descriptor):
        self.events.append(Event(Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def wrap(self, rename):
        def record(source, target):
            path = Path(os.path.abspath(source))
            self.events.append(Event(path, Path(os.path.abspath(target)), frozenset([path, *path.rglob("*")])))
            rename(source, target)

        return record


@pytest.fixture
def disk(monkeypatch):
    recorder = Disk()
    monkeypatch.setattr(os, "fsync", recorder.fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, recorder.wrap(getattr(os, name)))
    return recorder


def lost_by_a_power_cut(events):
    """The targets of renames whose content, or whose entry in a folder, may not be on the disk before the next one."""
    lost_targets = []
    for number, event in enumerate(events):
        if event.target is None:
            continue
        synced_before = {previous.path for previous in events[:number] if previous.target is None}
        synced_after = set()
        for following in events[number + 1 :]:
            if following.target is not None:
                break
            synced_after.add(following.path)
        is_new = TEMPORARY in event.path.name  # else something that was there is moved
        if is_new and not event.renamed <= synced_before:
            lost_targets.append(event.target)
        if not {event.path.parent, event.target.parent} <= synced_after:
            lost_targets.append(event.target)
    return lost_targets


def folder_of_two(path):
    with atomic_folder(path) as folder:
        write_file(folder / "inner/weights", "1")
        (folder / "state.json").write_text("{}")
        write_checksums(folder)


def moved_aside(path):
    config = config_of(f"output_dir={path}", "overwrite=true")
    config.folder.mkdir(parents=True)
    move_overwritten_folder(config)


WRITERS = {
    "a text": lambda path: write_text(path, "text"),
    "bytes": lambda path: write_bytes(path, b"bytes"),
    "JSON": lambda path: write_json(path, {"a": 1}),
    "a folder": folder_of_two,
    "overwrite": moved_aside,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_rename_is_durable_and_each_fsync_is_needed_for_that(kind, tmp_path, disk):
    WRITERS[kind](tmp_path / "made")

    flushes = [event for event in disk.events if event.target is None and disk.events.count(event) == 1]
    assert flushes
    assert lost_by_a_power_cut(disk.events) == []
    for flush in flushes:
        other_events = [event for event in disk.events if event != flush]
        assert lost_by_a_power_cut(other_events), flush.path


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_system_that_cannot_flush_folders_is_worked_on(kind, tmp_path, monkeypatch):
    """As on a share of Windows; of a file the error counts."""
    refused = [stat.S_ISDIR]

    def flush(descriptor):
        if any(refuses(os.fstat(descriptor).st_mode) for refuses in refused):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", flush)
    WRITERS[kind](tmp_path / "made")

    refused.append(stat.S_ISREG)
    with pytest.raises(OSError, match="Invalid argument"):
        write_bytes(tmp_path / "file", b"bytes")


def test_a_whole_run_renames_nothing_that_a_power_cut_may_lose(tmp_path, disk):
    run(small_config(tmp_path, "checkpoint.every_seconds=0", "evaluation.every=2", "checkpoint.weights_every=2"))

    targets = {event.target.name for event in disk.events if event.target is not None}
    assert {"step-00000001", "update-2", "model", "summary.json", "key.json", "shard-00000.arrow"} <= targets
    assert lost_by_a_power_cut(disk.events) == []
    order = ""
    for event in disk.events:
        if event.target is None:
            if event.path.name == "metrics.jsonl":
                order += "m"
        elif event.target.name.startswith("step-"):
            order += "c"
    assert order.count("c") >= 3
    assert "cc" not in f"c{order}", "each checkpoint counts on records that are on the disk"
