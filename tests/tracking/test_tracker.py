"""The tracker beside a run: what it is given, and that nothing which happens to it reaches the run."""

import importlib.util
import logging
import random
import signal
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest

from tests.conftest import column, config_of, each_row, lines_of, values_of, write_lines
from tests.run_folders import evaluation, make_run, update
from tests.tracking.conftest import history, inspect
from topr_exp.runs.folder import RunFolder
from topr_exp.runtime.stop import Interrupted
from topr_exp.track import main as track
from topr_exp.tracking.tracker import Tracker
from topr_exp.tracking.wandb_writer import MAX_NAME_LENGTH, run_id

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="no tensorboard")


@pytest.fixture(autouse=True)
def errors_of_logging():
    """Are shown again, which a tracker stops for good."""
    yield
    logging.raiseExceptions = True


@contextmanager
def attempt(config, finish_seconds=240.0):
    """An attempt at a run; finish_seconds: long, since the machine is at work on other things."""
    with (
        patch("topr_exp.tracking.tracker.FINISH_SECONDS", finish_seconds),
        RunFolder(config) as folder,
        Tracker(config.tracking, folder),
    ):
        yield folder


def train(folder, first, last, iteration=1):
    """Go on from a checkpoint before update `first`."""
    folder.metrics.rewind(iteration, first - 1)
    for step in range(first, last + 1):
        folder.log(update(step, random.Random(step), iteration))


class Client:
    """In place of the module wandb: keeps what it is given."""

    Settings = Table = staticmethod(lambda **settings: settings)

    def __init__(self):
        self.rows = []
        self.init_arguments = {}
        self.calls = {}
        self.is_online = True
        sync_settings = SimpleNamespace(mode="online", sync_dir="there")
        self.run = SimpleNamespace(settings=sync_settings, resumed=False, step=0, url="https://there", summary={})
        self.run.log = lambda row, step: self.rows.append({**row, "_step": step})
        self.run.define_metric = lambda *names, **options: None
        self.run.mark_preempting = lambda: self.calls.update(mark_preempting={})
        self.run.finish = lambda **options: self.calls.update(finish=options)
        self.callers_run = None
        self.setup = Mock(return_value=SimpleNamespace(settings=sync_settings))
        self.sdk = Mock()
        self.sdk.wandb_setup.singleton = lambda: SimpleNamespace(most_recent_active_run=self.callers_run)
        self.login = lambda prompt: self.is_online
        self.teardown = lambda **options: self.calls.update(teardown=options)

    def init(self, **arguments):
        self.init_arguments = arguments
        return self.run

    def resume_at(self, step):
        self.run.resumed = True
        self.run.step = step
        self.rows.clear()


@pytest.fixture
def client(stand_in):
    client = Client()
    stand_in("wandb", client)
    return client


STEPS = 3  # of W&B for an update: its record, an evaluation on a part of the problems, one on all of them


def test_an_online_run_is_sent_what_it_lacks(client, tmp_path):
    """W&B has 8 updates of the 12 in the files, not what was measured then; the attempt goes on from update 10."""
    config, path = make_run(tmp_path, "tracking=wandb", steps=12, done=False)
    measured = evaluation(1, 0.4, subset=True, step=8, samples_seen=256)
    write_lines(path / "eval.jsonl", [measured])
    client.resume_at(STEPS * 8 + 1)

    with attempt(config) as folder:
        folder.evaluations.add(evaluation(0, 0.2))  # which every attempt records again
        train(folder, 11, 14)
        folder.evaluations.add(evaluation(1, 0.5, subset=True))
        folder.evaluations.add(evaluation(1, 0.5))
        train(folder, 1, 2, iteration=2)

    first_row, *rows_of_updates, subset_row, evaluation_row, next_row, last_row = client.rows
    assert first_row["_step"] == STEPS * 8 + 1
    assert column(rows_of_updates, "_step") == [STEPS * number for number in range(9, 15)]
    assert subset_row["_step"] == STEPS * 14 + 1
    assert evaluation_row["_step"] == STEPS * 14 + 2
    for row, number in ((next_row, 15), (last_row, 16)):
        assert row["_step"] == STEPS * number
        assert row["samples"] == 32 * number
    assert client.init_arguments["id"] == run_id(path)
    assert client.init_arguments["resume"] == "allow"
    assert client.calls == {"finish": {"exit_code": 0}, "teardown": {"exit_code": 1}}


