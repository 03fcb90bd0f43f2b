"""Folder of a sweep: what is written of its runs is read again, and what is missing or damaged is said."""

import json
import shutil

import pytest

from tests.conftest import become_ordinary, config_of, plan_of, read_json, refused, values_of
from tests.run_folders import make_sweep_of_two
from tests.sweep_tools import TINY
from topr_exp.runs.plan import Job
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.launch import launch
from topr_exp.sweeps.sweep import RECORD, find_run, make_runs, read_runs, record_runs


def make_launch(output, *settings, seeds=(4, 5)):
    """The runs of a launch, not yet written."""
    words = [f"output_dir={output}", "name=sweep", "algo=is", r'data.template="Is it \${question}?"', *settings]
    jobs = []
    for seed in seeds:
        seed_word = f"seed={seed}"
        jobs.append(Job([seed_word], config_of(seed_word, *words)))
    return make_runs(jobs, list(settings), read_runs(output / "sweep"))


def test_runs_are_read_as_they_were_written_and_found_by_number_or_folder(tmp_path):
    runs = make_launch(tmp_path)
    for run in runs:
        run.save()

    assert read_runs(tmp_path / "sweep") == runs
    assert runs[0].enter().data.template == "Is it ${question}?", "words that a sweep leaves as they are"
    assert find_run(runs, "2") == find_run(runs, runs[1].folder.name) == runs[1]
    with refused("several runs of .*; give a number from 1 to 2"):
        find_run(runs, "is_gsm8k")


def test_a_second_launch_changes_settings_and_keeps_number_and_job(tmp_path):
    for index, run in enumerate(make_launch(tmp_path)):
        run.job = f"array_{index}"
        run.save()

    runs = make_launch(tmp_path, "cluster.threads=2", seeds=(6, 5, 7))

    assert values_of(runs, "number") == [3, 2, 4]
    assert values_of(runs, "job") == [None, "array_1", None]
    assert runs[1].settings["cluster"]["threads"] == 2


def test_a_damaged_launch_file_leaves_its_run_out_with_a_warning(sweep_of_two, capsys):
    damaged, intact = read_runs(sweep_of_two)
    path = damaged.folder / "launch.json"
    stored = read_json(path)

    for content, fault in (
        ('{"number": 1, "overrides": [', "holds no JSON object"),
        (json.dumps({**stored, "overrides": [None]}), "has overrides=[None], which is not a list, each a text"),
    ):
        path.write_text(content)
        assert read_runs(sweep_of_two) == [intact]
        line = f"{path} {fault}; the run is left out (the same launch writes the file again)"
        assert line in capsys.readouterr().err


def test_runs_of_another_user_that_may_not_be_read_are_named(ordinary_user, capsys):
    sweep = make_sweep_of_two(ordinary_user / "sweep")
    folders = sorted(values_of(read_runs(sweep), "folder"))
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
def sweep(sweep_of_two):
    """A sweep with its record."""
    record_runs(sweep_of_two, read_runs(sweep_of_two))
    return sweep_of_two


def test_a_removed_run_is_shown_with_the_way_to_make_it_again(sweep, capsys):
    removed = next(sweep.glob("tis*"))
    shutil.rmtree(removed)

    assert main(["status", str(sweep)]) == 0
    _, _, line, *_, counts = capsys.readouterr().out.splitlines()
    assert counts == "2 runs: 1 done, 1 removed"
    assert line.split()[:3] == ["2", "algo=tis", "removed"]
    assert removed.name in line
    assert line.endswith("its folder is gone; the same launch makes it again")

    assert main(["resume", str(sweep)]) == 1
    out = capsys.readouterr().out
    assert f"sweep {sweep}: 2 runs: 1 done, 1 removed; 0 to start" in out
    assert f"python -m topr_exp -m algo=topr,tis output_dir={sweep.parent} name={sweep.name}\n" in out


@pytest.mark.parametrize("command", ["status", "resume"])
def test_a_removed_record_is_said(command, sweep, capsys):
    shutil.rmtree(next(sweep.glob("tis*")))
    (sweep / RECORD).unlink()
    for run in read_runs(sweep):
        (run.folder / "DONE").touch()

    assert main([command, str(sweep)]) == 0

    words = "whether a run's folder was removed is not known"
    assert f"warning: {sweep / RECORD} is missing: {words}" in capsys.readouterr().err
    assert (sweep / RECORD).exists() == (command == "resume"), "of the runs that are left"


def test_a_damaged_record_is_written_again_and_what_it_lost_is_said(sweep, capsys):
    runs = read_json(sweep / RECORD)
    (sweep / RECORD).write_text("{")

    record_runs(sweep, read_runs(sweep))

    assert read_json(sweep / RECORD) == runs
    line = f"warning: {sweep / RECORD} holds no JSON object, and is written again: runs whose folders were removed are"
    assert capsys.readouterr().err.startswith(line)


def test_the_record_is_written_before_any_run_and_keeps_those_of_earlier_launches(sweep):
    words = ["-m", *TINY, "algo=ppo,grpo", f"output_dir={sweep.parent}", f"name={sweep.name}"]
    jobs = plan_of(*words).jobs
    names = [job.config.folder.name for job in jobs]
    (sweep / names[0]).write_text("a file in the place of a run's folder")
    earlier_runs = read_json(sweep / RECORD)["runs"]

    with refused("cannot write in"):
        launch(jobs, words)

    runs = read_json(sweep / RECORD)["runs"]
    assert runs.keys() == {*earlier_runs, *names}
    assert [runs[name]["number"] for name in names] == [3, 4]
    assert "algo=ppo" in runs[names[0]]["overrides"]
