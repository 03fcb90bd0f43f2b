"""Resume of a sweep: settings that may change, and stored settings that nothing obeys without confirmation."""

import importlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import refused
from tests.run_folders import make_sweep_of_two
from tests.sweeps.fake_scheduler import FakeScheduler
from topr_exp.config.load import build_section
from topr_exp.runs.plan import recompose
from topr_exp.runtime.locks import Lock
from topr_exp.schema import plain
from topr_exp.sweeps import resume
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.named_code import (
    CLUSTER_KEYS,
    KEYS,
    TARGET_KEYS,
    cluster_code_settings,
    code_settings,
    is_installed,
)
from topr_exp.sweeps.sweep import read_runs
from topr_exp.types import ConfigError


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of a finished run and a stopped one on a cluster, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return make_sweep_of_two(tmp_path / "sweep", "cluster=slurm")


# ---- settings


def test_changed_cluster_settings_reach_the_run_that_starts_and_its_file(sweep: Path, scheduler: FakeScheduler) -> None:
    assert main(["resume", "sweep", "cluster.nodes=2", "cluster.gpus_per_node=4"]) == 0
    ((numbers, cluster),) = scheduler.submissions
    _, stopped = read_runs(sweep)
    assert numbers == [stopped.number]
    assert stopped.config().cluster == cluster
    assert (plain(cluster)["nodes"], plain(cluster)["gpus_per_node"]) == (2, 4)


def test_changes_of_a_resume_are_to_the_launch_and_not_to_the_last_resume(
    sweep: Path, scheduler: FakeScheduler
) -> None:
    for setting in ("cluster.timeout_min=60", "cluster.nodes=2"):
        main(["resume", "sweep", setting])
        scheduler.jobs.clear()
    assert [plain(cluster)["timeout_min"] for _, cluster in scheduler.submissions] == [60, 240]


def test_settings_that_no_run_can_have_are_refused_before_anything_starts(sweep, scheduler, capsys):
    assert main(["resume", "sweep", "cluster.nodes=3"]) == 2
    assert "cluster.nodes times cluster.gpus_per_node must divide optim.batch_size=32" in capsys.readouterr().err
    for run in read_runs(sweep):
        (run.folder / "DONE").touch()
    assert main(["resume", "sweep", "cluster.nodes=3"]) == 0, "none is to start"
    assert scheduler.submissions == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "sweep", "cluster=local", "cluster.device=cuda"]) == 2
    assert "error: cluster.device=cuda: " in capsys.readouterr().err


def test_resuming_changes_the_cluster_and_nothing_else(tmp_path: Path) -> None:
    cluster = plain(recompose(["-m", "cluster=slurm", "cluster.partition=a", "seed=0,1"], ["cluster.account=high"]))
    assert (cluster["partition"], cluster["account"]) == ("a", "high")
    assert plain(recompose(["cluster=slurm", "cluster.partition=a"], ["cluster=local"]))["name"] == "local"
    with refused("only cluster settings can change", ConfigError):
        recompose(["-m", "seed=0,1"], ["optim.lr=1"])


def test_the_cluster_of_a_resumed_sweep_is_composed_as_that_of_its_launch(tmp_path: Path) -> None:
    for group, text in (
        ("experiment", "# @package _global_\ncluster:\n  jobs: 7\n"),
        ("cluster", "defaults: [local, _self_]\njobs: 5\n"),
    ):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
    own_settings = ["--config-dir", str(tmp_path), "-m", "seed=0,1"]
    assert plain(recompose([*own_settings, "experiment=mine"], ["cluster.threads=1"]))["jobs"] == 7
    by_size = plain(
        recompose([*own_settings, "+experiment=mine", "cluster.threads=${size:4,12}", "model=llama3_8b"], [])
    )
    assert (by_size["jobs"], by_size["threads"]) == (7, 12)
    assert plain(recompose(["-m", f"hydra.searchpath=[{tmp_path}]", "cluster=mine", "seed=0,1"], []))["jobs"] == 5


def test_further_options_of_a_cluster_are_names_and_values() -> None:
    cluster = plain(recompose(["cluster=slurm"], ["cluster.additional_parameters={mail-type: END, nice: 5}"]))
    assert cluster["additional_parameters"] == {"mail-type": "END", "nice": 5}
    for value in ("[END]", "END"):
        with refused(r"cluster.additional_parameters must be null or \{NAME: VALUE\}; got", ConfigError):
            recompose(["cluster=slurm"], [f"cluster.additional_parameters={value}"])


