"""The tracker beside a run: what it is given, and that nothing which happens to it reaches the run."""

import importlib.util
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import config_of, lines_of, write_lines
from tests.run_folders import evaluation, make_run, update
from tests.tracking.conftest import history, inspect
from topr_exp.runs.folder import RunFolder
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted
from topr_exp.track import main as track
from topr_exp.tracking import tracker as tracker_module
from topr_exp.tracking.tracker import Tracker
from topr_exp.tracking.wandb_writer import run_id
from topr_exp.types import ConfigError

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="no tensorboard")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run waits half a minute for the client: a machine at work on other things needs more."""
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 240.0)
    monkeypatch.setattr("logging.raiseExceptions", True)  # restored afterwards


@contextmanager
def attempt(config: Any, *, opened: bool = False) -> Iterator[RunFolder]:
    """An attempt at a run; opened: begins once the client is at work."""
    with RunFolder(config) as folder, Tracker(config.tracking, folder) as tracker:
        while opened and not tracker._writer.location:
            assert tracker._thread.is_alive()
            time.sleep(0.05)
        yield folder


def train(folder: RunFolder, first: int, last: int, iteration: int = 1) -> None:
    """Go on from a checkpoint before update `first`."""
    folder.metrics.rewind(iteration, first - 1)
    for step in range(first, last + 1):
        folder.log(update(step, random.Random(step), iteration))


class Client:
    """In place of the module wandb: keeps what it is given; `broken` replaces functions."""

    def __init__(self, *, online: bool = True, step: int = 0, **broken: Any) -> None:
        self.rows: list[dict[str, Any]] = []
        self.calls: list[tuple[str, Any]] = []
        settings = SimpleNamespace(mode="online" if online else "offline", sync_dir="there")
        self.run = SimpleNamespace(settings=settings, resumed=step > 0, step=step, url="https://there", summary={})
        for name in ("define_metric", "mark_preempting", "finish"):
            setattr(self.run, name, lambda *a, name=name, **k: self.calls.append((name, k)))
        self.run.log = lambda row, step: self.rows.append({**row, "_step": step})
        self.Settings = self.Table = lambda **k: k
        self.setup = lambda *a: SimpleNamespace(settings=SimpleNamespace(mode="online"))
        self.login, self.teardown = lambda prompt: online, lambda **k: None
        for name, function in broken.items():
            setattr(self.run if name in ("log", "finish") else self, name, function)

    def init(self, **given: Any) -> Any:
        self.calls.append(("init", given))
        return self.run


def test_an_online_run_is_sent_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B has 8 updates of the 12 in the files, not what was measured then; the attempt goes on from update 10."""
    config, path = make_run(tmp_path, "tracking=wandb", steps=12, done=False)
    write_lines(path / "eval.jsonl", [{**evaluation(1, 0.4, subset=True), "step": 8, "samples_seen": 256}])
    client = Client(step=3 * 8 + 1)
    monkeypatch.setitem(sys.modules, "wandb", client)
    with attempt(config) as folder:
        folder.evaluations.add(evaluation(0, 0.2))  # which every attempt records again
        train(folder, 11, 14)
        folder.evaluations.add(evaluation(1, 0.5, subset=True))
        folder.evaluations.add(evaluation(1, 0.5))
        train(folder, 1, 2, iteration=2)
    steps = [3 * step for step in range(9, 15)]
    assert [row["_step"] for row in client.rows] == [3 * 8 + 1, *steps, 3 * 14 + 1, 3 * 14 + 2, 3 * 15, 3 * 16]
    assert [row["samples"] for row in client.rows[-2:]] == [32 * 15, 32 * 16]
    given = client.calls[0][1]
    assert (given["id"], given["resume"], given["mode"]) == (run_id(path), "allow", None)
    assert given["reinit"] == "create_new", "or a caller's own run would take these records, and end"
    assert (given["project"], given["group"]) == ("topr_exp", "runs")
    assert client.calls[-1] == ("finish", {"exit_code": 0})


