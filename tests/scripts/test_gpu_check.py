"""`make gpu-check` without a GPU: its steps do what they say, and its verdicts are true (docs/gpu.md)."""

import dataclasses
import math
import re
import sys
import time
from types import SimpleNamespace

import pytest

from scripts import gpu_check, gpu_check_runs
from scripts.gpu_check import PACKAGES, STEPS, Step, Timetable, missing_need, place_of
from scripts.gpu_check_runs import Command, FailedStepError, Place, TimeOverError, execute, gate
from tests.conftest import column, document, lines_of, read_json, run_python
from tests.processes import is_running
from tests.sweep_tools import wait_for

SMALL = [name for name in STEPS if name.startswith("small-")]


@pytest.fixture
def place(tmp_path):
    """A machine with one GPU for the 8B model, and vLLM."""
    return Place(tmp_path, "8b", 1, 140.0, "python")


# ---- whole checks


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_steps_run_with_a_small_model_and_say_that_vllm_is_missing(tmp_path):
    names = ["preflight", *SMALL, "head", "update", "model", "sampling", "smoke", "whole", "rounds", "curve"]
    names.remove("small-trl")
    without_vllm = dict.fromkeys(["sampling", "small-sampling"], "skipped")

    process = run_python("-m", "scripts.gpu_check", "--size", "small", "--out", tmp_path, "--only", *names)

    assert process.returncode == 0, process.stdout + process.stderr
    out = tmp_path / "small"
    steps = read_json(out / "results.json")["steps"]
    verdicts = {name: step["verdict"] for name, step in steps.items()}
    assert verdicts == dict.fromkeys(names, "passed") | without_vllm
    assert steps["sampling"]["why"] == "vLLM is needed: --vllm PYTHON"
    assert "plain: s" in steps["update"]["figures"]
    assert steps["small-update"]["figures"]["operations"] > 100
    assert "| rounds | passed |" in (out / "results.md").read_text()

    figures = steps["whole"]["figures"]
    assert figures["sampler"] == "hf"
    assert figures["sampled tokens/s of the stage"] > 0
    assert 0 <= figures["gate: |log π − log μ| median"] <= figures["gate: |log π − log μ| largest"] < 0.1
    assert figures["μ/q a completion, 50%"] == pytest.approx(1, abs=0.1)

    for dtype in ("float32", "bfloat16"):  # stopped, and given again to its end
        (run,) = (out / f"runs/smoke-{dtype}").glob("*")
        assert (run / "DONE").exists()
        assert read_json(run / "state.json")["attempt"]["number"] == 2
        assert column(lines_of(run / "metrics.jsonl"), "step") == list(range(1, 161))


# ---- the plan


def step_of(work, **fields):
    return Step("a step", work, **{"minutes": 1, "seconds": 20} | fields)


def failing(error):
    def work(place):
        raise error

    return work


@pytest.mark.parametrize(
    "step, verdict, reason",
    [
        (step_of(lambda place: {"speed": 3}), "passed", ""),
        (step_of(failing(FailedStepError("no update"))), "failed", "no update"),
        (step_of(failing(KeyError("no key"))), "failed", "KeyError: 'no key'"),
        (step_of(failing(TimeOverError("too slow"))), "unfinished", "too slow; the same command goes on with it"),
        (
            step_of(dict, seconds=2800),
            "skipped",
            "it takes 2800 s, and 2[67].. were left; the same command goes on with it",
        ),
        (step_of(dict, needs=("two GPUs",)), "skipped", "two GPUs are needed, there are 1"),
    ],
)
def test_a_step_ends_with_its_verdict_and_the_reason(place, step, verdict, reason):
    outcome = gpu_check.do_step(step, place, Timetable(deadline=time.monotonic() + 2700))

    assert outcome["verdict"] == verdict
    assert re.fullmatch(reason, outcome.get("why", ""))


def check(place, names, steps, **timetable):
    (place.out / "machine.json").write_text('{"GPU": "none"}')
    return gpu_check.check(place, names, Timetable(**timetable), repeats=False, steps=steps)


def test_steps_that_passed_are_not_repeated_and_the_table_is_written_after_each(place):
    calls = []

    def good(place):
        calls.append("good")
        return {"speed": 3}

    def bad(place):
        calls.append("bad")
        assert re.search(r"\| good \| passed \| \d+ \| speed 3 \|", (place.out / "results.md").read_text())
        raise FailedStepError("no update")

    steps = {"good": step_of(good), "bad": step_of(bad)}

    for names in (["good"], ["bad"], ["good", "bad"]):
        results = check(place, names, steps, deadline=time.monotonic() + 2700)

    assert calls == ["good", "bad", "bad"]
    assert list(results["steps"]) == ["good", "bad"]
    assert re.search(r"\| bad \| failed \| \d+ \| no update \|", (place.out / "results.md").read_text())


