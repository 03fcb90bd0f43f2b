"""A run's folder that was removed by hand: the sweep's record has it, so that nobody takes the others for all."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import refused
from tests.run_folders import make_sweep_of_two
from tests.sweep_tools import TINY, answer
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import plan
from topr_exp.sweeps.launch import launch
from topr_exp.sweeps.sweep import RECORD, read_runs, record_runs


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of a finished run (topr) and a stopped one (tis), with its record."""
    folder = make_sweep_of_two(tmp_path / "sweep")
    record_runs(folder, read_runs(folder))
    return folder


def test_status_shows_a_removed_run_with_what_makes_it_again(sweep: Path) -> None:
    removed = next(sweep.glob("tis*"))
    shutil.rmtree(removed)
    lines = answer("topr_exp.sweeps", "status", sweep).stdout.splitlines()
    assert lines[-1] == "2 runs: 1 done, 1 removed"
    assert lines[2].split()[:3] == ["2", "algo=tis", "removed"]
    assert removed.name in lines[2]
    assert lines[2].endswith("its folder is gone; the same launch makes it again")


def test_status_shows_a_run_without_its_settings_as_unreadable(sweep: Path) -> None:
    for content in (None, "{"):
        path = next(sweep.glob("tis*")) / "launch.json"
        path.unlink() if content is None else path.write_text(content)
        lines = answer("topr_exp.sweeps", "status", sweep).stdout.splitlines()
        assert lines[-1] == "2 runs: 1 done, 1 unreadable"
        assert lines[2].endswith("launch.json is missing or damaged")
        path.write_text("{")


def test_resume_does_not_call_a_sweep_done_of_which_a_run_was_removed(sweep: Path) -> None:
    shutil.rmtree(next(sweep.glob("tis*")))
    done = answer("topr_exp.sweeps", "resume", sweep)
    assert done.returncode == 1
    assert f"sweep {sweep}: 2 runs: 1 done, 1 removed; 0 to start\n" in done.stdout
    (again,) = [line for line in done.stdout.splitlines() if line.startswith("again: ")]
    assert again.endswith(f"python -m topr_exp -m algo=topr,tis output_dir={sweep.parent} name={sweep.name}")
    assert "2 runs: 1 done, 1 removed" in answer("topr_exp.sweeps", "status", sweep).stdout


def test_the_record_is_written_before_any_run_and_keeps_those_of_earlier_launches(sweep: Path) -> None:
    before = json.loads((sweep / RECORD).read_text())["runs"]
    words = ["-m", *TINY, "algo=ppo,grpo", f"output_dir={sweep.parent}", f"name={sweep.name}"]
    planned = plan(parse_arguments(words))
    planned.jobs[0].config.folder.write_text("a file in the place of a run's folder")
    with refused("cannot write in"):
        launch(planned, words)
    runs = json.loads((sweep / RECORD).read_text())["runs"]
    names = [job.config.folder.name for job in planned.jobs]
    assert runs == {**before, **{name: runs[name] for name in names}}
    assert [runs[name]["number"] for name in names] == [3, 4]
    assert "algo=ppo" in runs[names[0]]["overrides"]


def test_a_damaged_record_is_said_and_the_runs_are_shown(sweep: Path) -> None:
    (sweep / RECORD).write_text('{"runs": {"a": {"number": "one"}}}')
    done = answer("topr_exp.sweeps", "status", sweep)
    assert done.stdout.splitlines()[-1].startswith("2 runs: 1 done, 1 ")
    assert "sweep.json has runs=" in done.stderr
    assert "whether a run's folder was removed is not known" in done.stderr