def test_each_setting_of_wandb_reaches_it(client, tmp_path):
    with attempt(config_of(f"output_dir={tmp_path}", "name=all", "tracking=wandb")) as folder:
        path = folder.path

    assert client.setup.call_args_list[0].args == ({"silent": True},)  # later it would change no message
    arguments = client.init_arguments
    del arguments["config"], arguments["id"]
    assert arguments.pop("settings") == {
        "silent": True,
        "console": "off",  # the run's log has it
        "disable_git": True,
        "disable_code": True,
        "finish_timeout": 25.0,
        "finish_timeout_raises": True,
    }
    assert arguments == {
        "project": "ours",
        "group": "all",
        "job_type": "train",
        "name": path.name,
        "resume": "allow",
        "reinit": "create_new",  # or a caller's own run would take these records, and end
        "dir": str(path),
        "mode": None,
    }


@pytest.mark.parametrize("error", [Interrupted(signal.SIGTERM), ValueError("no")], ids=["preempted", "failed"])
def test_the_end_of_an_attempt_is_told(error, client, config):
    client.is_online = False  # nobody is logged in

    with pytest.raises(type(error)), attempt(config):
        raise error

    assert client.init_arguments["mode"] == "offline"
    assert client.calls["finish"] == {"exit_code": 1}
    assert ("mark_preempting" in client.calls) == isinstance(error, Interrupted)


@pytest.mark.parametrize("run_before", ["theirs", None])
def test_a_run_of_the_callers_goes_on(run_before, client, config):
    client.callers_run = run_before

    with attempt(config):
        client.callers_run = "theirs"

    assert client.calls == {"finish": {"exit_code": 0}}


def raising(error):
    def call(*_, **__):
        raise error

    return call


@pytest.fixture
def config(tmp_path):
    """The settings of a run that W&B follows."""
    return config_of(f"output_dir={tmp_path}", "tracking=wandb")


def tracker_threads():
    return [thread for thread in threading.enumerate() if thread.name == "tracker"]


FAULTS = {
    "not callable": ("Settings", TypeError("not callable")),
    "refused": ("init", RuntimeError("refused")),
    "no space": ("log", OSError(28, "no space")),
    "SystemExit: 2": ("finish", SystemExit(2)),
}


def replace_call(client, name, call):
    """Have the client, or its run, do this."""
    owner = client.run if name in ("log", "finish") else client
    setattr(owner, name, call)


def warnings_in(text):
    return [line for line in text.splitlines() if line.startswith("warning")]


@pytest.mark.parametrize("message", FAULTS)
def test_whatever_the_client_raises_the_run_goes_on_with_a_warning(message, client, config, capsys):
    name, error = FAULTS[message]
    replace_call(client, name, raising(error))

    with attempt(config) as folder:
        train(folder, 1, 200)

    *offline_warnings, warning = warnings_in(capsys.readouterr().err)
    assert len(offline_warnings) == (message == "refused")  # it is tried offline, too
    assert warning.startswith("warning: W&B: ")
    assert message in warning


@pytest.mark.parametrize("name", ["init", "log"])
def test_a_client_that_hangs_is_not_waited_for(name, client, config, capsys):
    released = threading.Event()
    replace_call(client, name, lambda *_, **__: released.wait())

    with attempt(config, finish_seconds=0.3) as folder:
        train(folder, 1, 200)

    released.set()  # a run that waited for the client would not have come so far
    for thread in tracker_threads():
        thread.join()
    (warning,) = warnings_in(capsys.readouterr().err)
    assert warning.startswith("warning: W&B: ")
    assert "did not finish" in warning


def test_an_account_without_a_network_means_offline_and_one_warning(config, variables, capsys):
    variables |= {"WANDB_API_KEY": "0" * 40, "WANDB_HTTP_TIMEOUT": "1"}

    with attempt(config) as folder:
        train(folder, 1, 3)

    out, err = capsys.readouterr()
    assert err.count("warning: W&B: going on offline (") == err.count("W&B") == 1
    assert "wandb sync" in out
    assert column(history(inspect(config.folder)), "optimizer_step") == [1, 2, 3]