def test_each_setting_of_wandb_reaches_it_with_what_the_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(f"output_dir={tmp_path}", "name=all", "tracking=wandb", "baseline=-0.3", "tracking.project=ours")
    client = Client()
    monkeypatch.setitem(sys.modules, "wandb", client)
    with attempt(config) as folder:
        path = folder.path
    given = client.calls[0][1]
    resolved, environment = (json.loads((path / name).read_text()) for name in ("config.json", "environment.json"))
    assert (given["project"], given["group"], given["job_type"]) == ("ours", "all", "train")
    assert (given["name"], given["dir"]) == (path.name, str(path))
    assert given["config"]["baseline"] == -0.3
    assert given["config"].items() >= resolved["resolved"].items()
    assert given["config"]["environment"] == environment
    assert given.keys() == {
        "project",
        "group",
        "job_type",
        "name",
        "id",
        "resume",
        "reinit",
        "dir",
        "mode",
        "config",
        "settings",
    }


@pytest.mark.parametrize("error", [Interrupted(signal.SIGTERM), ValueError("no")], ids=["preempted", "failed"])
def test_the_end_of_an_attempt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    client = Client(online=False)
    monkeypatch.setitem(sys.modules, "wandb", client)
    with pytest.raises(type(error)), attempt(config_of(f"output_dir={tmp_path}", "tracking=wandb")):
        raise error
    assert client.calls[0][1]["mode"] == "offline"  # nobody is logged in
    assert client.calls[-1] == ("finish", {"exit_code": 1})
    assert ("mark_preempting" in dict(client.calls)) == isinstance(error, Interrupted)


def raising(error: BaseException) -> Any:
    def call(*a: Any, **k: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("name", "fault", "expected"),
    [
        ("Settings", None, "not callable"),
        ("init", RuntimeError("refused"), "refused"),
        ("log", OSError(28, "no space"), "no space"),
        ("finish", SystemExit(2), "SystemExit: 2"),
        ("login", "hangs", "did not finish"),
        ("init", "hangs", "did not finish"),
        ("log", "hangs", "did not finish"),
        ("finish", "hangs", "did not finish"),
    ],
)
def test_whatever_the_client_does_the_run_goes_on_at_its_pace_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, fault: Any,
    expected: str,
) -> None:  # fmt: skip
    released = threading.Event()
    broken = (lambda *a, **k: released.wait(600)) if fault == "hangs" else raising(fault) if fault else None
    monkeypatch.setitem(sys.modules, "wandb", Client(**{name: broken}))
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 1.0 if fault == "hangs" else 240.0)
    with attempt(config_of(f"output_dir={tmp_path}", "tracking=wandb")) as folder:
        began = time.monotonic()
        train(folder, 1, 200)
        assert time.monotonic() - began < 1.0  # 5 ms an update
        ended = time.monotonic()
    assert time.monotonic() - ended < 30
    released.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "tracker"]:
        thread.join()
    *offline, warning = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(offline) == (expected == "refused")  # it is tried offline, too
    assert warning.startswith("warning: W&B: ")
    assert expected in warning


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.extended
def test_the_clients_process_may_die_or_hang(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 3.0)
    with attempt(config_of(f"output_dir={tmp_path}", "tracking=wandb"), opened=True) as folder:
        import wandb

        process = wandb.setup()._connection._proc._process
        train(folder, 1, 5)
        process.send_signal(number)
        train(folder, 6, 200)
    assert process.wait(5) == -signal.SIGKILL
    assert capsys.readouterr().err.count("warning: W&B: ") == 1
    assert "WANDB_SERVICE" not in os.environ  # released: nothing waits for it when the interpreter exits


def test_an_account_without_a_network_means_offline_and_one_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 240.0)  # a busy machine starts the client's process twice
    config = config_of(f"output_dir={tmp_path}", "tracking=wandb")
    with attempt(config) as folder:
        train(folder, 1, 3)
    captured = capsys.readouterr()
    assert captured.err.count("warning: W&B: going on offline (") == captured.err.count("W&B") == 1
    assert "wandb sync" in captured.out
    rows = history(inspect(config.folder))
    assert [row["item"]["optimizer_step"] for row in rows] == [1, 2, 3]