@pytest.mark.parametrize("key", ["partition", "account", "additional_parameters"])
def test_no_option_of_a_job_is_two_lines_of_its_script(key: str) -> None:
    text = "main\ntouch ran"
    value = {"comment": text} if key == "additional_parameters" else text
    with refused(f"{key} must be .*a single line", ConfigError):
        build_section("cluster", {**vars(recompose(["cluster=slurm"], [])), key: value})


# ---- places and owners


def test_a_sweep_that_was_moved_is_not_resumed_in_its_old_place(sweep, scheduler, capsys):
    moved = sweep.rename(sweep.with_name("moved"))
    assert main(["resume", "moved"]) == 1
    message = f"error: moved was launched as {sweep}, where its runs would go on: move it back\n"
    assert capsys.readouterr().err.endswith(message)
    assert moved.exists()
    assert not sweep.exists()


def test_a_sweep_launched_with_a_folder_of_settings_is_resumed_from_anywhere(tmp_path, scheduler, monkeypatch):
    (tmp_path / "own" / "algo").mkdir(parents=True)
    (tmp_path / "own" / "algo" / "topr.yaml").write_text((Path.cwd() / "conf" / "algo" / "topr.yaml").read_text())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    sweep = make_sweep_of_two(tmp_path / "sweep", "cluster=slurm")
    for path in sweep.glob("*/launch.json"):
        stored = json.loads(path.read_text())
        path.write_text(json.dumps({**stored, "arguments": ["--config-dir", "own", *stored["arguments"]]}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["resume", str(sweep), "cluster.timeout_min=60"]) == 0
    assert len(scheduler.submissions) == 1
    assert Path.cwd() == tmp_path / "elsewhere"


@pytest.mark.parametrize("uid_offset", [0, 4711])
def test_resuming_another_users_sweep_says_whose_settings_run(uid_offset, sweep, scheduler, monkeypatch, capsys):
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + uid_offset)
    assert main(["resume", "sweep"]) == 0
    warning = f"warning: sweep belongs to user {uid}, whose settings now run as yours, with the code that"
    assert capsys.readouterr().err.startswith(warning) == bool(uid_offset)


def test_a_place_outside_is_refused_unless_it_is_the_current_folder(packed, scheduler, monkeypatch, capsys):
    elsewhere = packed.folder.parent / "else where"
    for place in (elsewhere, packed.folder / "x"):
        place.mkdir()
        packed.change(cwd=str(place))
        assert main(["resume", "nice_sweep"]) == 2
        error = capsys.readouterr().err
        assert f"was launched in {place}, which it does not lie in" in error
        assert error.count("\n") == 1
    packed.change(cwd=str(elsewhere))
    monkeypatch.chdir(elsewhere)
    assert main(["resume", str(packed.folder)]) == 0
    assert f"launched in {elsewhere}; code beyond topr_exp: none" in capsys.readouterr().out


# ---- code that stored settings name

PAYLOAD = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
"""
CODE_BY_KEY = {
    "algo._target_": "nice_sweep.payload.Evil", "data._target_": "nice_sweep.payload.Evil",
    "data.grader._target_": "nice_sweep.payload.grade", "sampler._target_": "nice_sweep.payload.Sampler",
    "sampler.python": "nice_sweep/python", "model.trust_remote_code": True,
}  # fmt: skip


@dataclass
class PackedSweep:
    """A sweep that somebody else packed, with a module beside it."""

    folder: Path
    module: Path

    @property
    def module_ran(self) -> bool:
        return self.module.with_name("ran").exists()

    def change(self, **changes: Any) -> None:
        """Change each run's launch.json; keys with two underscores are those of its settings."""
        for path in self.folder.glob("*/launch.json"):
            stored = json.loads(path.read_text())
            for key, value in changes.items():
                *groups, name = key.split("__")
                if groups == ["data", "grader"]:
                    stored["settings"]["data"]["grader"] = {name: value}
                elif groups:
                    stored["settings"][groups[0]][name] = value
                else:
                    stored[key] = value
            path.write_text(json.dumps(stored))


