"""`python -m topr_exp.grade`: lines in, the same lines with verdicts out, in order and as they come."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "topr_exp.grade"]
FOUND = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
PLACE: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": FOUND}}
FIVE = {"completion": "The answer is 5.", "gold": "5"}
HALF = {"completion": r"The answer is \frac{\sqrt{2}}{2}.", "gold": r"\frac{1}{\sqrt{2}}"}


def run(*options: str, text: str | bytes = "") -> subprocess.CompletedProcess[bytes]:
    data = text.encode() if isinstance(text, str) else text
    return subprocess.run([*COMMAND, *options], input=data, capture_output=True, timeout=300, **PLACE)


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def test_lines_come_back_in_order_with_verdicts() -> None:
    rows = [
        {"id": 1, **FIVE, "nested": {"kept": [1, None, "é"]}},
        {"completion": "none \ud800 \u2028 \x00 é", "gold": "5"},
        HALF,
        {"completion": "The answer is 5.5.", "gold": r"\frac{11}{2}"},
        {"completion": "The answer is 6.", "gold": "5", "verdict": "old"},
        {"completion": r"The answer is \pi.", "gold": r"\sqrt{3}"},
    ]
    done = run("--format", "gsm8k", text=lines(*rows))
    assert done.returncode == 0
    added = [
        ("correct", "5", "string"), ("invalid", None, "none"), ("correct", r"\frac{\sqrt{2}}{2}", "symbolic"),
        ("correct", "5.5", "rational"), ("incorrect", "6", "rational"), ("incorrect", r"\pi", "numeric"),
    ]  # fmt: skip
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {**row, "verdict": verdict, "answer": answer, "path": path}
        for row, (verdict, answer, path) in zip(rows, added, strict=True)
    ]
    assert done.stderr.decode().startswith("3 correct, 2 incorrect, 1 invalid, 0 malformed; ")


def test_a_gold_may_be_a_number() -> None:
    golds = (5, 5.0, -3, 10**400, "5", math.nan, None)
    rows = [{"completion": f"The answer is {gold}.", "gold": gold} for gold in golds]
    done = run("--format", "gsm8k", text=lines(*rows))
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("verdict") for row in out[:5]] == ["correct"] * 5
    assert [row["gold"] for row in out[:5]] == [*golds[:5]]
    assert [row["error"] for row in out[5:]] == [
        "the gold answer NaN is no finite number",
        "gold is not a string or a number but NoneType",
    ]


def test_malformed_lines_are_reported_and_the_rest_is_graded() -> None:
    text = lines(FIVE, "{", "", "[1]", {"gold": "5"}, {"completion": "x", "gold": True}, FIVE).encode()
    text += b'{"completion": "\xff", "gold": "1"}\n' + lines("[" * 100_000, {**FIVE, "more": "x" * 300_000}).encode()
    done = run("--format", "gsm8k", text=text + json.dumps(FIVE).encode())  # the last line has no end
    out = [json.loads(line) for line in done.stdout.splitlines()]
    found = [row.get("verdict") or row["line"] for row in out]
    assert found == ["correct", 2, 4, 5, 6, "correct", 8, 9, "correct", "correct"]
    errors = [row["error"] for row in out if "error" in row]
    assert errors[1:5] == [
        "not an object but list",
        "no completion",
        "gold is not a string or a number but bool",
        "not UTF-8",
    ]
    assert done.returncode == 1
    assert b"6 malformed" in done.stderr


def test_a_result_does_not_wait_for_further_input_nor_ctrl_c() -> None:
    """As a filter behind another program: one line in, one line out, while the input stays open."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    as_in_a_shell = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs ignore Ctrl-C
    process = subprocess.Popen([*COMMAND, "--format", "gsm8k"], **pipes, text=True, preexec_fn=as_in_a_shell, **PLACE)
    guard = threading.Timer(300, process.kill)
    guard.start()
    for row in (FIVE, HALF, {"completion": "", "gold": "5"}):
        process.stdin.write(lines(row))
        process.stdin.flush()
        assert "verdict" in json.loads(process.stdout.readline())
    process.stdin.write("broken\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["line"] == 4
    time.sleep(0.5)  # by now it waits for more
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == ""
    guard.cancel()


def test_a_grader_of_ones_own() -> None:
    done = run("--format", "own_graders.obedient", "--threshold", "0.5", text=lines({"completion": "0.5", "gold": "5"}))
    assert {"verdict": "correct", "reward": 0.5}.items() <= json.loads(done.stdout).items()
    done = run("--format", "own_graders.obedient", text=lines({"completion": "raise", "gold": "5"}))
    assert done.returncode == 1
    assert done.stderr.decode() == "error: grader own_graders.obedient raised ValueError: no idea (completion 1)\n"
