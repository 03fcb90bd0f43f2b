"""`make gpu-check` without a GPU: its steps do what they say, and its verdicts are true (docs/gpu.md)."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts import gpu_check, gpu_check_model, gpu_check_runs
from scripts.gpu_check import PACKAGES, STEPS, Step, Timetable, interrupt, missing_need, place_of
from scripts.gpu_check_model import tokenizer_of, write_model
from scripts.gpu_check_runs import FailedStepError, Place, TimeOverError, execute, gate
from tests.conftest import ROOT, config_of, lines_of
from tests.sweep_tools import SLOW, wait_for
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.models.policy import Policy


def run_check(out: Path, *arguments: str, minutes: float = 8) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.gpu_check", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * minutes)


def verdicts_of(results: dict[str, Any]) -> dict[str, str]:
    return {name: outcome["verdict"] for name, outcome in results["steps"].items()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine with one GPU for the 8B model, and vLLM."""
    return Place(tmp_path, "8b", 1, 140.0, "python")


# ---- whole checks


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_steps_run_with_a_small_model_and_say_that_vllm_is_missing(tmp_path: Path) -> None:
    small = ["small-update", "small-model", "small-sampling", "small-rounds", "small-lora"]
    names = ["preflight", *small, "head", "update", "model", "sampling", "smoke", "whole", "rounds", "curve"]
    process = run_check(tmp_path, "--size", "small", "--only", *names, minutes=25)
    assert process.returncode == 0, process.stdout + process.stderr
    results = json.loads((tmp_path / "small" / "results.json").read_text())
    skipped = dict.fromkeys(["sampling", "small-sampling"], "skipped")
    assert verdicts_of(results) == dict.fromkeys(names, "passed") | skipped
    assert results["steps"]["sampling"]["why"] == "vLLM is needed: --vllm PYTHON"
    figures = {name: outcome.get("figures", {}) for name, outcome in results["steps"].items()}
    assert figures["smoke"].keys() == {"s float32", "s bfloat16"}
    assert "plain: s" in figures["update"]
    assert figures["small-update"]["operations"] > 100
    assert {figures[name]["sampler"] for name in ("small-rounds", "whole", "rounds")} == {"hf"}
    assert figures["model"]["vocabulary"] == 2048
    whole = figures["whole"]
    assert whole["sampled tokens/s of the stage"] > 0
    # 0 where a processor's kernels round a sequence alike in any batch.
    assert 0 <= whole["gate: |log π − log μ| median"] <= whole["gate: |log π − log μ| largest"] < 0.1
    quantiles = [whole[f"log μ − log q a token, {name}"] for name in ("min", "1%", "50%", "99%", "max")]
    assert quantiles == sorted(quantiles)
    assert whole["μ/q a completion, 50%"] == pytest.approx(1, abs=0.1)
    (run,) = (tmp_path / "small" / "runs" / "rounds").glob("*")
    assert [line["round"] for line in lines_of(run / "metrics.jsonl")] == [0, 1, 2]
    assert "| rounds | passed |" in (tmp_path / "small" / "results.md").read_text()
    for dtype in ("float32", "bfloat16"):  # stopped, and given again to its end
        (run,) = (tmp_path / "small" / "runs" / f"smoke-{dtype}").glob("*")
        assert (run / "DONE").exists()
        assert json.loads((run / "state.json").read_text())["attempt"]["number"] == 2
        assert [line["step"] for line in lines_of(run / "metrics.jsonl")] == list(range(1, 161))


def test_a_python_without_vllm_is_one_line(tmp_path: Path) -> None:
    process = run_check(tmp_path, "--size", "small", "--vllm", "/no/python")
    assert process.returncode == 2
    assert process.stderr.startswith("error: --vllm: sampler.python=/no/python: can't be started")
    assert len(process.stderr.splitlines()) == 1


def made_step(work: Callable[[Place], dict[str, Any]], **fields: Any) -> Step:
    return Step("a step", work, **{"minutes": 1, "seconds": 20} | fields)


def failing(error: Exception) -> Callable[[Place], dict[str, Any]]:
    def work(place: Place) -> dict[str, Any]:
        raise error

    return work