@pytest.fixture
def packed(tmp_path: Path, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> PackedSweep:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nice_sweep"]:
        monkeypatch.delitem(sys.modules, name)
    folder = make_sweep_of_two(tmp_path / "nice_sweep", "cluster=slurm")
    for name in ("payload.py", "__init__.py"):
        (folder / name).write_text(PAYLOAD)
    return PackedSweep(folder, folder / "payload.py")


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_that_names_code_needs_confirmation(key: str, packed: PackedSweep, capsys: Any) -> None:
    value = CODE_BY_KEY[key]
    packed.change(**{key.replace(".", "__"): value})
    confirmation = f"{key}={str(value).lower() if value is True else value}"
    assert main(["resume", "nice_sweep"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"say so: python -m topr_exp.sweeps resume nice_sweep {confirmation}\n")
    assert error.count("\n") == 1
    assert main(["resume", "nice_sweep", f"{key}=nice_sweep.other"]) == 2
    assert "no run of nice_sweep that is to start has this setting" in capsys.readouterr().err
    assert not packed.module_ran
    status = main(["resume", "nice_sweep", confirmation])
    printed = capsys.readouterr()
    is_imported = key in TARGET_KEYS and not key.startswith("data.grader")  # the others are needed once runs begin
    assert packed.module_ran == is_imported, printed
    if status == 0:
        assert f"code beyond topr_exp: {confirmation}\n" in printed.out
    else:  # it is confirmed, and what it names is no loss
        assert "that is not installed" not in printed.err


def test_the_list_of_settings_that_name_code_is_complete() -> None:
    """A new call that imports what a setting names is noticed here: its setting belongs in KEYS."""
    package = Path(importlib.import_module("topr_exp").__path__[0])
    callers = set()
    for path in package.rglob("*.py"):
        if "topr_exp.import_own(" in path.read_text():
            callers.add(str(path.relative_to(package)))
    # class_of: algo._target_, data._target_, sampler._target_; grader: data.grader._target_
    assert callers == {"config/load.py", "grading/grader.py"}
    assert CODE_BY_KEY.keys() == {*KEYS}


def test_our_own_and_installed_modules_need_no_confirmation() -> None:
    own_settings = {
        "algo": {"_target_": "topr_exp.algorithms.Topr"},
        "data": {"grader": "math", "_target_": "topr_exp.data.X"},
        "sampler": {"name": "vllm", "python": None},
        "model": {"trust_remote_code": False},
    }
    assert code_settings(own_settings) == []
    assert code_settings({"algo": None, "data": {"grader": 3}, "sampler": ["x"]}) == []
    assert code_settings({"algo": {"_target_": "transformers.Loss"}}) == ["algo._target_=transformers.Loss"]
    assert is_installed("algo._target_=transformers.Loss")
    assert not is_installed("algo._target_=nice_sweep.payload.Loss")
    assert not is_installed("sampler.python=transformers")


@pytest.mark.parametrize("setting", ["cluster.setup=['touch ran']", "cluster.additional_parameters={comment: 'a b'}"])
def test_commands_of_a_cluster_need_confirmation(setting: str, packed: PackedSweep, scheduler, capsys) -> None:
    packed.change(arguments=["-m", "cluster=slurm", setting])
    assert main(["resume", "nice_sweep"]) == 2
    (confirmation,) = cluster_code_settings(recompose(["cluster=slurm", setting], []))
    assert f"resume nice_sweep '{confirmation}'" in capsys.readouterr().err
    assert scheduler.submissions == []
    assert main(["resume", "nice_sweep", confirmation]) == 0
    assert f"code beyond topr_exp: {confirmation}\n" in capsys.readouterr().out
    scheduler.jobs.clear()
    key = confirmation.partition("=")[0]
    assert key in CLUSTER_KEYS
    assert main(["resume", "nice_sweep", f"{key}=null"]) == 0
    assert "code beyond topr_exp: none\n" in capsys.readouterr().out


def test_settings_that_change_before_the_sweep_is_locked_need_confirmation(packed, monkeypatch, capsys):
    lock_run_folder = resume.lock_run_folder

    def change_and_lock(*arguments: Any) -> Lock:
        packed.change(algo___target_="nice_sweep.payload.Evil")
        return lock_run_folder(*arguments)

    monkeypatch.setattr(resume, "lock_run_folder", change_and_lock)
    assert main(["resume", "nice_sweep"]) == 2
    assert "say so: python -m topr_exp.sweeps resume nice_sweep algo._target_" in capsys.readouterr().err
    assert not packed.module_ran
