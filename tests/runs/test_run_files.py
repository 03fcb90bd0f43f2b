"""Small files of a run: all that a run writes passes, and an entry of another type makes a file a damaged one."""

import json
import typing

import pytest

from tests.conftest import each_row, read_json, small_config
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.run_files import RUN_FILES, read_run_file
from topr_exp.runtime.json_files import has_type

BEYOND_FLOAT = 10**400
VALUES = json.loads('["text", "with\\u0000", 2.5, true, null, [1], ["a"], [null], {}, {"a": []}, {"a": "text"}]')
VALUES.append(BEYOND_FLOAT)
SMALLEST_FILES = {
    "launch.json": '{"number": 1, "overrides": [], "settings": {}, "cwd": "x", "arguments": [], "launched": 1}',
    "sources.json": '{"store": "x", "rollouts": "x", "verdicts": "x"}',
}


@pytest.mark.parametrize("name", RUN_FILES)
def test_an_entry_of_another_type_is_named(name, tmp_path):
    smallest = json.loads(SMALLEST_FILES.get(name, "{}"))
    for key, hint in typing.get_type_hints(RUN_FILES[name]).items():
        refusals = 0
        for value in VALUES:
            stored = {"an_entry_of_a_newer_version": 1, **smallest, key: value}
            (tmp_path / name).write_text(json.dumps(stored))
            content, fault = read_run_file(tmp_path / name)
            value_read = None if value == BEYOND_FLOAT else value
            if has_type(value_read, hint):
                assert content == {**stored, key: value_read}
                assert fault == ""
            else:
                refusals += 1
                assert content == {}
                assert fault.startswith(f"has {key}")
                assert "\n" not in fault
        assert refusals >= 4


INCOMPLETE = """
[] | holds no JSON object
null | holds no JSON object
{} | holds nothing
{"store": "x", "rollouts": "x"} | lacks verdicts
"""


@each_row("content fault", INCOMPLETE)
def test_a_file_that_lacks_something_says_so(content, fault, tmp_path):
    path = tmp_path / "sources.json"
    path.write_text(content)

    assert read_run_file(path) == ({}, fault)


def test_a_file_that_is_empty_or_missing_says_so(tmp_path):
    path = tmp_path / "sources.json"
    assert read_run_file(path) == ({}, "is missing")

    path.touch()
    assert read_run_file(path) == ({}, "holds no JSON object")


def test_all_that_a_run_writes_passes(smoke):
    config, _ = smoke
    names = set()
    for path in config.folder.rglob("*.json"):
        if path.name in RUN_FILES and path.parent.name != "model":
            names.add(path.name)
            assert read_run_file(path) == (read_json(path), "")
    assert names == RUN_FILES.keys() - {"launch.json"}


@pytest.mark.parametrize("entry", [{"seconds": ["training", 3]}, {"attempt": 3}])
def test_a_run_whose_state_has_another_type_goes_on(entry, tmp_path, capsys):
    config = small_config(tmp_path)
    config.folder.mkdir(parents=True)
    state = config.folder / "state.json"
    state.write_text(json.dumps({"status": "stopped", "stage": "training", **entry}))

    with RunFolder(config):
        assert f"{state} is damaged: it has {next(iter(entry))}" in capsys.readouterr().err

    assert read_json(state)["attempt"]["number"] == 1
