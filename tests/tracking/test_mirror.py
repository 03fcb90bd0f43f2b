"""`tracking=wandb` with the real client, offline and without a network; what it wrote is read back by W&B's reader."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, overrides
from tests.run_folders import add_metrics, evaluation, make_run, summary, write_json, write_lines
from tests.tracking.wandb_reading import history, inspect, offline_folders
from topr_exp.tracking import tracker as tracker_module
from topr_exp.tracking.tracker import Tracker
from topr_exp.tracking.tracker import overrides as overrides_of
from topr_exp.tracking.wandb_run import WandbRun, run_id

DEAD = "http://127.0.0.1:9"  # nothing listens there


# A run gives the client, which is niced, half a minute to finish: a machine at work on other things needs more.
PATIENT = """
import sys
from topr_exp.__main__ import main
from topr_exp.tracking import tracker
tracker.FINISH_SECONDS = 240.0
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 240.0)


@pytest.fixture(autouse=True)
def cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account, and no way to the network even for a client that tries."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", DEAD)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, DEAD)


def wait_for(folder: Path, event: str, tracker: Tracker, seconds: float = 300) -> None:
    """Until the client has said `event`."""
    end = time.monotonic() + seconds
    while event not in tracker._events and time.monotonic() < end:
        time.sleep(0.05)
    assert event in tracker._events, (folder / "wandb" / "client.log").read_text()


def test_a_run_arrives_with_settings_curves_summary_and_completions(tmp_path: Path) -> None:
    """The whole program: its own command line, a real run, then the written file."""
    chosen = ["name=sweep", "tracking=wandb", "tracking.model_artifact=true", "baseline=-0.3"]
    command = [sys.executable, "-c", PATIENT, *overrides(tmp_path, *chosen)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    (folder,) = (path.parent for path in (tmp_path / "sweep").glob("*/DONE"))
    (offline,) = offline_folders(folder)
    assert done.stdout.splitlines()[-1] == f"W&B, offline: wandb sync {offline}"

    records = inspect(folder)
    (started,) = (record["run"] for record in records if record["type"] == "run")
    assert started["run_group"] == "sweep"
    assert started["job_type"] == "train"
    assert started["tags"] == ["topr", "gsm8k", "embedded", "tiny"]
    config = started["config"]["update"]
    assert config["baseline"] == -0.3
    assert config["algo"]["a_pos"] == 1
    assert "baseline=-0.3" in config["overrides"]

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row["item"] for row in history(records)]
    updates = [row for row in rows if "train/loss" in row]
    assert [row["optimizer_step"] for row in updates] == [line["step"] for line in lines]
    assert [row["samples"] for row in updates] == [line["samples"] for line in lines]
    assert [row["train/loss"] for row in updates] == pytest.approx([line["loss"] for line in lines])
    tests = [row for row in rows if "eval/pass_at_1" in row]
    found = json.loads((folder / "summary.json").read_text())
    assert [row["eval/pass_at_1"] for row in tests] == pytest.approx(
        [found[name]["pass@1"] for name in ("base", "final")]
    )
    assert [row["optimizer_step"] for row in tests] == [0, len(lines)]
    axes = {record["metric"].get("glob_name"): record["metric"] for record in records if record["type"] == "metric"}
    assert axes["train/*"]["step_metric"] == axes["eval/*"]["step_metric"] == "optimizer_step"
    last = {}
    for record in records:
        last |= record.get("summary", {}).get("update", {}) if record["type"] == "summary" else {}
    assert last["final/pass_at_1"] == pytest.approx(found["final"]["pass@1"])
    assert last["seconds/training"] == found["seconds"]["training"]
    weights = next(record["artifact"] for record in records if record.get("artifact", {}).get("type") == "model")
    assert {"config.json", "model.safetensors"} <= {entry["path"] for entry in weights["manifest"]["contents"]}
    tables = [json.loads(path.read_text()) for path in offline.glob("files/media/table/*.json")]
    assert len(tables) == 2
    assert {row[tables[0]["columns"].index("verdict")] for table in tables for row in table["data"]} >= {"incorrect"}


