"""`python -m topr_exp.grade`: lines in, the same lines with verdicts out, in order and as they come."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.conftest import ROOT
from tests.grading.cases import CASES, join_parts
from tests.processes import state_of
from tests.sweep_tools import wait_for

COMMAND = [sys.executable, "-m", "topr_exp.grade", "--format"]
SURROUNDINGS = {
    "cwd": ROOT,
    "env": {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
}
SYMBOLIC = {"completion": r"The answer is \frac{\sqrt{2}}{2}.", "gold": r"\frac{1}{\sqrt{2}}"}


def grade(answer_format, text, *options):
    return subprocess.run([*COMMAND, answer_format, *options], input=text, capture_output=True, **SURROUNDINGS)


def test_lines_come_back_in_order_with_verdicts_or_with_what_is_wrong_with_them():
    lines, expected = [b""], []  # an empty line counts and says nothing
    for number, row in enumerate(CASES["command"], 2):
        lines.append(join_parts(row["line"]).encode("latin-1"))
        if "error" in row:
            expected.append({"line": number, "error": row["error"]})
        else:
            expected.append(json.loads(lines[-1]) | {"answer": None} | row["added"])

    process = grade("gsm8k", b"\n".join(lines))  # the last line has no end

    assert list(map(json.loads, process.stdout.splitlines())) == expected
    assert process.stderr.startswith(b"6 correct, 1 incorrect, 1 invalid, 9 malformed; ")
    assert process.returncode == 1


def test_a_result_does_not_wait_for_further_input_nor_ctrl_c():
    """As a filter behind another program: one line in, one line out, while the input stays open."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    as_in_a_shell = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore Ctrl-C
    process = subprocess.Popen([*COMMAND, "gsm8k"], **pipes, text=True, preexec_fn=as_in_a_shell, **SURROUNDINGS)
    guard = threading.Timer(300, process.kill)
    guard.start()

    for line, key in ((json.dumps(SYMBOLIC), "verdict"), ("broken", "error")):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        assert key in json.loads(process.stdout.readline())
    wait_for(lambda: state_of(process.pid) == "S")  # it waits for more
    process.send_signal(signal.SIGINT)

    assert process.wait() == 130
    assert process.stderr.read() == ""
    guard.cancel()


def test_a_users_grader_gives_rewards_and_its_mistake_is_one_line():
    process = grade("own_graders.obedient", b'{"completion": "0.5", "gold": "5"}', "--threshold", "0.5")
    row = json.loads(process.stdout)
    assert row["verdict"] == "correct"
    assert row["reward"] == 0.5

    process = grade("own_graders.Scaled", b'{"completion": "0.5", "gold": "5"}', "data.grader.factor=1e1")
    assert json.loads(process.stdout)["reward"] == 5

    process = grade("own_graders.obedient", b'{"completion": "raise", "gold": "5"}')
    assert process.returncode == 1
    assert process.stderr == b"error: grader own_graders.obedient raised ValueError: no idea (completion 1)\n"
