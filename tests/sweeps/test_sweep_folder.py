"""Folder of a sweep: what is written of its runs is read again, and what is missing or damaged is said."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import become_ordinary, config_of, refused
from tests.run_folders import make_sweep_of_two
from tests.sweep_tools import TINY
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import Job, plan
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.launch import launch
from topr_exp.sweeps.sweep import RECORD, Run, find_run, make_runs, read_runs, record_runs


def launched_runs(output: Path, *settings: str, seeds: tuple[int, ...] = (4, 5)) -> list[Run]:
    """The runs of a launch, not yet written."""
    words = [f"output_dir={output}", "name=sweep", "algo=is", r'data.template="Is it \${question}?"', *settings]
    jobs = [Job([f"seed={seed}"], config_of(f"seed={seed}", *words)) for seed in seeds]
    return make_runs(jobs, [*settings], read_runs(output / "sweep"))


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = launched_runs(tmp_path)
    for run in runs:
        run.save()
    assert read_runs(tmp_path / "sweep") == runs
    assert runs[0].enter().data.template == "Is it ${question}?", "words that a sweep leaves as they are"


def test_a_second_launch_changes_settings_and_keeps_number_and_job(tmp_path: Path) -> None:
    for index, run in enumerate(launched_runs(tmp_path)):
        run.job = f"array_{index}"
        run.save()
    relaunch = launched_runs(tmp_path, "cluster.threads=2", seeds=(6, 5, 7))
    assert [run.number for run in relaunch] == [3, 2, 4]
    assert [run.job for run in relaunch] == [None, "array_1", None]
    assert relaunch[1].settings["cluster"]["threads"] == 2


def test_a_run_is_named_by_its_number_or_its_folder(tmp_path: Path) -> None:
    runs = launched_runs(tmp_path)
    assert find_run(runs, "2") == find_run(runs, runs[1].folder.name) == runs[1]
    with refused("several runs of .*; give a number from 1 to 2"):
        find_run(runs, "is_gsm8k")


def test_a_damaged_launch_file_leaves_its_run_out_with_a_warning(tmp_path, capsys):
    runs = launched_runs(tmp_path)
    for run in runs:
        run.save()
    (runs[0].folder / "launch.json").write_text('{"number": 1, "overrides": [')
    assert read_runs(tmp_path / "sweep") == runs[1:]
    warning = "launch.json holds no JSON object; the run is left out (the same launch writes the file again)"
    assert warning in capsys.readouterr().err


def test_runs_of_another_user_that_may_not_be_read_are_named(ordinary_user, capsys):
    sweep = make_sweep_of_two(ordinary_user / "sweep")
    folders = sorted(run.folder for run in read_runs(sweep))
    (folders[0] / "launch.json").chmod(0)
    folders[1].chmod(0)
    become_ordinary(ordinary_user)
    fault = "launch.json can't be read (Permission denied); the run is left out (the same launch writes the file again)"
    for command in ("status", "resume"):
        assert main([command, str(sweep)]) == 1
        *warnings, error = capsys.readouterr().err.splitlines()
        assert sorted(warnings) == [f"warning: {folder}/{fault}" for folder in folders]
        assert "(no run has a launch.json that can be read)" in error


# ---- the record of all runs, which misses folders that were removed by hand


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of a finished run (topr) and a stopped one (tis), with its record."""
    folder = make_sweep_of_two(tmp_path / "sweep")
    record_runs(folder, read_runs(folder))
    return folder


def test_status_shows_a_removed_run_with_the_way_to_make_it_again(sweep, capsys):
    removed = next(sweep.glob("tis*"))
    shutil.rmtree(removed)
    assert main(["status", str(sweep)]) == 0
    _, _, line, *_, counts = capsys.readouterr().out.splitlines()
    assert counts == "2 runs: 1 done, 1 removed"
    assert line.split()[:3] == ["2", "algo=tis", "removed"]
    assert removed.name in line
    assert line.endswith("its folder is gone; the same launch makes it again")


@pytest.mark.parametrize("content", [None, "{"])
def test_status_shows_a_run_without_its_settings_as_unreadable(sweep, content, capsys):
    path = next(sweep.glob("tis*")) / "launch.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert main(["status", str(sweep)]) == 0
    _, _, line, *_, counts = capsys.readouterr().out.splitlines()
    assert counts == "2 runs: 1 done, 1 unreadable"
    assert line.endswith("launch.json is missing or damaged")


def test_resume_does_not_call_a_sweep_done_of_which_a_run_was_removed(sweep, capsys):
    shutil.rmtree(next(sweep.glob("tis*")))
    assert main(["resume", str(sweep)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"sweep {sweep}: 2 runs: 1 done, 1 removed; 0 to start" in lines
    (relaunch,) = [line for line in lines if line.startswith("again: ")]
    assert relaunch.endswith(f"python -m topr_exp -m algo=topr,tis output_dir={sweep.parent} name={sweep.name}")


def test_the_record_is_written_before_any_run_and_keeps_those_of_earlier_launches(sweep: Path) -> None:
    earlier_runs = json.loads((sweep / RECORD).read_text())["runs"]
    words = ["-m", *TINY, "algo=ppo,grpo", f"output_dir={sweep.parent}", f"name={sweep.name}"]
    planned = plan(parse_arguments(words))
    planned.jobs[0].config.folder.write_text("a file in the place of a run's folder")
    with refused("cannot write in"):
        launch(planned, words)
    recorded = json.loads((sweep / RECORD).read_text())["runs"]
    names = [job.config.folder.name for job in planned.jobs]
    assert recorded.keys() == {*earlier_runs, *names}
    assert [recorded[name]["number"] for name in names] == [3, 4]
    assert "algo=ppo" in recorded[names[0]]["overrides"]


def test_a_damaged_record_is_said_and_the_runs_are_shown(sweep, capsys):
    (sweep / RECORD).write_text('{"runs": {"a": {"number": "one"}}}')
    assert main(["status", str(sweep)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("2 runs: 1 done, 1 ")
    assert "sweep.json has runs=" in printed.err
    assert "whether a run's folder was removed is not known" in printed.err