def test_few_minutes_are_for_the_steps_of_most_value(place, monkeypatch):
    """The small model before 8B; no step starts that would not end in time, none takes the time of later ones."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    limits = {}

    def timed(name, seconds):
        def work(place):
            limits[name] = place.until - clock.now
            clock.now += seconds
            return {"size": place.size}

        return dataclasses.replace(STEPS[name], work=work, needs=())

    quick = {"model": 60, "small-model": 20}
    steps = {name: timed(name, quick.get(name, step.seconds)) for name, step in STEPS.items()}
    monkeypatch.setattr(gpu_check, "time", clock)

    results = check(place, list(STEPS), steps, deadline=720.0, is_tight=True)

    assert list(limits)[: len(SMALL) + 1] == ["preflight", *SMALL]
    assert limits.keys() >= {"update", "head", "model", "sampling"}, "the first 8B figures fit, too"
    assert limits["small-sampling"] == 2 * STEPS["small-sampling"].seconds
    assert clock.now <= 720
    for name in SMALL:
        assert results["steps"][name]["figures"]["size"] == "135m"
    assert "were left; the same command goes on with it" in results["steps"]["whole"]["why"]
    assert sum(step.seconds for step in STEPS.values()) <= 60 * gpu_check.TOTAL_MINUTES


# ---- needs


def missing_needs(folder, gpus=2, memory=62.0, vllm="python", size="8b"):
    """What each step that can't be done lacks."""
    place = Place(folder, size, gpus, memory, vllm)
    needs = {name: missing_need(place_of(place, name), step) for name, step in STEPS.items()}
    return {name: need for name, need in needs.items() if need}


def test_a_missing_need_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=150e9))
    large = [name for name, step in STEPS.items() if "model" in step.needs and name not in SMALL]
    no_vllm = "vLLM is needed: --vllm PYTHON"
    assert missing_needs(tmp_path)["whole"] == "there is no model (step model)"

    for prefix in ("", "small-"):
        (tmp_path / f"{prefix}shots.jsonl").touch()

    assert missing_needs(tmp_path) == {}
    no_memory = dict.fromkeys(["update", "checkpoint", *large], "62 GiB of GPU memory are needed, there are 61")
    assert missing_needs(tmp_path, memory=61.0) == no_memory
    one_gpu = dict.fromkeys([*large, "small-sampling"], no_vllm) | {"several": "two GPUs are needed, there are 1"}
    assert missing_needs(tmp_path, gpus=1, vllm=None) == one_gpu
    no_gpu = dict.fromkeys(["sampling", "small-sampling"], no_vllm) | {"tests": "there is no GPU"}
    # Smaller models sample without vLLM.
    assert missing_needs(tmp_path, gpus=0, memory=0.0, vllm=None, size="100m") == no_gpu

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing_needs(tmp_path)["lora"] == f"peft is not installed: {PACKAGES['peft']}"


def test_the_document_has_the_limits_and_the_disk_of_the_steps():
    text = " ".join(document("gpu.md").split())

    minutes = {step.minutes for step in STEPS.values()}
    assert f"a limit of {min(minutes)} to {max(minutes)} minutes" in text
    models = max(step.models for name, step in gpu_check.LARGE.items() if name != "several")
    assert f"{math.ceil(models * gpu_check_runs.SIZES['8b'].gigabytes)} GB of disk" in text


# ---- runs and commands of the steps


def test_a_run_without_the_line_about_its_first_update_does_not_pass(place):
    (place.out / "whole.log").write_text("nothing\n")

    with pytest.raises(FailedStepError, match="no line about log π − log μ before the first update in"):
        gate(place, "whole")


STARTS_ANOTHER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def test_all_that_a_command_started_ends_with_it(place):
    with Command(place, "it", [sys.executable, "-c", STARTS_ANOTHER]) as command:
        command.wait(lambda: command.output.endswith("\n"))
        command.until = 0.0
        with pytest.raises(TimeOverError, match=r"not done within the step's limit; it\.log says how far it came"):
            command.wait()

    wait_for(lambda: not is_running(int(command.output)))


@pytest.mark.parametrize(
    "program, line",
    [("raise SystemExit(3)", "no output (status 3, it.log)"), ("exit('no GPU')", "no GPU (status 1, it.log)")],
)
def test_a_command_that_fails_is_its_last_line(place, program, line):
    (place.out / "it.log").write_text("a line of an earlier check\n")

    with pytest.raises(FailedStepError) as failure:
        execute(place, "it", [sys.executable, "-c", program])

    assert str(failure.value) == line
