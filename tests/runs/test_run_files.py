"""Small files of a run: all that a run writes passes, and an entry of another type makes a file a damaged one."""

import json
import typing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of, overrides
from tests.run_folders import make_sweep_of_two
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.provenance import command_of, user_overrides
from topr_exp.runs.run_files import RUN_FILES, read_run_file
from topr_exp.runtime.json_files import find_type_fault, has_type
from topr_exp.sweeps.run_status import RunState, read_status
from topr_exp.sweeps.sweep import SweepRecord, read_run

BEYOND_FLOAT = 10**400
VALUES = ["text", "with\0", 2.5, True, None, [1], ["a"], [None], {}, {"a": []}, {"a": "text"}, BEYOND_FLOAT]
SMALLEST_FILES: dict[str, dict[str, Any]] = {
    "launch.json": {"number": 1, "overrides": [], "settings": {}, "cwd": "x", "arguments": [], "launched": 1},
    "sources.json": {"store": "x", "rollouts": "x", "verdicts": "x"},
}
ENTRIES = [
    (name, key, hint) for name, schema in RUN_FILES.items() for key, hint in typing.get_type_hints(schema).items()
]


@pytest.mark.parametrize(("name", "key", "hint"), ENTRIES, ids=[f"{name}-{key}" for name, key, _ in ENTRIES])
def test_an_entry_of_another_type_is_named(name: str, key: str, hint: Any, tmp_path: Path) -> None:
    refusals = 0
    for value in VALUES:
        stored = {"an_entry_of_a_newer_version": 1, **SMALLEST_FILES.get(name, {}), key: value}
        (tmp_path / name).write_text(json.dumps(stored))
        read, fault = read_run_file(tmp_path / name)
        if value == BEYOND_FLOAT and has_type(None, hint):
            assert (read, fault) == ({**stored, key: None}, "")
        elif value != BEYOND_FLOAT and has_type(value, hint):
            assert (read, fault) == (stored, "")
        else:
            refusals += 1
            assert read == {}
            assert fault.startswith(f"has {key}")
            assert "\n" not in fault
    assert refusals >= 4


@pytest.mark.parametrize("name", SMALLEST_FILES)
def test_a_missing_entry_is_named(name: str, tmp_path: Path) -> None:
    for key in SMALLEST_FILES[name]:
        stored = dict(SMALLEST_FILES[name])
        del stored[key]
        (tmp_path / name).write_text(json.dumps(stored))
        assert read_run_file(tmp_path / name) == ({}, f"lacks {key}")


@pytest.mark.parametrize(
    ("content", "fault"), [("[]", "holds no JSON object"), ("{}", "holds nothing"), ("", "holds no JSON object")]
)
def test_a_file_without_an_object_says_so(content: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(content)
    assert read_run_file(tmp_path / "state.json") == ({}, fault)
    assert read_run_file(tmp_path / "config.json") == ({}, "is missing")


def test_all_that_a_run_writes_passes(smoke: Any) -> None:
    folder = smoke[0].folder
    paths = [path for path in folder.rglob("*.json") if path.name in RUN_FILES and path.parent.name != "model"]
    assert {path.name for path in paths} == {*RUN_FILES} - {"launch.json"}
    for path in paths:
        assert read_run_file(path) == (json.loads(path.read_text()), "")


@pytest.mark.parametrize("wrong", [{"seconds": ["training", 3]}, {"counts": {"tokens_sampled": "9"}}, {"attempt": 3}])
def test_a_run_whose_state_has_another_type_goes_on(wrong: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    config = config_of(*overrides(tmp_path))
    config.folder.mkdir(parents=True)
    state = config.folder / "state.json"
    state.write_text(json.dumps({"status": "stopped", "stage": "training", **wrong}))
    with RunFolder(config):
        (key,) = wrong
        assert f"{state} is damaged: it has {key}" in capsys.readouterr().err
    assert json.loads(state.read_text())["attempt"]["number"] == 1


def test_a_sweep_leaves_out_the_run_whose_launch_file_is_damaged(tmp_path: Path, capsys: Any) -> None:
    folder = min(make_sweep_of_two(tmp_path / "sweep").glob("*_*"))
    path = folder / "launch.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "overrides": [None]}))
    assert read_run(folder) is None
    line = f"{path} has overrides=[None], which is not a list, each a text; the run is left out"
    assert line in capsys.readouterr().err


def test_provenance_of_damaged_files_is_that_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text('{"overrides": [null]}')
    (tmp_path / "environment.json").write_text('{"command": {"a": 1}}')
    assert user_overrides(tmp_path) == user_overrides(tmp_path / "absent")
    assert command_of(tmp_path, read_run_file(tmp_path / "environment.json")[0])


def test_the_status_of_a_sweep_names_a_damaged_state(tmp_path: Path) -> None:
    folder = min(make_sweep_of_two(tmp_path / "sweep").glob("*_*"))
    (folder / "DONE").unlink(missing_ok=True)
    (folder / "state.json").write_text('{"progress": [1], "stage": "training"}')
    run = read_run(folder)
    assert run is not None
    status = read_status(run)
    assert (status.state, status.error) == (
        RunState.STOPPED,
        "state.json has progress=[1], which is not an object or null",
    )


def test_only_files_that_others_write_are_read_without_types() -> None:
    callers = {
        str(path.relative_to(ROOT / "topr_exp"))
        for path in (ROOT / "topr_exp").rglob("*.py")
        if "read_object(" in path.read_text(encoding="utf-8")
    }
    lists_of_checksums, models, manifest = "runtime/checksums.py", "models/model_folder.py", "report/__main__.py"
    assert callers == {"runtime/json_files.py", lists_of_checksums, models, "runs/preflight.py", manifest}


def test_an_entry_of_a_run_in_a_sweep_s_record_is_checked_too() -> None:
    assert find_type_fault({"runs": {"a": {"number": 1, "overrides": ["a=1"]}}}, SweepRecord) == ""
    assert find_type_fault({"runs": {"a": {"number": 1}}}, SweepRecord).startswith("has runs=")
