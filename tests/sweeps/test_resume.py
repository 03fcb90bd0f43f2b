"""Resume of a sweep: settings that may change, and stored settings that nothing obeys without confirmation."""

import dataclasses
import os
import re
import sys
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, update_json, values_of, write_file
from tests.run_folders import make_sweep_of_two
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.named_code import (
    CODE_KEYS,
    TARGET_KEYS,
    cluster_code_settings,
    code_settings,
    names_installed_code,
)
from topr_exp.sweeps.resume import recompose
from topr_exp.sweeps.sweep import read_runs

PAYLOAD = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
"""


@dataclass
class StoredSweep:
    """A sweep of a finished run and a stopped one on a cluster, as somebody packed it, with a module beside it."""

    folder: Path

    @property
    def module_ran(self):
        return (self.folder / "ran").exists()

    def change(self, **values):
        """Change each run's launch.json."""
        for path in self.folder.glob("*/launch.json"):
            update_json(path, **values)

    def set(self, key, value):
        """Change a setting of each run."""
        *groups, name = key.split(".")
        for run in read_runs(self.folder):
            settings = run.settings
            for group in groups:
                if not isinstance(settings.get(group), dict):
                    settings[group] = {}
                settings = settings[group]
            settings[name] = value
            run.save()


@pytest.fixture
def sweep(tmp_path, scheduler):
    """In the current folder, as `nice_sweep`."""
    path = [*sys.path]
    with chdir(tmp_path):
        folder = make_sweep_of_two(tmp_path / "nice_sweep", "cluster=slurm")
        for name in ("payload.py", "__init__.py"):
            (folder / name).write_text(PAYLOAD)
        yield StoredSweep(folder)
    sys.path[:] = path
    for name in ("nice_sweep", "nice_sweep.payload"):
        sys.modules.pop(name, None)


def resume(*words):
    return main(["resume", "nice_sweep", *words])


# ---- settings


def test_changed_cluster_settings_reach_the_run_that_starts_and_its_file(sweep, scheduler):
    assert resume("cluster.nodes=2", "cluster.gpus_per_node=4") == 0

    (cluster,) = scheduler.clusters
    _, stopped = read_runs(sweep.folder)
    assert scheduler.submissions == [[stopped.number]]
    assert stopped.config().cluster == cluster
    assert cluster.nodes == 2
    assert cluster.gpus_per_node == 4


def test_changes_of_a_resume_are_to_the_launch_and_not_to_the_last_resume(sweep, scheduler):
    for setting in ("cluster.timeout_min=60", "cluster.nodes=2"):
        resume(setting)
        scheduler.jobs.clear()

    assert values_of(scheduler.clusters, "timeout_min") == [60, 240]


def test_settings_that_no_run_can_have_are_refused_before_anything_starts(sweep, scheduler, capsys):
    assert resume("cluster.nodes=3") == 2
    assert "cluster.nodes times cluster.gpus_per_node must divide optim.batch_size=32" in capsys.readouterr().err

    for run in read_runs(sweep.folder):
        (run.folder / "DONE").touch()
    assert resume("cluster.nodes=3") == 0, "none is to start"
    assert scheduler.submissions == []


def test_the_cluster_of_a_resumed_sweep_is_composed_as_that_of_its_launch(tmp_path):
    write_file(tmp_path / "experiment/mine.yaml", "# @package _global_\ncluster:\n  jobs: 7\n")
    write_file(tmp_path / "cluster/mine.yaml", "defaults: [local, _self_]\njobs: 5\n")
    launch = ["--config-dir", str(tmp_path), "-m", "seed=0,1", "+experiment=mine", "model=llama3_8b"]

    cluster = recompose(launch, ["cluster.threads=${size:4,12}"])

    assert cluster.jobs == 7
    assert cluster.threads == 12
    assert recompose(["-m", f"hydra.searchpath=[{tmp_path}]", "cluster=mine", "seed=0,1"], []).jobs == 5


def test_a_resume_does_not_look_for_the_model_of_the_launch(tmp_path):
    """It composes what decides the cluster alone, so that the path of a model may be another one."""
    text = '# @package _global_\nmodel: {path: "${output_dir}/first/model"}\ncluster: {jobs: 7}\n'
    write_file(tmp_path / "experiment/mine.yaml", text)

    assert recompose(["--config-dir", str(tmp_path), "output_dir=runs", "experiment=mine"], []).jobs == 7


