"""Systems that nobody here has: macOS, pretended by taking Linux's own calls away, and Windows."""

import json
import os
import socket

import pytest

from tests.conftest import ROOT, run_python

PRETENCE = ROOT / "tests/runtime/pretended_macos"
HOSTILE = {"completion": r"\boxed{9^{9^{9^{9}}}}", "gold": r"\pi"}
EQUAL = {"completion": r"\boxed{2x+3+\pi}", "gold": r"\pi+3+2x"}  # sympy compares them


def run_on_macos(*words, **options):
    environment = {**os.environ, "PYTHONPATH": f"{PRETENCE}:{ROOT}"}
    return run_python("-m", *words, env=environment, **options)


@pytest.fixture(scope="module")
def graded_on_macos():
    lines = "\n".join(map(json.dumps, (HOSTILE, EQUAL)))
    return run_on_macos("topr_exp.grade", "--format", "math", input=lines)


def test_on_macos_a_workers_own_timer_ends_a_hostile_completion(graded_on_macos):
    paths = [(row["verdict"], row["path"]) for row in map(json.loads, graded_on_macos.stdout.splitlines())]

    assert paths == [("incorrect", "died"), ("correct", "symbolic")], graded_on_macos.stderr


def test_on_macos_one_line_says_that_memory_has_no_limit(graded_on_macos):
    assert graded_on_macos.stderr.count("only Linux limits a grading worker's memory") == 1


def test_on_macos_a_sweep_samples_trains_and_evaluates(tmp_path):
    """Its runs are processes of their own, which that system can't fork."""
    outcome = run_on_macos("topr_exp", "-m", "experiment=smoke", "name=mac", f"output_dir={tmp_path}")

    assert outcome.returncode == 0, outcome.stderr
    assert len(list(tmp_path.glob("mac/*/DONE"))) == 1


def test_on_macos_a_vllm_engine_starts_and_ends_with_its_connection():
    caller, engine = socket.socketpair()
    caller.close()

    outcome = run_on_macos("topr_exp.sampling.vllm_worker", str(engine.fileno()), pass_fds=[engine.fileno()])

    assert outcome.returncode == 0, outcome.stderr


def test_windows_is_refused_in_one_line():
    code = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; import topr_exp"

    outcome = run_python("-c", code)

    assert (outcome.returncode, outcome.stderr.count("\n")) == (1, 1)
    assert "Windows is not supported" in outcome.stderr