def test_nothing_starts_without_tracking_after_the_end_or_beside_the_main_process(tmp_path, monkeypatch):
    before = threading.active_count()
    for arguments, rank in ((["tracking=none"], 0), (["tracking=wandb", "seed=1"], 0), (["tracking=wandb"], 1)):
        monkeypatch.setattr(distributed, "_rank", rank)
        config, path = make_run(tmp_path / str(rank), *arguments, steps=1, done=rank == 0)
        with Tracker(config.tracking, RunFolder(config)):
            assert threading.active_count() == before
        assert not (path / "wandb").exists()


def test_a_folder_that_is_made_again_is_another_run(tmp_path: Path) -> None:
    (_, one), (_, other) = make_run(tmp_path / "a"), make_run(tmp_path / "b", rng=1)
    assert run_id(one) != run_id(other)
    assert len(run_id(one)) <= 64


# ---- TensorBoard


def points(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and values by name, as TensorBoard's own reader finds them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    scalars = {name: found.Scalars(name) for name in found.Tags()["scalars"]}
    return {name: ([one.step for one in each], [one.value for one in each]) for name, each in scalars.items()}


def losses(folder: Path) -> tuple[list[int], Any]:
    lines = lines_of(folder / "metrics.jsonl")
    return [line["step"] for line in lines], pytest.approx([line["loss"] for line in lines])


@needs_tensorboard
def test_a_resumed_run_doubles_and_loses_no_point_in_tensorboard(tmp_path, capsys):
    config = config_of(f"output_dir={tmp_path}", "tracking=tensorboard")
    with attempt(config) as folder:
        train(folder, 1, 12)
    path = config.folder
    assert capsys.readouterr().out.splitlines()[-1] == f"TensorBoard: tensorboard --logdir {path.parent}"
    assert points(path)["train/loss"] == losses(path)
    # As another machine's arithmetic would have it.
    write_lines(path / "metrics.jsonl", [update(step, random.Random(0)) for step in range(1, 9)])
    with attempt(config) as folder:
        train(folder, 7, 10)
        folder.evaluations.add(evaluation(1, 0.5))
    found = points(path)
    assert found["train/loss"][0] == losses(path)[0] == list(range(1, 11))
    assert found["eval/pass_at_1"] == ([10], pytest.approx([0.5]))


@needs_tensorboard
def test_a_finished_run_can_be_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = make_run(tmp_path, steps=12)
    assert track([str(path), "tensorboard"]) == 0
    assert capsys.readouterr().out == f"TensorBoard: tensorboard --logdir {path.parent}\n"
    assert points(path)["train/loss"] == losses(path)
    _, unfinished = make_run(tmp_path / "other", done=False)
    for words, line in (
        ([str(unfinished), "wandb"], "is no finished run; one that trains is tracked with tracking=wandb"),
        ([str(path), "wandb", "seed=3"], "seed=3: only tracking.KEY=VALUE is read here"),
    ):
        assert track(words) == 2
        assert line in capsys.readouterr().err


def test_a_finished_run_is_sent_to_wandb_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = make_run(tmp_path, steps=12)
    client = Client()
    monkeypatch.setitem(sys.modules, "wandb", client)
    assert track([str(path), "wandb", "tracking.project=mine"]) == 0
    assert [row["train/loss"] for row in client.rows if "train/loss" in row] == losses(path)[1]
    assert dict(client.calls)["init"]["project"] == "mine"
    assert client.run.summary["final/pass_at_1"]
    client.run.resumed, client.run.step, client.rows = True, client.rows[-1]["_step"] + 1, []
    assert track([str(path), "wandb"]) == 0
    assert client.rows == []
    client.login = Mock(side_effect=RuntimeError("no network"))
    client.init = Mock(side_effect=RuntimeError("no disk"))
    assert track([str(path), "wandb"]) == 1


def test_tensorboard_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from topr_exp.runs import preflight

    found = lambda name: None if name == "tensorboard" else object()
    monkeypatch.setattr(preflight.importlib.util, "find_spec", found)
    with pytest.raises(ConfigError, match=r"^tracking=tensorboard: the package tensorboard is not installed \(pip"):
        config_of("tracking=tensorboard", "dry_run=true")
