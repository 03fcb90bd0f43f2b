"""The small files of a run: what is written passes, and an entry of any other type makes a file a damaged one."""

import json
import typing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of, overrides
from tests.run_folders import make_sweep_of_two
from topr_exp.runs.attempt import command_of
from topr_exp.runs.attempt import overrides as noted_overrides
from topr_exp.runs.folder import RunFolder
from topr_exp.runtime.small_files import SMALL_FILES, matches, read_small_file
from topr_exp.sweeps.sweep import STOPPED, read_run, read_status

VALUES = ["text", "with\0", -1, 2.5, True, None, [1], ["a"], [None], {}, {"a": []}, {"a": "text"}, {"a": -1}, 10**400]
ENTRIES = [
    (name, key, hint)
    for name, entries in SMALL_FILES.items()
    for key, hint in typing.get_type_hints(entries, include_extras=True).items()
]


def whole(name: str) -> dict[str, Any]:
    """The least that a file holds."""
    text, number = "x", 1
    least = {"launch.json": {"number": 1, "overrides": [], "settings": {}, "cwd": text, "arguments": [], "launched": 1},
             "sweep.json": {"runs": {}},
             "sources.json": dict.fromkeys(("store", "rollouts", "verdicts"), text)}  # fmt: skip
    return dict(least.get(name, {"an_entry_of_a_newer_version": number}))


@pytest.mark.parametrize(("name", "key", "hint"), ENTRIES, ids=[f"{name}-{key}" for name, key, _ in ENTRIES])
def test_an_entry_of_another_type_is_named(name: str, key: str, hint: Any, tmp_path: Path) -> None:
    path, refused = tmp_path / name, 0
    for value in VALUES:
        stored = {**whole(name), key: value}
        path.write_text(json.dumps(stored))
        read, fault = read_small_file(path)
        if matches(value, hint) and value != 10**400:
            assert (read, fault) == (stored, "")
        elif value == 10**400 and matches(None, hint):
            assert read == {**stored, key: None}, "a number that no float holds"
        else:
            refused += 1
            assert read == {}
            assert fault.startswith(f"has {key}")
            assert "\n" not in fault
    assert refused >= 4


def test_what_is_missing_and_what_is_no_object(tmp_path: Path) -> None:
    for name, least in (("launch.json", whole("launch.json")), ("sources.json", whole("sources.json"))):
        for key in least:
            (tmp_path / name).write_text(json.dumps({other: least[other] for other in least if other != key}))
            assert read_small_file(tmp_path / name) == ({}, f"lacks {key}")
    for content, fault in (("[]", "holds no JSON object"), ("{}", "holds nothing"), ("", "holds no JSON object")):
        (tmp_path / "state.json").write_text(content)
        assert read_small_file(tmp_path / "state.json") == ({}, fault)
    assert read_small_file(tmp_path / "config.json") == ({}, "is missing")


def test_all_that_a_run_writes_passes(smoke: Any) -> None:
    folder = smoke[0].folder
    files = [path for path in folder.rglob("*.json") if path.name in SMALL_FILES and path.parent.name != "model"]
    assert {path.name for path in files} == {*SMALL_FILES} - {"launch.json", "sweep.json", "verification.json"}
    for path in files:
        assert read_small_file(path) == (json.loads(path.read_text()), "")


@pytest.mark.parametrize("wrong", [{"seconds": ["training", 3]}, {"counts": {"tokens_sampled": "9"}}, {"attempt": 3}])
def test_a_run_whose_state_has_another_type_goes_on(wrong: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    config = config_of(*overrides(tmp_path))
    config.folder.mkdir(parents=True)
    (config.folder / "state.json").write_text(json.dumps({"status": "stopped", "stage": "training", **wrong}))
    with RunFolder(config):
        (key,) = wrong
        assert f"{config.folder / 'state.json'} is damaged: it has {key}" in capsys.readouterr().err
    assert json.loads((config.folder / "state.json").read_text())["attempt"]["number"] == 1


def test_a_sweep_leaves_out_the_run_whose_file_has_another_type(tmp_path: Path, capsys: Any) -> None:
    folder = min((make_sweep_of_two(tmp_path / "sweep")).glob("*_*"))
    path = folder / "launch.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "overrides": [None]}))
    assert read_run(folder) is None
    assert (
        f"{path} has overrides=[None], which is not a list, each a text; the run is left out" in capsys.readouterr().err
    )
    (folder / "environment.json").write_text('{"command": {"a": 1}}')
    assert noted_overrides(folder) == noted_overrides(tmp_path), "of the command line"
    assert command_of(folder, read_small_file(folder / "environment.json")[0])
    path.write_text(json.dumps(stored))
    (folder / "DONE").unlink(missing_ok=True)
    (folder / "state.json").write_text('{"progress": [1], "stage": "training"}')
    run = read_run(folder)
    assert run is not None
    status = read_status(run)
    assert (status.state, status.error) == (STOPPED, "state.json has progress=[1], which is not an object or null")


def test_nothing_else_reads_json_of_a_run() -> None:
    """`read_object` knows no types: who calls it checks them, and is listed here."""
    callers = {
        str(path.relative_to(ROOT / "topr_exp"))
        for path in (ROOT / "topr_exp").rglob("*.py")
        if "read_object(" in path.read_text(encoding="utf-8")
    }
    listed = {"runtime/files.py", "runtime/small_files.py"}  # of checksums, and of these files
    listed |= {"models/loading.py", "runs/preflight.py"}  # of models
    assert callers == listed | {"report/__main__.py"}  # of a report's manifest


def test_an_entry_of_a_run_in_a_sweep_s_record_is_checked_too(tmp_path: Path) -> None:
    for entry, fits in (({"number": 1, "overrides": ["a=1"]}, True), ({"number": 1}, False), ({"number": 0}, False)):
        (tmp_path / "sweep.json").write_text(json.dumps({"runs": {"a": entry}}))
        assert (read_small_file(tmp_path / "sweep.json")[1] == "") is fits
