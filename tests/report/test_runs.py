"""The report reads what is there: unfinished, damaged and foreign folders become notes."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import become_ordinary, write_lines
from tests.run_folders import make_run
from topr_exp import compare
from topr_exp.report import __main__ as report
from topr_exp.report import plots
from topr_exp.report.reader import find_runs, read_run
from topr_exp.sweeps import __main__ as sweeps
from topr_exp.sweeps import run_status
from topr_exp.sweeps.sweep import Run
from topr_exp.types import TOPRError


def test_a_curve_has_the_last_evaluation_of_each_step_and_the_results_those_of_all_problems(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path)
    on_subset, ended = {"subset": 50}, {"iteration": 1}
    evaluations = [{"iteration": 0, "pass@1": 0.2}, {"iteration": 0, **on_subset, "pass@1": 0.25},
            {**ended, "step": 10, **on_subset, "pass@1": 0.5}, {**ended, "step": 20, **on_subset, "pass@1": 0.6},
            {**ended, **on_subset, "pass@1": 0.7}, {**ended, "pass@1": 0.65}]  # fmt: skip
    write_lines(folder / "eval.jsonl", evaluations)
    run = read_run(folder)
    assert [record["pass@1"] for record in run.evaluations] == [0.2, 0.65]
    assert [(record["optimizer_step"], record["pass@1"]) for record in run.curve] == [(0, 0.25), (10, 0.5), (20, 0.7)]


def test_an_unfinished_run_shows_how_far_it_got(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path, done=False)
    (folder / "error.txt").write_text("TOPRError: no space left\n\ntraceback")
    (folder / "summary.json").write_text(json.dumps({"base": {"pass@1": 0.2}, "note": "no positives"}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 1, "step": 21, "sam')
    run = read_run(folder)
    assert (run.status, len(run.updates)) == ("running", 20)
    assert (run.figure("base", "pass@1"), run.figure("final", "pass@1")) == (0.2, None)
    assert run.notes == ["no positives", "failed: TOPRError: no space left", "not finished (20 updates logged)"]


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
    assert (len(run.updates), run.completions) == (20, [])


def test_runs_are_found_below_and_nothing_inside_them(tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match="no runs below"):
        find_runs([tmp_path])
    with pytest.raises(TOPRError, match="no such folder"):
        find_runs([tmp_path / "missing"])
    _, folder = make_run(tmp_path / "a", "name=first")
    make_run(tmp_path / "a", "name=second", "seed=1")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "iteration-1").mkdir()
    assert [run.path.parent.name for run in find_runs([tmp_path])] == ["first", "second"]
    assert len(find_runs([tmp_path, folder, tmp_path / "a"])) == 2
    assert [run.path for run in find_runs([folder])] == [folder]
    make_run(tmp_path / "b", "name=third")
    names = [run.name.split("/") for run in find_runs([tmp_path])]
    assert [parts[0] for parts in names] == ["first", names[1][0], "third"], "of one name: told apart by their folders"
    make_run(tmp_path / "c", "name=third")
    assert len({run.name for run in find_runs([tmp_path])}) == 4, "by more of them where sweeps have one name"


def test_runs_that_may_not_be_read_are_left_out_with_a_warning(ordinary_user, capsys):
    make_run(ordinary_user, "seed=0")
    _, hidden = make_run(ordinary_user, "seed=1")
    hidden.chmod(0)
    become_ordinary(ordinary_user)
    runs = find_runs([ordinary_user])
    os.seteuid(os.getuid())
    hidden.chmod(0o755)
    assert [run.config["seed"] for run in runs] == [0]
    assert f"cannot read {hidden}: Permission denied; what is in it is left out" in capsys.readouterr().err


# ---- a damaged run is a line of its own in the report, compare and `sweeps status`, whatever stands in its files

RESULTS = ("config.json", "summary.json", "eval.jsonl", "metrics.jsonl")
OTHERS = ("state.json", "environment.json", "completions.jsonl", "error.txt", "run.claim")
FOUND_RUNNING = ("state.json", "error.txt", "run.claim", "eval.jsonl")
DEEP = [b"[" * 10**5, b'{"a":' * 500 + b"1" + b"}" * 500]
WHOLE = [b"", b"{}", b"[]\n", b"null\n", b"NaN", b'[[["x"]]]\n', b'"text"\n', bytes(range(256)), b"\xff{\n", *DEEP]
VALUES: list[Any] = [float("nan"), 10**400, "text", [[["x"]]], {"a": {"b": 1}}, None, True, -1, "a\0\ud800"]


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


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.extended] * (name != "summary.json")) for name in (*RESULTS, *OTHERS)],
)
def test_a_damaged_run_is_a_line_and_costs_no_other_anything(smoke, name, tmp_path, monkeypatch, capsys):
    finished = smoke[0].folder
    shutil.copytree(smoke[0].store, tmp_path / "store")
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
            run_of_folder = read_run(folder)
            assert run_of_folder.notes or name in OTHERS or number > len(WHOLE) + 2, (state, version)
    for number, folder_name in enumerate(names, 1):
        Run(intact.with_name(folder_name), number, [], {}, "", [], 0.0).save()
    run = read_run(intact)
    assert (run.notes, run.status) == ([], "done")
    assert run.figure("final", "pass@1") == run.evaluations[-1]["pass@1"]
    if name in OTHERS:  # figures show nothing of them
        monkeypatch.setattr(plots, "plot_runs", lambda *_: [])
    capsys.readouterr()

    assert report.main([str(intact.parent), "--out", str(tmp_path / "out")]) == 0
    rows = (tmp_path / "out" / "tables" / "runs.csv").read_text().split("\n")
    assert {row.split(",")[0] for row in rows} >= set(names)
    assert compare.main([str(intact.parent)]) == 0
    assert "[ ]: 95 %" in capsys.readouterr().out
    if name != "run.claim":
        monkeypatch.setattr(run_status, "is_running", lambda folder: "running" in folder.name)
    assert sweeps.main(["status", str(intact.parent)]) == 0
    assert capsys.readouterr().out.count("\n") == len(names) + 2