def test_what_a_resume_sets_replaces_what_the_launch_set():
    launch = ["cluster=slurm", "cluster.timeout_min=9", "cluster.additional_parameters.export=X"]

    cluster = recompose(launch, ["cluster.additional_parameters={account: p}"])

    assert cluster.timeout_min == 9
    assert cluster.additional_parameters == {"account": "p"}
    assert recompose(launch[:2], ["cluster=local"]).name == "local"


# ---- places and owners


def test_a_sweep_that_was_moved_is_not_resumed_in_its_old_place(sweep, capsys):
    sweep.folder.rename("moved")

    assert main(["resume", "moved"]) == 1

    message = f"error: moved was launched as {sweep.folder}, where its runs would go on: move it back\n"
    assert capsys.readouterr().err.endswith(message)
    assert not sweep.folder.exists()


def test_a_sweep_launched_with_a_folder_of_settings_is_resumed_from_anywhere(sweep, scheduler):
    write_file(Path("own/algo/topr.yaml"), (ROOT / "conf/algo/topr.yaml").read_text())
    sweep.change(arguments=["--config-dir", "own", *read_runs(sweep.folder)[0].arguments])

    with chdir("/"):
        assert main(["resume", str(sweep.folder), "cluster.timeout_min=60"]) == 0
        assert Path.cwd() == Path("/")

    assert len(scheduler.submissions) == 1


def test_resuming_another_users_sweep_says_whose_settings_run(sweep, scheduler, monkeypatch, capsys):
    uid = os.getuid()
    assert resume() == 0
    assert "belongs to user" not in capsys.readouterr().err

    scheduler.jobs.clear()
    monkeypatch.setattr(os, "getuid", lambda: uid + 4711)
    assert resume() == 0
    warning = f"warning: nice_sweep belongs to user {uid}, whose settings now run as yours, with the code that"
    assert capsys.readouterr().err.startswith(warning)


def test_a_place_outside_is_refused_unless_it_is_the_current_folder(sweep, capsys):
    elsewhere = sweep.folder.parent / "else where"
    for place in (sweep.folder / "x", elsewhere):
        place.mkdir()
        sweep.change(cwd=str(place))
        assert resume() == 2
        error = capsys.readouterr().err
        assert f"was launched in {place}, which it does not lie in" in error
        assert error.count("\n") == 1

    with chdir(elsewhere):
        assert main(["resume", str(sweep.folder)]) == 0
    assert f"launched in {elsewhere}; code beyond topr_exp: none" in capsys.readouterr().out


# ---- code that stored settings name

CODE_BY_KEY = {
    "algo._target_": "nice_sweep.payload.Evil",
    "data._target_": "nice_sweep.payload.Evil",
    "data.grader._target_": "nice_sweep.payload.grade",
    "sampler._target_": "nice_sweep.payload.Sampler",
    "sampler.python": "nice_sweep/python",
    "schedule.when_stale._target_": "nice_sweep.payload.Evil",
    "model.trust_remote_code": True,
}


@pytest.mark.parametrize("key", CODE_KEYS)
def test_a_setting_that_names_code_needs_confirmation(key, sweep, capsys):
    sweep.set(key, CODE_BY_KEY[key])
    confirmation = f"{key}={CODE_BY_KEY[key]}".replace("True", "true")

    assert resume() == 2
    error = capsys.readouterr().err
    assert error.endswith(f"say so: python -m topr_exp.sweeps resume nice_sweep {confirmation}\n")
    assert error.count("\n") == 1

    assert resume(f"{key}=nice_sweep.other") == 2
    assert "no run of nice_sweep that is to start has this setting" in capsys.readouterr().err
    assert not sweep.module_ran

    status = resume(confirmation)
    out, err = capsys.readouterr()
    is_imported = key in TARGET_KEYS and not key.startswith("data.grader")  # the others are needed once runs begin
    assert sweep.module_ran == is_imported, (out, err)
    if status == 0:
        assert f"code beyond topr_exp: {confirmation}\n" in out
    else:  # it is confirmed, and what it names is no loss
        assert "that is not installed" not in err