UNTRACKED = """
"tracking=none" | 0 | False
"tracking=wandb" | 0 | True
"tracking=wandb" | 1 | False
"""


@each_row("tracking rank is_done", UNTRACKED, literals=True)
def test_nothing_starts_without_tracking_after_the_end_or_beside_the_main_process(
    tracking, rank, is_done, tmp_path, be_rank
):
    config, path = make_run(tmp_path, tracking, steps=1, done=is_done)
    be_rank(rank)

    with Tracker(config.tracking, RunFolder(config)):
        assert tracker_threads() == []
    assert not (path / "wandb").exists()


def test_a_folder_that_is_made_again_or_named_otherwise_is_another_run(tmp_path, monkeypatch):
    names = [f"{group}.name={MAX_NAME_LENGTH * 'x'}" for group in ("algo", "model")]
    ids = set()
    for second, lr in [("1", 0.1), ("2", 0.1), ("2", 0.2)]:
        monkeypatch.setattr("topr_exp.runs.provenance.timestamp", lambda second=second: second)
        with RunFolder(config_of(f"output_dir={tmp_path / second}", f"optim.lr={lr}", *names)) as folder:
            ids.add(run_id(folder.path))

    assert len(ids) == 3
    assert max(map(len, ids)) <= 64


def test_a_finished_run_is_sent_to_wandb_once(client, tmp_path):
    _, path = make_run(tmp_path, steps=12)
    words = [str(path), "wandb"]

    assert track(words) == 0
    assert [row["train/loss"] for row in client.rows if "train/loss" in row] == losses_of(path)
    assert client.init_arguments["project"] == "ours"
    assert client.run.summary["final/pass_at_1"]

    client.resume_at(client.rows[-1]["_step"] + 1)
    assert track(words) == 0
    assert client.rows == []

    (path / "config.json").write_text("{")
    assert track(words) == 0
    assert client.init_arguments["config"].keys() == {"overrides", "environment"}

    client.init = raising(RuntimeError("no disk"))
    assert track(words) == 1


# ---- TensorBoard


def points(folder, name):
    """Steps and values of a chart, as TensorBoard's own reader finds them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    scalars = events.Scalars(name)
    return values_of(scalars, "step"), values_of(scalars, "value")


def losses_of(folder):
    return pytest.approx(column(lines_of(folder / "metrics.jsonl"), "loss"))


@needs_tensorboard
def test_a_resumed_run_doubles_and_loses_no_point_in_tensorboard(tmp_path, capsys):
    config = config_of(f"output_dir={tmp_path}", "tracking=tensorboard")
    path = config.folder
    with attempt(config) as folder:
        train(folder, 1, 12)
    assert capsys.readouterr().out.splitlines()[-1] == f"TensorBoard: tensorboard --logdir {path.parent}"
    assert points(path, "train/loss") == (list(range(1, 13)), losses_of(path))

    # As another machine's arithmetic would have it.
    write_lines(path / "metrics.jsonl", [update(step, random.Random(0)) for step in range(1, 9)])
    with attempt(config) as folder:
        train(folder, 7, 10)
        folder.evaluations.add(evaluation(1, 0.5))

    steps, _ = points(path, "train/loss")
    assert steps == list(range(1, 11))
    assert points(path, "eval/pass_at_1") == ([10], pytest.approx([0.5]))


# Whether a run is finished | what follows `track RUN` | what is said
MISTAKES = """
False | "wandb" | "is no finished run; one that trains is tracked with tracking=wandb"
True | "wandb tracking.project=mine" | "tracking.project is gone: set W&B's environment variable WANDB_PROJECT"
"""


@each_row("done words message", MISTAKES, literals=True)
def test_a_mistake_of_the_command_is_one_line(done, words, message, tmp_path, capsys):
    _, folder = make_run(tmp_path, done=done)

    assert track([str(folder), *words.split()]) == 2

    assert message in capsys.readouterr().err
