"""Run folders in any state: unfinished, damaged and foreign ones become notes."""

import json
import os
import random
import shutil

import pytest

from tests.conftest import append_text, become_ordinary, column, names_in, refused, write_file, write_lines
from tests.run_folders import make_run, write_json
from topr_exp import compare
from topr_exp.report import __main__ as report
from topr_exp.report.reader import find_runs, read_run
from topr_exp.sweeps import __main__ as sweeps
from topr_exp.sweeps.sweep import Run

EVALUATIONS = """
{"iteration": 0, "pass@1": 0.2}
{"iteration": 0, "pass@1": 0.25, "subset": 50}
{"iteration": 1, "pass@1": 0.5, "subset": 50, "step": 10}
{"iteration": 1, "pass@1": 0.6, "subset": 50, "step": 20}
{"iteration": 1, "pass@1": 0.7, "subset": 50}
{"iteration": 1, "pass@1": 0.65}
"""


def test_a_curve_has_the_last_evaluation_of_each_step_and_the_results_those_of_all_problems(tmp_path):
    _, folder = make_run(tmp_path)
    write_lines(folder / "eval.jsonl", EVALUATIONS.strip().splitlines())
    (folder / "summary.json").unlink()

    run = read_run(folder)

    assert column(run.evaluations, "pass@1") == [0.2, 0.65]
    assert column(run.curve, "optimizer_step") == [0, 10, 20]
    assert column(run.curve, "pass@1") == [0.25, 0.5, 0.7]
    assert column(run.summary.values(), "pass@1") == [0.2, 0.65], "a lost summary is that of the evaluations"


def test_an_unfinished_run_shows_how_far_it_got(tmp_path):
    _, folder = make_run(tmp_path, done=False)
    (folder / "error.txt").write_text("TOPRError: no space left\n\ntraceback")
    write_json(folder / "summary.json", {"base": {"pass@1": 0.2}, "note": "no positives"})
    append_text(folder / "metrics.jsonl", '{"iteration": 1, "step": 21, "sam')

    run = read_run(folder)

    assert run.status == "running"
    assert len(run.updates) == 20
    assert run.summary_number("base", "pass@1") == 0.2
    assert run.summary_number("final", "pass@1") is None
    assert run.notes == ["no positives", "failed: TOPRError: no space left", "not finished (20 updates logged)"]
    (folder / "summary.json").unlink()
    append_text(folder / "eval.jsonl", '{"iteration": 1, "pass@1": 0.4}')
    assert read_run(folder).summary_number("final", "pass@1") is None


@pytest.mark.parametrize("done", [False, True])
def test_runs_among_many_have_the_same_curves(tmp_path, done):
    """They hold no updates, of which there may be millions, but read them again for a curve."""
    _, folder = make_run(tmp_path, done=done)
    append_text(folder / "metrics.jsonl", "damaged")
    single_run = read_run(folder)

    (among_many,) = find_runs([tmp_path])

    assert among_many.updates == []
    assert among_many.update_count == len(single_run.updates) == 20
    assert any("metrics.jsonl: line 21 left out" in note for note in single_run.notes) == done
    for kind, frame in single_run.curves.items():
        assert frame.equals(among_many.curves[kind])


def test_runs_are_found_below_and_nothing_inside_them(tmp_path):
    with refused("no runs below"):
        find_runs([tmp_path])
    with refused("no such folder"):
        find_runs([tmp_path / "missing"])
    _, folder = make_run(tmp_path / "a", "name=first")
    make_run(tmp_path / "a", "name=second", "seed=1")
    for name in ("model", "iteration-1"):
        write_file(folder / name / "config.json", "{}")

    assert [run.path.parent.name for run in find_runs([tmp_path])] == ["first", "second"]
    assert len(find_runs([tmp_path, folder, tmp_path / "a"])) == 2
    for name in ("b", "c"):  # of one name: told apart by their folders
        make_run(tmp_path / name, "name=third")
    assert len({run.name for run in find_runs([tmp_path])}) == 4


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


def test_a_run_is_finished_by_its_mark_not_by_what_its_state_says(tmp_path):
    _, folder = make_run(tmp_path, done=False)
    write_json(folder / "state.json", {"status": "done"})

    run = read_run(folder)

    assert run.status == "unfinished"
    assert run.is_done is False
    assert any(note.startswith("not finished") for note in run.notes)


# ---- a damaged run is a line of its own in the report, compare and `sweeps status`, whatever stands in its files

RESULTS = ("summary.json", "config.json", "eval.jsonl", "metrics.jsonl")
OTHERS = ("state.json", "environment.json", "completions.jsonl", "error.txt", "run.claim")
NO_OBJECTS = [b"", b"{}", b"[]\n", b"null\n", b"NaN", b'[[["x"]]]\n', b'"text"\n', bytes(range(256)), b"\xff{\n"]
DEEP = [b"[" * 10**5, b'{"a":' * 500 + b"1" + b"}" * 500]
VALUES = [float("nan"), 10**400, "text", [[["x"]]], {"a": {"b": 1}}, None, True, -1, "a\0\ud800"]


def damaged_contents(content):
    """A file damaged in every way: of another kind, cut, and with other values in some of its places."""
    yield from (*NO_OBJECTS, *DEEP, content[: len(content) // 2], content[:-3])
    lines = [content or b"{}"]
    if b"\n{" in content:
        lines = content.splitlines()
    rng = random.Random(0)
    for value in VALUES:
        damaged_lines = []
        for line in lines:
            document = json.loads(line)
            all_places = list(places(document))
            for container, key in rng.sample(all_places, min(3, len(all_places))):
                container[key] = value
            damaged_lines.append(f"{json.dumps(document)}\n")
        yield "".join(damaged_lines).encode()


def places(value):
    """Where values stand in nested lists and objects, and in what."""
    keys = []
    if isinstance(value, list):
        keys = range(len(value))
    elif isinstance(value, dict):
        keys = list(value)
    for key in keys:
        yield value, key
        yield from places(value[key])


@pytest.mark.parametrize(
    "name", [RESULTS[0], *(pytest.param(name, marks=pytest.mark.extended) for name in RESULTS[1:] + OTHERS)]
)
def test_a_damaged_run_is_a_line_and_costs_no_other_anything(smoke, name, tmp_path, capsys):
    config, _ = smoke
    sweep = tmp_path / "sweep"
    shutil.copytree(config.store, tmp_path / "store")
    intact = shutil.copytree(config.folder, sweep / "intact", ignore=shutil.ignore_patterns("model"))
    content = (intact / name).read_bytes() if (intact / name).exists() else b""
    for number, damaged_content in enumerate(damaged_contents(content)):
        folder = shutil.copytree(intact, sweep / f"damaged-{number}")
        (folder / name).write_bytes(damaged_content)
        if name in RESULTS:
            assert read_run(folder).notes or number >= len(NO_OBJECTS)
        elif number % 2:
            (folder / "DONE").unlink()
    names = names_in(sweep)
    for number, folder_name in enumerate(names):
        Run(sweep / folder_name, number, [], {}, "", [], 0.0).save()

    assert (read_run(intact).notes, read_run(intact).status) == ([], "done")
    assert report.main([str(sweep), "--out", str(tmp_path / "out")]) == 0
    rows = (tmp_path / "out/tables/runs.csv").read_text().splitlines()
    assert {row.partition(",")[0] for row in rows} >= names
    assert compare.main([str(sweep)]) == 0
    assert "[ ]: 95 %" in capsys.readouterr().out
    assert sweeps.main(["status", str(sweep)]) == 0
    assert capsys.readouterr().out.count("\n") == len(names) + 2
