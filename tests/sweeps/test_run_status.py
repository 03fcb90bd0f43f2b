"""State of a run, from its files and its scheduler's answer."""

import socket

import pytest

from tests.conftest import become_ordinary, each_row, refused, write_file, write_lines
from tests.run_folders import write_json
from tests.sweeps.fake_scheduler import bare_run
from topr_exp.runs import attempt, run_lock
from topr_exp.runtime import locks
from topr_exp.sweeps.jobs import JobState, JobStates
from topr_exp.sweeps.run_status import describe_time_left, read_pass_at_1, read_status
from topr_exp.sweeps.status_table import count_states, status_table

HERE = socket.gethostname()

# The status in state.json | the first line of error.txt | phase and reason of its job | state and reason
STATES = """
- | - | - | new: its job is over, or was never there: see logs
- | - | queued Resources | queued: Resources
- | - | running | running:
- | - | ending | running:
running | - | - | stopped: its process is gone (killed?)
stopped | - | - | stopped: stopped by a signal
stopped | - | queued BeginTime | queued: BeginTime
failed | too few | - | failed: too few
failed | too few | queued | queued:
done | - | running | done:
"""


@each_row("stored_status error job expected", STATES)
def test_a_run_is_what_its_files_and_its_job_say(stored_status, error, job, expected, tmp_path):
    if stored_status != "-":
        write_json(tmp_path / "state.json", {"status": stored_status})
    if stored_status == "done":
        (tmp_path / "DONE").touch()
    if error != "-":
        (tmp_path / "error.txt").write_text(f"{error}\n\ntrace")
    jobs = JobStates({} if job == "-" else {"array_0": JobState("17", *job.split())})

    status = read_status(bare_run(tmp_path, job="array_0"), jobs)

    assert f"{status.state}: {status.error}".strip() == expected


TIMES = """
90.4 | "0:01:30"
-1e300 | "0:00:00"
1e300 | "11574 days, 1:46:40"
"""


@each_row("seconds text", TIMES, literals=True)
def test_a_time_left_beyond_any_calendar_is_a_line(seconds, text):
    assert describe_time_left({"seconds_left": seconds}) == text


def test_texts_of_any_length_keep_a_line_of_the_table_short(tmp_path):
    write_json(tmp_path / "state.json", {"status": "failed", "stage": "stage" * 10**5})
    (tmp_path / "error.txt").write_text("error" * 10**5)

    table = status_table([read_status(bare_run(tmp_path))])

    assert max(map(len, table.splitlines())) < 400


def test_where_the_scheduler_is_silent_nothing_is_said_of_a_job(tmp_path):
    status = read_status(bare_run(tmp_path, job="array_0"), JobStates({}, "silent"))

    assert status.state == "new"
    assert status.error == ""


def test_the_owner_on_a_lost_node_is_waited_for(tmp_path, clock, capsys):
    lock = locks.acquire(tmp_path / run_lock.CLAIM)
    (tmp_path / run_lock.CLAIM).write_text("node7:9")
    clock.asleep = lock.__exit__  # its server frees the lock

    with run_lock.lock_run_folder(tmp_path):
        assert "waiting for process node7:9" in capsys.readouterr().err
        (tmp_path / run_lock.CLAIM).write_text("node7:9")
        clock.asleep = lambda: None  # it does not
        remedy = f"if that machine is lost, remove {tmp_path / run_lock.CLAIM}"
        with refused(f"is being run by process node7:9; wait for it, or stop it and start again; {remedy}"):
            run_lock.lock_run_folder(tmp_path)


@pytest.mark.parametrize(
    "job, host, queue, text",
    [
        ("11_0", "node7", {}, "its job is over: if its node is lost, remove run.claim (of node7:9)"),
        ("11_0", "node7", {"array_0": JobState("11_0", "running")}, ""),
        (None, "node7", {}, ""),
        ("11_0", HERE, {}, ""),
    ],
    ids=["lost", "in its job", "without a job", "here"],
)
def test_a_claim_that_a_file_server_keeps_for_a_lost_node_is_told(job, host, queue, text, tmp_path):
    """NFS 3 does so until the node is back: the run counts as running, and is started by nobody."""
    write_json(tmp_path / "state.json", {"status": "running", "attempt": {"job": job}})
    with run_lock.lock_run_folder(tmp_path):
        (tmp_path / run_lock.CLAIM).write_text(f"{host}:9")

        status = read_status(bare_run(tmp_path, job="array_0"), JobStates(queue))

    assert status.state == "running"
    assert status.error == text


def test_a_run_that_may_not_be_read_is_named(ordinary_user):
    (ordinary_user / "state.json").touch(0)
    become_ordinary(ordinary_user)

    status = read_status(bare_run(ordinary_user))

    assert status.state == "unreadable"
    assert status.error == "state.json can't be read (Permission denied)"
    assert count_states([status]) == "1 run: 1 unreadable"


# On a part of the problems and on all of them, in turn.
EVALUATIONS = [
    '{"pass@1": 0.1, "subset": true}',
    '{"pass@1": 0.2, "subset": false}',
    '{"pass@1": 0.3, "subset": true}',
    '{"pass@1": 0.4, "subset": false}',
]


# How many of them there are | what is shown
SHOWN = """
2 | "20.0"
3 | "10.0 -> 30.0"
4 | "20.0 -> 40.0"
0 | ""
"""


@each_row("count text", SHOWN, literals=True)
def test_pass_at_1_stands_beside_the_base_models_on_the_same_problems(count, text, tmp_path):
    write_lines(tmp_path / "eval.jsonl", EVALUATIONS[:count])

    assert read_pass_at_1(tmp_path, is_done=False) == text


def test_an_attempt_removes_what_a_killed_one_left_by_half(tmp_path):
    write_file(tmp_path / "checkpoints/step-00000002.0123456789ab.tmp/model.safetensors", "half")
    for name in ("error.txt", "state.json", "launch.json.0123456789ab.tmp"):  # the last is its launcher's
        (tmp_path / name).write_text("{}")

    attempt.remove_partial_files(tmp_path)

    names = sorted(path.name for path in tmp_path.rglob("*"))
    assert names == ["checkpoints", "launch.json.0123456789ab.tmp", "state.json"]