def test_a_killed_run_goes_on_under_its_id_without_doubled_points(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, "tracking=wandb", steps=12, done=False)
    with Tracker(config, folder) as first:
        wait_for(folder, "opened", first)
        assert first._process is not None
        first._process.kill()  # as when the whole job is killed
    (before,) = offline_folders(folder)
    # The next attempt starts from a checkpoint at update 8 and writes the lines after it again, then more.
    kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:8]
    (folder / "metrics.jsonl").write_text("".join(kept))
    with Tracker(config, folder) as second:
        wait_for(folder, "opened", second)
        add_metrics(folder, range(9, 21), random.Random(0))
        final = evaluation(1, 0.5)
        write_lines(folder / "eval.jsonl", [evaluation(0, 0.2), final])
        write_json(folder / "summary.json", summary(config, evaluation(0, 0.2), final))
        (folder / "DONE").touch()
    (after,) = offline_folders(folder)
    name = before.name.split("-", 3)[3]  # offline-run-TIME-ID; W&B appends -1 where both began in the same second
    assert after.name.split("-", 3)[3] in (name, f"{name}-1")
    rows = [row["item"] for row in history(inspect(folder))]
    assert [row["optimizer_step"] for row in rows if "train/loss" in row] == list(range(1, 21))
    assert [row["optimizer_step"] for row in rows if "eval/pass_at_1" in row] == [0, 20]
    steps = [row["_step"] for row in rows]
    assert steps == sorted(set(steps))


def test_the_client_of_a_killed_run_finishes_on_its_own(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path, "tracking=wandb", steps=5, done=False)
    code = f"""
import os, signal, time
from pathlib import Path
from tests.conftest import config_of
from topr_exp.tracking.tracker import Tracker
config = config_of("output_dir={tmp_path}", "tracking=wandb")
with Tracker(config, config.folder) as tracker:
    while "opened" not in tracker._events:
        time.sleep(0.05)
    print(tracker._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -9, killed.stderr
    mirror = int(killed.stdout)
    end = time.monotonic() + 240
    while is_alive(mirror) and time.monotonic() < end:
        time.sleep(0.1)
    assert not is_alive(mirror)
    records = inspect(folder)
    assert [row["item"]["optimizer_step"] for row in history(records) if "train/loss" in row["item"]] == [1, 2, 3, 4, 5]
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [1]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_points_sent_before_a_rewind_are_not_sent_again(tmp_path: Path) -> None:
    """Within one attempt the file may be cut back to a checkpoint: the same updates then come once more."""
    config, folder = make_run(tmp_path, "tracking=wandb", steps=6, done=False)
    sent: list[int] = []

    class Sent:
        def log(self, row: dict[str, float], step: int) -> None:
            sent.extend([int(row["optimizer_step"])] if "train/loss" in row else [])

    mirror = WandbRun({"folder": str(folder), "tracking": vars(config.tracking)}, io.StringIO())
    mirror.run = Sent()
    mirror.send(settled=False)
    assert sent == [1, 2, 3, 4, 5, 6]
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    replacement = folder / "new"
    replacement.write_text("".join(lines[:3]))
    replacement.rename(folder / "metrics.jsonl")
    mirror.send(settled=False)
    for last in (5, 7):  # it looks before all that was lost is there again, and after
        add_metrics(folder, range(last - 1, last + 1), random.Random(1))
        mirror.send(settled=False)
    add_metrics(folder, range(8, 9), random.Random(1))
    mirror.send(settled=True)
    assert sent == list(range(1, 9))


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    import pyarrow as pa

    from topr_exp.store import Store

    nasty = "<script>alert(1)</script><img src=x onerror=alert(2)>\x00\x1b[31m {{7*7}}"
    config, folder = make_run(tmp_path, "tracking=wandb", steps=2, done=False)
    store = Store(folder / "store")
    rollouts, verdicts = store.table("rollouts", {"r": 1}, 1), store.table("verdicts", {"golds": [nasty]}, 1)
    texts = [nasty, "x" * 10_000, "ok"]
    rollouts.fill(lambda _: pa.table({"problem": pa.array([0] * 3, pa.int32()), "sample": range(3), "text": texts}))
    verdicts.fill(lambda _: pa.table({"verdict": ["invalid", "invalid", "correct"], "answer": [None, None, nasty]}))
    record = evaluation(0, 0.2, rollouts=str(rollouts.folder), verdicts=str(verdicts.folder))
    write_lines(folder / "eval.jsonl", [record])
    with Tracker(config, folder) as tracker:
        wait_for(folder, "opened", tracker)
    (offline,) = offline_folders(folder)
    (table,) = [json.loads(path.read_text()) for path in offline.glob("files/media/table/*.json")]
    column = table["columns"].index("completion")
    assert [row[column] for row in table["data"]] == ["ok", nasty, "x" * 4000 + " …"]
    (row,) = [row["item"] for row in history(inspect(folder)) if "eval/pass_at_1" in row["item"]]
    assert row["completions._type"] == "table-file"
    assert not list(offline.rglob("*.html"))


def fake_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a `wandb` that misbehaves before the real one."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "wandb.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "fake"), str(ROOT)]))


RUN = """
import time
class Settings:
    mode = "offline"; sync_dir = "nowhere"
    def __init__(self, **more): pass