@pytest.mark.parametrize(
    ("step", "verdict", "reason"),
    [
        (made_step(lambda place: {"speed": 3}), "passed", ""),
        (made_step(failing(FailedStepError("no update after 3 minutes"))), "failed", "no update after 3 minutes"),
        (made_step(failing(AttributeError("no such setting"))), "failed", "AttributeError: no such setting"),
        (
            made_step(failing(TimeOverError("not done within the step's limit"))),
            "unfinished",
            "not done within the step's limit; the same command goes on with it",
        ),
        (
            made_step(dict, seconds=2701),
            "skipped",
            "it takes 2701 s, and 2700 were left; the same command goes on with it",
        ),
        (made_step(dict, needs=("memory",)), "skipped", "62 GiB of GPU memory are needed, there are 40"),
        (made_step(dict, needs=("two GPUs",)), "skipped", "two GPUs are needed, there are 1"),
    ],
    ids=["passed", "failed", "broken", "too long", "no time left", "no memory", "one GPU"],
)
def test_a_step_ends_with_its_verdict_and_the_reason(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: Step, verdict: str, reason: str
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    outcome = gpu_check.do_step(step, dataclasses.replace(place, memory=40.0), Timetable(deadline=2700.0))
    assert (outcome["verdict"], outcome.get("why", "")) == (verdict, reason)


def test_steps_that_passed_are_not_repeated_and_the_table_is_written_after_each(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def good(place: Place) -> dict[str, Any]:
        calls.append("good")
        return {"speed": 3}

    def bad(place: Place) -> dict[str, Any]:
        calls.append("bad")
        assert "| good | passed |" in (place.out / "results.md").read_text(), "not at the end alone"
        raise FailedStepError("no update after 3 minutes")

    monkeypatch.setattr(gpu_check, "STEPS", {"good": made_step(good), "bad": made_step(bad)})
    (place.out / "machine.json").write_text('{"GPU": "none"}')
    for names in (["good"], ["bad"], ["good", "bad"]):
        results = gpu_check.check(place, names, Timetable(deadline=time.monotonic() + 2700), repeats=False)
    assert calls == ["good", "bad", "bad"]
    assert list(results["steps"]) == ["good", "bad"]
    rows = (place.out / "results.md").read_text().splitlines()
    assert {"| good | passed | 0 | speed 3 |", "| bad | failed | 0 | no update after 3 minutes |"} <= set(rows)


def test_few_minutes_are_for_the_steps_of_most_value(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model before 8B; no step starts that would not end in time, none takes the time of later ones."""
    now = [0.0]
    limits: dict[str, float] = {}
    monkeypatch.setattr(gpu_check, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(gpu_check, "missing_need", lambda place, step: None)
    names = {id(step): name for name, step in STEPS.items()}
    seconds = {name: step.seconds for name, step in STEPS.items()} | {"model": 60, "small-model": 20}

    def attempt(step: Step, place: Place) -> dict[str, Any]:
        name = names[id(step)]
        limits[name] = place.until - now[0]
        now[0] += seconds[name]
        return {"verdict": "passed", "figures": {"size": place.size}}

    monkeypatch.setattr(gpu_check, "attempt", attempt)
    (place.out / "machine.json").write_text("{}")
    results = gpu_check.check(place, list(STEPS), Timetable(deadline=720.0, is_tight=True), repeats=False)
    passed = [name for name, verdict in verdicts_of(results).items() if verdict == "passed"]
    small = [name for name in STEPS if name.startswith("small-")]
    assert passed[: len(small) + 1] == ["preflight", *small]
    assert {"update", "head", "model", "sampling"} <= set(passed), "the first 8B figures fit, too"
    assert now[0] <= 720
    assert limits["small-sampling"] == 2 * STEPS["small-sampling"].seconds
    assert {results["steps"][name]["figures"]["size"] for name in small} == {"135m"}
    assert "were left; the same command goes on with it" in results["steps"]["whole"]["why"]
    assert now[0] < sum(step.seconds for step in STEPS.values()) <= 60 * gpu_check.TOTAL_MINUTES


# ---- runs of the check


@pytest.mark.parametrize("size", ["8b", "small"])
def test_the_newest_run_speaks_and_8b_weights_do_not_pile_up(tmp_path, monkeypatch, size):
    monkeypatch.setattr(gpu_check_runs, "execute", lambda *_: "")
    for seconds, name in enumerate(("older", "newer")):
        run = tmp_path / "runs" / "whole" / name
        (run / "model").mkdir(parents=True)
        (run / "summary.json").write_text(json.dumps({"name": name}))
        os.utime(run / "summary.json", (seconds, seconds))
    assert gpu_check_runs.experiment(Place(tmp_path, size, 0, 0.0, None), "whole", []) == {"name": "newer"}
    assert (tmp_path / "runs" / "whole" / "newer" / "model").exists() == (size == "small")


@pytest.mark.extended
def test_a_run_to_be_stopped_starts_from_its_beginning(tmp_path: Path) -> None:
    """Where an earlier check ended it, too: the signal has to come while it trains."""
    place = Place(tmp_path, "small", 0, 0.0, None)
    for _ in range(2):
        interrupt(place, "smoke", ["experiment=smoke", "optim.epochs=40", *SLOW])
        (run,) = (tmp_path / "runs" / "smoke").glob("*")
        assert 0 < len(lines_of(run / "metrics.jsonl")) < 40
        assert not (run / "DONE").exists()
        (run / "metrics.jsonl").write_text("{}\n" * 500)  # as of a run that ended


def test_a_run_without_the_line_about_its_first_update_does_not_pass(place: Place) -> None:
    (place.out / "whole.log").write_text("nothing\n")
    with pytest.raises(FailedStepError, match="no line about log π − log μ before the first update in"):
        gate(place, "whole")


@pytest.mark.parametrize(("gigabytes", "is_small"), [(0.3, True), (16, False)])
def test_a_given_model_is_for_the_steps_of_its_size(tmp_path: Path, gigabytes: float, is_small: bool) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(int(gigabytes * 1e9))
    place = gpu_check.with_model(Place(tmp_path / "out", "8b", 1, 140.0, None), tmp_path)
    random_model = tmp_path / "out" / ("random-model" if is_small else "small-random-model")
    assert place.small().weights == (tmp_path if is_small else random_model)
    assert place.weights == (random_model if is_small else tmp_path)
    on_cpu = gpu_check.with_model(Place(tmp_path / "out", "small", 0, 0.0, None), tmp_path)
    assert on_cpu.weights == on_cpu.small().weights == tmp_path


# ---- needs


def missing_needs(place: Place) -> dict[str, str]:
    """What each step that can't be done lacks."""
    reasons = {name: missing_need(place_of(place, name), step) for name, step in STEPS.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def test_files_of_the_check_itself_count_as_free_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=49e9 - 6000))
    place.shots.write_text("")
    reason = f"49 GB of disk are needed in {place.out}, 49 are free or its own (--out FOLDER)"
    assert missing_needs(place)["whole"] == reason
    (place.out / "weights").write_bytes(bytes(8192))
    assert "whole" not in missing_needs(place)


def test_no_disk_is_asked_for_beyond_a_steps_own_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """8B weights and completions need 17 GB, not the 150 of a whole run."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=17e9))
    place.shots.touch()
    refused = {name for name, reason in missing_needs(place).items() if "disk" in reason}
    assert refused == {"whole", "checkpoint", "rounds", "curve"}


def test_a_missing_need_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=150e9))
    with_model = [name for name, step in STEPS.items() if "model" in step.needs]
    small = [name for name in with_model if name.startswith("small-")]
    large = [name for name in with_model if name not in small]
    no_model = dict.fromkeys(small, "there is no model (step small-model)")
    no_model |= dict.fromkeys(large, "there is no model (step model)")
    assert missing_needs(Place(tmp_path, "8b", 2, 62.0, "python")) == no_model
    for prefix in ("", "small-"):
        (tmp_path / f"{prefix}shots.jsonl").write_text("")
    assert not missing_needs(Place(tmp_path, "8b", 2, 62.0, "python"))
    no_memory = dict.fromkeys(["update", "checkpoint", *large], "62 GiB of GPU memory are needed, there are 61")
    assert missing_needs(Place(tmp_path, "8b", 2, 61.0, "python")) == no_memory
    no_vllm = dict.fromkeys([*large, "small-sampling"], "vLLM is needed: --vllm PYTHON")
    no_vllm["several"] = "two GPUs are needed, there are 1"
    assert missing_needs(Place(tmp_path, "8b", 1, 62.0, None)) == no_vllm
    no_gpu = dict.fromkeys(["sampling", "small-sampling"], "vLLM is needed: --vllm PYTHON")
    no_gpu["tests"] = "there is no GPU"
    assert missing_needs(Place(tmp_path, "100m", 0, 0.0, None)) == no_gpu  # smaller models sample without vLLM
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    packages = {"small-trl": "trl", "small-lora": "peft", "lora": "peft", "tests": "pytest"}
    no_package = {step: f"{name} is not installed: {PACKAGES[name]}" for step, name in packages.items()}
    assert missing_needs(Place(tmp_path, "8b", 2, 62.0, "python")) == no_package


def test_the_document_names_every_step_and_its_needs() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    table = text.partition("| step |")[2].partition("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    limits = {row[1].strip(" `"): float(row[3]) for row in rows}
    assert limits == {name: step.minutes for name, step in STEPS.items()}
    on_one_gpu = [step.models for name, step in gpu_check.LARGE.items() if name != "several"]
    gigabytes = max(on_one_gpu) * gpu_check_runs.SIZES["8b"].gigabytes
    assert f"{math.ceil(gigabytes)} GB of disk" in text


# ---- measurements


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr("sys.path", [*sys.path])
    from scripts import gpu_check_steps

    return gpu_check_steps


@pytest.mark.parametrize("way", ["checkpointing", "plain"])
def test_rates_of_an_update_count_its_tokens(measurements: Any, way: str) -> None:
    figures = measurements.update("small", way)
    seconds = figures[f"{way}: s"]
    # 90 shared tokens, then 8 times 10 and 20.
    assert figures[f"{way}: distinct tokens/s"] * seconds == pytest.approx(90 + 8 * 30, rel=0.05)
    assert figures[f"{way}: tokens/s"] * seconds == pytest.approx(8 * 120, rel=0.05)
    assert figures[f"{way}: Adafactor s"] > 0
    assert not any("MFU" in key or "GiB" in key for key in figures)  # which a GPU has


def test_operations_are_six_a_weight_and_token(measurements: Any) -> None:
    """Of 8 sequences with 20 completion tokens; the embeddings only look up."""
    from training import LLAMAS, Case

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**LLAMAS["8b"]))
    case = Case("8b", 0, (1, 1), (20, 20), 8, 8, "adafactor", "")
    runner = SimpleNamespace(policy=Policy(model, None, "", torch.float32), case=case)
    assert measurements.operations(runner, 1000) == pytest.approx(6e9 * (6.98 * 1000 + 0.525 * 160), rel=1e-3)


def test_output_layers_are_measured(measurements: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = measurements.head("small")
    for head in ("plain", "ours", "torch"):
        assert figures[f"{head}: s"] >= 0
        assert figures[f"{head}: GiB"] >= 0
    monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions")
    assert "torch: s" not in measurements.head("small"), "an older torch has none"


def test_the_time_of_a_small_update_is_taken_apart(measurements: Any, tmp_path: Path) -> None:
    figures = measurements.small_update("small", str(tmp_path))
    rows = json.loads((tmp_path / "update-small-kernels.json").read_text())
    assert figures["operations"] == pytest.approx(sum(row["times"] for row in rows), abs=1)
    milliseconds = [row["ms"] for row in rows]
    assert milliseconds == sorted(milliseconds, reverse=True)
    assert figures["1."].startswith(measurements.short_name(rows[0]["name"]))
    assert "10." in figures
    assert "11." not in figures


def test_without_git_the_commit_is_unknown(measurements: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    assert measurements.commit() == "unknown"  # a copy of the files
    monkeypatch.setenv("PATH", "/nowhere")
    assert measurements.commit() == "unknown"


@pytest.mark.parametrize(("size", "millions"), [("8b", 8030.3), ("100m", 104.8)])
def test_the_random_model_has_llama_3s_vocabulary_and_prompts_of_900_tokens(tmp_path, monkeypatch, size, millions):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**gpu_check_model.model_settings(size)))
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert model.config.vocab_size == 128_256
    tokenizer = tokenizer_of(128_256)
    assert len(tokenizer) == 128_256

    place = Place(tmp_path, size, 0, 0.0, None)
    write_model("small", str(place.weights), str(place.shots))
    data = config_of(*place.model).data
    prompter, policy = build_prompter(data), Policy(None, tokenizer, "", torch.float32)
    prompts = [prompter.render(problem.question, tokenizer) for problem in load_problems(data).train]
    lengths = [len(policy.encode(prompt)) for prompt in prompts]
    assert len(lengths) == gpu_check_runs.SIZES[size].problems
    assert min(lengths) >= 880
    assert max(lengths) <= 920


# ---- commands that a step starts


STARTS_ANOTHER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(("seconds", "limit"), [(600, 4), (0, 60)], ids=["too long", "in time"])
def test_all_that_a_command_started_ends_with_it(tmp_path: Path, seconds: int, limit: int) -> None:
    place = Place(tmp_path, "small", 0, 0.0, None, time.monotonic() + limit)
    command = [sys.executable, "-c", STARTS_ANOTHER, str(seconds)]
    if seconds > limit:
        with pytest.raises(TimeOverError, match=r"not done within the step's limit; it\.log says how far it came"):
            execute(place, "it", command)
    else:
        execute(place, "it", command)
    state = Path(f"/proc/{int((tmp_path / 'it.log').read_text())}/stat")
    assert wait_for(lambda: not state.exists() or " Z " in state.read_text(), 5)


def test_a_command_that_fails_is_its_last_line(place: Place) -> None:
    (place.out / "it.log").write_text("a line of an earlier check\n")
    with pytest.raises(FailedStepError, match=r"^no output \(status 3, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(FailedStepError, match=r"^no GPU \(status 1, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit('no GPU')"])
