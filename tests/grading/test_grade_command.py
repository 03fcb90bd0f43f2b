"""`python -m topr_exp.grade`: lines in, the same lines with verdicts out, in order and as they come."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from topr_exp.grade import main

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "topr_exp.grade"]
HALF = {"completion": r"\boxed{\frac{\sqrt{2}}{2}}", "gold": r"\frac{1}{\sqrt{2}}"}


def run(*options: str, text: str | bytes = "", **settings: Any) -> subprocess.CompletedProcess[bytes]:
    data = text.encode() if isinstance(text, str) else text
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}
    return subprocess.run(
        [*COMMAND, *options], input=data, capture_output=True, timeout=300, env=environment, **{"cwd": ROOT, **settings}
    )


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def test_lines_come_back_in_order_with_verdicts() -> None:
    rows = [
        {"id": 1, "completion": r"\boxed{5}", "gold": "5", "nested": {"kept": [1, None, "é"]}},
        {"completion": "none", "gold": "5"},
        HALF,
        {"completion": r"\boxed{5.5}", "gold": r"\frac{11}{2}"},
        {"completion": r"\boxed{6}", "gold": "5", "verdict": "old"},
        {"completion": r"\boxed{\pi}", "gold": r"\sqrt{3}"},
    ]
    done = run("--format", "math", "--deadline", "60", text=lines(*rows))
    assert done.returncode == 0
    out = [json.loads(line) for line in done.stdout.splitlines()]
    added = [(row["verdict"], row["answer"], row["path"]) for row in out]
    assert added == [
        ("correct", "5", "string"),
        ("invalid", None, "none"),
        ("correct", r"\frac{\sqrt{2}}{2}", "symbolic"),
        ("correct", "5.5", "rational"),
        ("incorrect", "6", "rational"),
        ("incorrect", r"\pi", "numeric"),
    ]
    assert [
        {**row, **{k: r[k] for k in ("verdict", "answer", "path")}} for row, r in zip(rows, out, strict=True)
    ] == out
    summary = done.stderr.decode()
    assert summary.count("\n") == 1
    assert (
        "6 graded: 3 correct, 2 incorrect, 1 invalid; decided by: 1 string, 2 rational, 1 numeric, 1 symbolic; 0 malf"
        in summary
    )


def test_malformed_lines_are_reported_and_the_rest_is_graded() -> None:
    good = {"completion": "The answer is 5.", "gold": "5"}
    text = lines(good, "{", "", "[1]", {"gold": "5"}, {"completion": "x", "gold": 5}, good).encode()
    done = run(
        "--format", "gsm8k", text=text + b'{"completion": "\xff", "gold": "1"}\n' + lines("[" * 100_000, good).encode()
    )
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("verdict") or row["line"] for row in out] == ["correct", 2, 4, 5, 6, "correct", 8, 9, "correct"]
    errors = [row["error"] for row in out if "error" in row]
    assert errors[1:5] == ["not an object but list", "no completion", "gold is not a string but int", "not UTF-8"]
    assert done.returncode == 1
    assert b"6 malformed" in done.stderr


@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_the_file_has_the_rights_that_the_umask_leaves_and_the_umask_stays(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads make files meanwhile."""
    (tmp_path / "in").write_text(lines({"completion": "The answer is 5.", "gold": "5"}))
    before, change = os.umask(umask), os.umask
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the process's umask was changed"))
        assert main(["--format", "gsm8k", "--in", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 0
    finally:
        change(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_odd_characters_survive() -> None:
    row = {"completion": "The answer is 5. \ud800 \u2028 \x00 é", "gold": "5"}
    done = run("--format", "gsm8k", text=lines(row))
    assert {k: v for k, v in json.loads(done.stdout).items() if k in row} == row


def test_a_result_does_not_wait_for_further_input() -> None:
    """As a filter behind another program: one line in, one line out, while the input stays open."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*COMMAND, "--format", "math", "--deadline", "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    guard = threading.Timer(300, process.kill)
    guard.start()
    try:
        for row in ({"completion": r"\boxed{5}", "gold": "5"}, HALF, {"completion": "", "gold": "5"}):
            process.stdin.write(lines(row))
            process.stdin.flush()
            assert "verdict" in json.loads(process.stdout.readline())
        process.stdin.write("broken\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["line"] == 4
    finally:
        process.stdin.close()
        assert process.wait(300) == 1
        process.stdout.close()
        guard.cancel()


def test_ctrl_c_while_it_waits_for_input() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--format", "final"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(lines({"completion": "5", "gold": "5"}).encode())
    process.stdin.flush()
    assert process.stdout.readline()
    time.sleep(1)  # it is up, and by now waits for more
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == b""


def test_files(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines({"completion": r"\boxed{5}", "gold": "5"}))
    target.write_text("older")
    done = run("--format", "math", "--in", str(source), "--out", str(target), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert json.loads(target.read_text())["verdict"] == "correct"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl"}
    assert target.stat().st_mode & 0o777 == source.stat().st_mode & 0o777


def test_a_grader_of_ones_own() -> None:
    done = run("--format", "own_graders:contains", text=lines({"completion": "a 5", "gold": "5"}))
    assert json.loads(done.stdout)["verdict"] == "correct"
    done = run("--format", "own_graders:raising", text=lines({"completion": "a 5", "gold": "5"}))
    assert done.returncode == 1
    assert done.stderr.decode() == "error: grader own_graders:raising raised ValueError: no idea (completion 1)\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--format", "mmlu"],
            "error: grader must be one of gsm8k, math, final, verdict or package.module:function; got mmlu",
        ),
        (["--format", "math", "--in", "/absent"], "error: --in /absent: No such file or directory"),
        (["--format", "math", "--out", "/absent/x"], "error: --out /absent/x: No such file or directory"),
        (["--format", "math", "--workers", "0"], "error: workers must be at least 1; got 0"),
        (["--format", "math", "--deadline", "-1"], "error: deadline must be a positive number of seconds; got -1.0"),
        ([], "python -m topr_exp.grade: error: the following arguments are required: --format"),
    ],
)
def test_wrong_options(options: list[str], message: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == message
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_early() -> None:
    row = lines({"completion": r"\boxed{5}" + " " * 200, "gold": "5"})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m topr_exp.grade --format math | head -n 2"
    done = subprocess.run(
        command, shell=True, input=(row * 5000).encode(), capture_output=True, env=environment, cwd=ROOT, timeout=300
    )
    assert done.stdout.count(b"\n") == 2
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