class Table:
    def __init__(self, **more): pass
class Run:
    settings = Settings(); resumed = False; url = None; id = "x"; summary = {}
    def define_metric(self, *a, **k): pass
    def mark_preempting(self): pass
    def log(self, *a, **k): pass
    def finish(self, **k): pass
def init(**k): return Run()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ImportError('no client here')", "no client here"),
        (RUN + "def init(**k): raise RuntimeError('refused')\n", "refused"),
        (RUN + "def log(*a, **k): raise OSError(28, 'no space')\nRun.log = log\n", "no space"),
        (RUN + "import os\ndef log(*a, **k): os._exit(9)\nRun.log = log\n", "code 9"),
        (RUN + "def init(**k): time.sleep(600)\n", "did not finish"),
        (RUN + "def log(*a, **k): time.sleep(600)\nRun.log = log\n", "did not finish"),
        (RUN + "Run.finish = lambda *a, **k: time.sleep(600)\n", "did not finish"),
    ],
    ids=["import", "init", "log", "crash", "init hangs", "log hangs", "finish hangs"],
)
def test_whatever_happens_to_the_client_the_run_goes_on_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: str, expected: str
) -> None:
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 4.0 if "not finish" in expected else 240.0)
    fake_client(tmp_path, monkeypatch, body)
    config, folder = make_run(tmp_path, "tracking=wandb", steps=3)
    (folder / "DONE").unlink()
    began = time.monotonic()
    with Tracker(config, folder) as tracker:
        started = time.monotonic() - began
        (folder / "DONE").touch()
    assert started < 30  # it does not wait for the client; nor does the end wait for one that hangs for ten minutes
    assert time.monotonic() - began < 240
    assert tracker._process is not None
    assert tracker._process.returncode is not None
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith("warning: W&B: ")
    assert expected in warnings[0]


def test_an_account_without_a_network_means_offline_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "20")  # for the attempt offline too
    config, folder = make_run(tmp_path, "tracking=wandb", steps=3, done=False)
    with Tracker(config, folder) as tracker:
        wait_for(folder, "opened", tracker)
    captured = capsys.readouterr()
    assert captured.err.count("warning: W&B") == 1
    assert "offline" in captured.err
    assert "wandb sync" in captured.out
    assert [row["item"]["optimizer_step"] for row in history(inspect(folder)) if "train/loss" in row["item"]] == [
        1,
        2,
        3,
    ]


def test_nothing_starts_without_tracking_or_after_the_end(tmp_path: Path) -> None:
    for arguments in (["tracking=none"], ["tracking=wandb", "seed=1"]):
        config, folder = make_run(tmp_path, *arguments, steps=1)
        with Tracker(config, folder):
            pass
        assert not (folder / "wandb").exists()


def test_what_the_user_set_is_the_runs_own_part_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["topr", "-m", "seed=0,1"])
    assert overrides_of(tmp_path / "a") == ["seed=0,1"]
    runs = [{"folder": name, "overrides": [f"seed={i}"]} for i, name in enumerate("ab")]
    write_json(tmp_path / "sweep.json", {"runs": runs})
    assert overrides_of(tmp_path / "b") == ["seed=1"]
    assert overrides_of(tmp_path / "c") == ["seed=0,1"]


def test_the_id_lasts_as_long_as_the_folder(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path / "a")
    moved = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, moved)
    assert run_id(folder) == run_id(moved)
    _, other = make_run(tmp_path / "b", rng=1)
    assert run_id(other) != run_id(folder)
    assert len(run_id(folder)) <= 64
