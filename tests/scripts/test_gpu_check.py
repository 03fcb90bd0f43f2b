"""`make gpu-check` without a GPU: its steps do what they say, and its verdicts are true (docs/gpu.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scripts import gpu_check
from scripts.gpu_check import SEVERAL, STEPS, Failed, Place, Step, interrupt, parent_of, run_command
from tests.conftest import ROOT
from tests.sampling.test_vllm import ENVIRONMENT, PYTHON
from tests.sweep_tools import SLOW
from tests.sweeps.test_group import assert_same_run


def check(out: Path, *arguments: str, minutes: float = 8) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/gpu_check.py", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * minutes)


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_runs_with_a_small_model(tmp_path: Path) -> None:
    done = check(tmp_path, "--size", "small", "--steps", "model", "curve")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "small" / "results.json").read_text())["steps"]
    assert {name: one["verdict"] for name, one in found.items()} == {"model": "passed", "curve": "passed"}
    assert found["curve"]["figures"]["seconds training"] > 0
    (run,) = (tmp_path / "small" / "runs" / "curve").glob("*")
    assert [line["step"] for line in lines_of(run / "eval.jsonl") if "step" in line] == [2]  # of 3
    assert "| curve | passed |" in (tmp_path / "small" / "results.md").read_text()


def test_a_step_that_fails_is_said_and_those_that_passed_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def good(place: Place) -> dict[str, Any]:
        """Works."""
        done.append("good")
        return {"speed": 3}

    def bad(place: Place) -> dict[str, Any]:
        """Fails."""
        done.append("bad")
        raise Failed("no update after 3 minutes")

    def broken(place: Place) -> dict[str, Any]:
        """Has a mistake."""
        return {"speed": 1 / len(place.settings)}  # type: ignore[attr-defined]

    steps = {"good": Step(good, 1), "bad": Step(bad, 1), "long": Step(good, 46), "card": Step(good, 1, ("memory",)),
             "pair": Step(good, 1, ("two GPUs",)), "broken": Step(broken, 1)}  # fmt: skip
    monkeypatch.setattr(gpu_check, "STEPS", steps)
    (tmp_path / "machine.json").write_text('{"GPU": "none"}')
    place = Place(tmp_path, "8b", 1, 40.0, None)
    gpu_check.check(place, list(steps), again=False)
    results = gpu_check.check(place, list(steps), again=False)
    assert done == ["good", "bad", "bad"]
    found = results["steps"]
    verdicts = ["passed", "failed", "skipped", "skipped", "skipped", "failed"]
    assert [one["verdict"] for one in found.values()] == verdicts
    assert found["bad"]["why"] == "no update after 3 minutes"
    assert "no time was left" in found["long"]["why"]
    assert found["card"]["why"] == "62 GiB of GPU memory are needed, there are 40"
    assert found["pair"]["why"] == "two GPUs are needed, there are 1"
    assert found["broken"]["why"] == "AttributeError: 'Place' object has no attribute 'settings'"
    rows = gpu_check.table(results).splitlines()
    assert "| good | passed | 0 | speed 3 |" in rows
    assert "| bad | failed | 0 | no update after 3 minutes |" in rows


@pytest.mark.parametrize("size", ["8b", "small"])
def test_the_newest_run_speaks_and_8b_weights_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(gpu_check, "execute", lambda *_: None)
    for seconds, name in enumerate(("older", "newer")):
        run = tmp_path / "runs" / "whole" / name
        (run / "model").mkdir(parents=True)
        (run / "summary.json").write_text(json.dumps({"name": name}))
        os.utime(run / "summary.json", (seconds, seconds))
    assert gpu_check.experiment(Place(tmp_path, size, 0, 0.0, None), "whole", [], 1) == {"name": "newer"}
    assert (tmp_path / "runs" / "whole" / "newer" / "model").exists() == (size == "small")


def test_a_run_to_be_stopped_begins_anew(tmp_path: Path) -> None:
    """Where an earlier check ended it, too: the signal has to come while it trains."""
    place, settings = Place(tmp_path, "small", 0, 0.0, None), ["experiment=smoke", "optim.epochs=40", *SLOW]
    for _ in range(2):
        interrupt(place, "smoke", settings)
        (run,) = (tmp_path / "runs" / "smoke").glob("*")
        assert 0 < len(lines_of(run / "metrics.jsonl")) < 40
        assert not (run / "DONE").exists()
        (run / "metrics.jsonl").write_text("{}\n" * 500)  # as an ended one's


def test_a_process_is_read_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "stat").write_text("17 (UVM (global) queue) S 2 0 0 0 -1")
    assert parent_of(tmp_path / "17") == (17, 2)
    assert parent_of(tmp_path / "18") == (18, 0)
    assert parent_of(Path(f"/proc/{os.getpid()}")) == (os.getpid(), os.getppid())


def test_a_python_without_vllm_is_one_line(tmp_path: Path) -> None:
    done = check(tmp_path, "--size", "small", "--vllm", "/no/python")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --vllm: sampler.python=/no/python: can't be started")
    assert len(done.stderr.splitlines()) == 1


def test_the_document_names_every_step() -> None:
    rows = [line.split("|") for line in (ROOT / "docs" / "gpu.md").read_text().splitlines() if line.startswith("| `")]
    limits = {row[1].strip(" `"): float(row[3]) for row in rows}
    assert limits == {name: step.minutes for name, step in STEPS.items()}


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not (ENVIRONMENT / ".installed").exists(), reason=f"no vLLM in {ENVIRONMENT}; run `make vllm`")
def test_the_whole_job_with_llama_3s_vocabulary_killed_and_resumed(tmp_path: Path) -> None:
    """The command of docs/gpu.md; the run that was killed ends as one that was not."""
    wanted = ["model", "whole", "lora", "several"]
    done = check(tmp_path, "--size", "100m", "--vllm", str(PYTHON), "--steps", *wanted, minutes=40)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "100m" / "results.json").read_text())["steps"]
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(wanted, "passed")
    (killed,) = (tmp_path / "100m" / "runs" / "several").glob("*")
    steps = [line["step"] for line in lines_of(killed / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    subset = [line for line in lines_of(killed / "eval.jsonl") if line.get("subset")]
    assert [line.get("step") for line in subset] == [None, 2, None]  # of the base, in training, and at its end
    mismatch = json.loads((killed / "summary.json").read_text())["sampler_mismatch"]
    assert 0 < mismatch["per_token_mean_absolute"] < 1e-2, mismatch

    place = Place(tmp_path / "100m", "100m", 0, 0.0, str(PYTHON))
    whole = run_command(place, "undisturbed", [*place.model, *SEVERAL])
    subprocess.run(whole, cwd=ROOT, check=True, timeout=1200, stdout=subprocess.DEVNULL)
    (undisturbed,) = (tmp_path / "100m" / "runs" / "undisturbed").glob("*")
    assert_same_run(killed, undisturbed)
    weights = [load_file(run / "model" / "model.safetensors") for run in (killed, undisturbed)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
