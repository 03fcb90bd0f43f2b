"""The report reads what is there: unfinished, damaged and foreign folders become notes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import become_ordinary
from tests.run_folders import make_run
from topr_exp.report.runs import find_runs, read_run
from topr_exp.types import TOPRError


def test_a_finished_run_has_no_notes(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path)
    run = read_run(folder)
    assert run.notes == []
    assert run.status == "done"
    assert run.config["algo"]["name"] == "topr"
    assert len(run.updates) == 20
    assert run.figure("final", "pass@1") == run.evaluations[-1]["pass@1"]


def test_a_curve_has_the_last_evaluation_of_each_step_and_the_results_those_of_all_problems(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path)
    some, ended = {"subset": 50}, {"iteration": 1}
    told = [{"iteration": 0, "pass@1": 0.2}, {"iteration": 0, **some, "pass@1": 0.25},
            {**ended, "step": 10, **some, "pass@1": 0.5}, {**ended, "step": 20, **some, "pass@1": 0.6},
            {**ended, **some, "pass@1": 0.7}, {**ended, "pass@1": 0.65}]  # fmt: skip
    (folder / "eval.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    run = read_run(folder)
    assert [each["pass@1"] for each in run.evaluations] == [0.2, 0.65]
    assert [(each["optimizer_step"], each["pass@1"]) for each in run.curve] == [(0, 0.25), (10, 0.5), (20, 0.7)]


def test_what_the_run_warned_of_is_a_note(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path)
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": "no positives"}))
    assert read_run(folder).notes == ["no positives"]


def test_an_unfinished_run_shows_how_far_it_got(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path, done=False)
    (folder / "error.txt").write_text("TOPRError: the disk is full\n\ntraceback")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 1, "step": 21, "sam')
    run = read_run(folder)
    assert run.status == "running"
    assert len(run.updates) == 20
    assert run.figure("base", "pass@1") == 0.2
    assert run.figure("final", "pass@1") is None
    assert run.notes == ["failed: TOPRError: the disk is full", "not finished (20 updates logged)"]


@pytest.mark.parametrize("name", ["config.json", "summary.json", "state.json"])
@pytest.mark.parametrize("content", [None, "", "{", "[]", "null", '{"identity": 3}', "\x00\xff"])
def test_damaged_files_are_notes(tmp_path: Path, name: str, content: str | None) -> None:
    _, folder = make_run(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content, encoding="latin-1")
    run = read_run(folder)
    if name != "state.json":  # a finished run's is not read
        assert len(run.notes) == 1, run.notes
    assert len(run.updates) == 20


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path)
    for name in ("metrics.jsonl", "eval.jsonl", "completions.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'rubbish\n{"iteration": 1}\n\xff\xfe\n[3]\n')
    run = read_run(folder)
    counts = {"metrics.jsonl": 4, "eval.jsonl": 3, "completions.jsonl": 4}
    assert [note for note in run.notes if "damaged" in note] == [
        f"{name}: {count} lines left out, damaged or another version's" for name, count in counts.items()
    ]
    assert len(run.updates) == 20
    assert run.completions == []


def test_another_versions_folder_is_a_note(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"accuracy": 0.5, "base": [1, 2], "final": "good"}))
    (folder / "metrics.jsonl").write_text('{"update": 1, "loss": 2.0}\n')
    (folder / "config.json").write_text(json.dumps({"lr": 1}))
    (folder / "DONE").touch()
    run = read_run(folder)
    assert run.notes.pop(2) == "eval.jsonl is missing or holds nothing"
    assert len(run.notes) == 3
    assert all("another version" in note for note in run.notes)


def test_runs_are_found_below_and_nothing_inside_them(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path / "a", "name=first")
    make_run(tmp_path / "a", "name=second", "seed=1")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "iteration-1").mkdir()
    assert [run.path.parent.name for run in find_runs([tmp_path])] == ["first", "second"]
    assert len(find_runs([tmp_path, folder, tmp_path / "a"])) == 2
    assert [run.path for run in find_runs([folder])] == [folder]


def test_runs_that_may_not_be_read_are_left_out_with_a_warning(
    ordinary_user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(ordinary_user, "seed=0")
    _, hidden = make_run(ordinary_user, "seed=1")
    hidden.chmod(0)
    become_ordinary(ordinary_user)
    found = find_runs([ordinary_user])
    os.seteuid(os.getuid())
    hidden.chmod(0o755)
    assert [run.config["seed"] for run in found] == [0]
    assert f"cannot read {hidden}: no permission; what is in it is left out" in capsys.readouterr().err


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "x")
    make_run(tmp_path / "y")
    assert [run.name.split("/")[0] for run in find_runs([tmp_path])] == ["runs", "runs"]


def test_nothing_to_report_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match="no runs below"):
        find_runs([tmp_path])
    with pytest.raises(TOPRError, match="no such folder"):
        find_runs([tmp_path / "missing"])
