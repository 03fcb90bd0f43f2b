"""A damaged run is a line of its own in the report, compare and `sweeps status`, whatever stands in its files."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from topr_exp import compare
from topr_exp.pipeline import run
from topr_exp.report import __main__ as report
from topr_exp.report import write
from topr_exp.report.runs import read_run
from topr_exp.sweeps import __main__ as sweeps
from topr_exp.sweeps import status
from topr_exp.sweeps.sweep import Run

RESULTS = ("config.json", "summary.json", "eval.jsonl", "metrics.jsonl")
OTHERS = ("state.json", "environment.json", "completions.jsonl", "error.txt", "run.claim")
FOUND_RUNNING = ("state.json", "error.txt", "run.claim", "eval.jsonl")
DEEP = [b"[" * 10**5, b'{"a":' * 500 + b"1" + b"}" * 500]
WHOLE = [b"", b"{}", b"[]\n", b"null\n", b"NaN", b'[[["x"]]]\n', b'"text"\n', bytes(range(256)), b"\xff{\n", *DEEP]
VALUES: list[Any] = [float("nan"), 10**400, "text", [[["x"]]], {"a": {"b": 1}}, None, True, -1, "a\0\ud800"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    small = ["data.train_problems=8", "data.test_problems=4"]
    config = config_of(*overrides(tmp_path_factory.mktemp("damage"), *small))
    run(config)
    return Path(config.folder)


def versions(content: bytes) -> Iterator[bytes | None]:
    """A file damaged in every way: missing, of another kind, cut, and with other values at some of its places."""
    yield from (None, *WHOLE, content[: len(content) // 2], content[:-3])
    if not content:
        return
    lines = content.splitlines() if content.count(b"\n{") else [content]
    chance = random.Random(0)
    for value in VALUES:
        documents = [json.loads(line) for line in lines]
        for at, key in (chance.choice(list(places(document))) for document in documents for _ in range(3)):
            at[key] = json.loads(json.dumps(value))
        yield b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where values stand in nested lists and objects, and in what."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@pytest.mark.parametrize("name", [*RESULTS, *OTHERS])
def test_a_damaged_run_is_a_line_and_costs_no_other_anything(
    finished: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished.parent.parent / "store", tmp_path / "store")
    content = (finished / name).read_bytes() if (finished / name).exists() else b""
    intact, names = tmp_path / "sweep" / "intact", ["intact"]
    shutil.copytree(finished, intact, ignore=shutil.ignore_patterns("model"))
    for number, version in enumerate(versions(content)):
        for state in ("finished", "running") if name in FOUND_RUNNING else ("finished",):
            folder = intact.with_name(f"{state}-{number}")
            shutil.copytree(intact, folder)
            (folder / name).unlink(missing_ok=True)
            if version is not None:
                (folder / name).write_bytes(version)
            if state == "running":
                (folder / "DONE").unlink()
            names.append(folder.name)
            found = read_run(folder)
            assert found.notes or name in OTHERS or number > len(WHOLE) + 2, (state, version)
    for number, each in enumerate(names, 1):
        Run(intact.with_name(each), number, [], {}, "", [], 0.0).save()
    assert read_run(intact).notes == []
    if name in OTHERS:  # figures show nothing of them
        monkeypatch.setattr(write, "plots", lambda *_: [])
    capsys.readouterr()

    assert report.main([str(intact.parent), "--out", str(tmp_path / "out")]) == 0
    rows = (tmp_path / "out" / "tables" / "runs.csv").read_text().split("\n")
    assert {row.split(",")[0] for row in rows} >= set(names)
    assert compare.main([str(intact.parent)]) == 0
    assert "4 test problems" in capsys.readouterr().out
    if name != "run.claim":
        monkeypatch.setattr(status, "is_running", lambda folder: "running" in folder.name)
    assert sweeps.main(["status", str(intact.parent)]) == 0
    assert capsys.readouterr().out.count("\n") == len(names) + 2