@pytest.mark.parametrize("place", ["command line", "config.yaml"])
@pytest.mark.parametrize("scheme", ["pkg", "structured"])
def test_no_module_is_imported_for_the_yamls_of_a_stored_command(scheme, place, sweep, capsys):
    """Hydra imports what `hydra.searchpath` names before it composes anything; a repository's folder is on the path."""
    sys.path.insert(0, str(Path.cwd()))
    words = read_runs(sweep.folder)[0].arguments
    path = f"[{scheme}://nice_sweep.payload]"
    if place == "command line":
        words = [f"hydra.searchpath={path}", *words]
    else:
        settings = (ROOT / "conf/config.yaml").read_text()
        own_settings = settings.replace("\nhydra:\n", f"\nhydra:\n  searchpath: {path}\n")
        own_yaml = write_file(sweep.folder / "own/config.yaml", own_settings)
        words = ["--config-dir", str(own_yaml.parent), *words]
    sweep.change(arguments=words)

    assert resume() == 2
    assert "hydra.searchpath names nice_sweep.payload, which is not installed" in capsys.readouterr().err
    assert not sweep.module_ran


def test_the_list_of_settings_that_name_code_is_complete():
    """A new call that imports what a setting names is noticed here: its setting belongs in CODE_KEYS."""
    callers = set()
    for path in (ROOT / "topr_exp").rglob("*.py"):
        source = path.read_text()
        if re.search(r"topr_exp\.import_named_module\(|(= |\()import_user_module\(", source):
            callers.add(str(path.relative_to(ROOT / "topr_exp")))

    # class_of: the _target_ of algo, data, sampler, schedule.when_stale; grader: data.grader._target_
    assert callers == {"config/load.py", "config/user_code.py", "grading/grader.py"}


def test_installed_modules_need_no_confirmation_and_no_malformed_setting_hides_another():
    malformed = {"algo": None, "data": {"grader": 3}, "sampler": ["x"]}

    assert code_settings(malformed) == []
    assert code_settings({"algo": {"_target_": "evil.X"}, "algo._target_": {}}) == ["algo._target_=evil.X"]
    assert names_installed_code("algo._target_=transformers.Loss")
    assert not names_installed_code("algo._target_=nice_sweep.payload.Loss")
    assert not names_installed_code("sampler.python=transformers")


@pytest.mark.parametrize("setting", ["cluster.setup=['touch ran']", "cluster.additional_parameters={comment: 'a b'}"])
def test_commands_of_a_cluster_need_confirmation(setting, sweep, scheduler, capsys):
    sweep.change(arguments=["-m", "cluster=slurm", setting])
    (confirmation,) = cluster_code_settings(recompose(["cluster=slurm", setting], []))

    assert resume() == 2
    assert f"resume nice_sweep '{confirmation}'" in capsys.readouterr().err
    assert scheduler.submissions == []

    assert resume(confirmation) == 0
    assert f"code beyond topr_exp: {confirmation}\n" in capsys.readouterr().out
    scheduler.jobs.clear()
    key = confirmation.partition("=")[0]
    assert resume(f"{key}=null") == 0
    assert "code beyond topr_exp: none\n" in capsys.readouterr().out


def test_options_of_sbatch_that_run_nothing_need_no_confirmation():
    options = "cluster.additional_parameters={partition: gpu, account: proj-1, mem: 8G, mail_type: END}"

    assert cluster_code_settings(recompose(["cluster=slurm", options], [])) == []


@pytest.mark.parametrize("value", ["p --export=ALL", "p\\'", 'p"', "p #", "p'"])
def test_a_value_in_which_sbatch_may_read_another_option_needs_confirmation(value):
    cluster = recompose(["cluster=slurm"], [])
    options = dataclasses.replace(cluster, additional_parameters={"account": value})

    assert len(cluster_code_settings(options)) == 1


def test_settings_that_change_before_the_sweep_is_locked_need_confirmation(sweep, scheduler, capsys):
    scheduler.check_available = lambda: sweep.set("algo._target_", "nice_sweep.payload.Evil")

    assert resume() == 2
    assert "say so: python -m topr_exp.sweeps resume nice_sweep algo._target_" in capsys.readouterr().err
    assert not sweep.module_ran
