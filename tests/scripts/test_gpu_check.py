"""`make gpu-check` without a GPU: its steps do what they say, and its verdicts are true (docs/gpu.md)."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts import gpu_check, gpu_check_model, gpu_check_runs
from scripts.gpu_check import PACKAGES, STEPS, Step, interrupt, lacking, place_of
from scripts.gpu_check_model import tokenizer_of, write_model
from scripts.gpu_check_runs import Failed, Place, TimeOver, execute, gate
from tests.conftest import ROOT, config_of, lines_of
from tests.sweep_tools import SLOW, wait_for
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.models.policy import Policy
from topr_exp.training.parallel import SingleProcess


def check(out: Path, *arguments: str, minutes: float = 8) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.gpu_check", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * minutes)


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_steps_run_with_a_small_model(tmp_path: Path) -> None:
    """Without vLLM, which is said."""
    small = ["small-update", "small-model", "small-sampling", "small-rounds", "small-lora"]
    wanted = ["preflight", *small, "head", "update", "model", "sampling", "smoke", "whole", "rounds", "curve"]
    done = check(tmp_path, "--size", "small", "--only", *wanted, minutes=25)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "small" / "results.json").read_text())["steps"]
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(wanted, "passed") | {
        "sampling": "skipped",
        "small-sampling": "skipped",
    }
    assert found["sampling"]["why"] == "vLLM is needed: --vllm PYTHON"
    figures = {name: one.get("figures", {}) for name, one in found.items()}
    assert figures["smoke"].keys() == {"s float32", "s bfloat16"}
    assert "plain: s" in figures["update"]
    assert figures["small-update"]["operations"] > 100
    assert figures["small-rounds"]["sampler"] == "hf"
    assert [figures[name]["sampler"] for name in ("whole", "rounds")] == ["hf", "hf"]
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
    for name in ("float32", "bfloat16"):  # stopped, and given again to its end
        (run,) = (tmp_path / "small" / "runs" / f"smoke-{name}").glob("*")
        assert (run / "DONE").exists()
        assert json.loads((run / "state.json").read_text())["attempt"]["number"] == 2
        assert [line["step"] for line in lines_of(run / "metrics.jsonl")] == list(range(1, 161))


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr("sys.path", [*sys.path])
    from scripts import gpu_check_steps

    return gpu_check_steps


@pytest.mark.parametrize("name", ["checkpointing", "plain"])
def test_an_update_is_measured(measurements: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    score, again = SingleProcess.score, set()
    monkeypatch.setattr(SingleProcess, "score", lambda *a, **kw: again.add(kw["recompute"]) or score(*a, **kw))
    found = measurements.update("small", name)
    assert again == {name == "checkpointing"}
    seconds, rate, distinct = (found[f"{name}: {key}"] for key in ("s", "tokens/s", "distinct tokens/s"))
    # 90 shared tokens, then 8 times 10 and 20.
    assert rate / distinct == pytest.approx(8 * 120 / (90 + 8 * 30), rel=1e-3)
    assert distinct * seconds == pytest.approx(90 + 8 * 30, rel=0.05)
    assert found[f"{name}: Adafactor s"] > 0
    assert not any("MFU" in key or "GiB" in key for key in found)  # which a GPU has


def test_operations_are_six_a_weight_and_token(measurements: Any) -> None:
    """Of 8 sequences with 20 completion tokens; the embeddings only look up."""
    from training import LLAMAS, Case

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**LLAMAS["8b"]))
    case = Case("8b", 0, (1, 1), (20, 20), 8, 8, None, "")
    ours = type("Ours", (), {"policy": Policy(model, None, "", torch.float32), "case": case})
    assert measurements.operations(ours, 1000) == pytest.approx(6e9 * (6.98 * 1000 + 0.525 * 160), rel=1e-3)


def test_heads_are_measured(measurements: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measurements.head("small")
    assert all(found[f"{head}: {figure}"] >= 0 for head in ("plain", "ours", "torch") for figure in ("s", "GiB"))
    monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions")
    assert "torch: s" not in measurements.head("small"), "an older torch has none"


@pytest.mark.parametrize(("size", "millions"), [("8b", 8030.3), ("100m", 104.8)])
def test_the_random_model_has_llama_3s_vocabulary_and_prompts_of_900_tokens(tmp_path, monkeypatch, size, millions):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**gpu_check_model.settings(size)))
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert model.config.vocab_size == 128_256
    tokenizer = tokenizer_of(128_256)
    assert len(tokenizer) == 128_256

    place = Place(tmp_path, size, 0, 0.0, None)
    write_model("small", str(place.weights), str(place.shots))
    data = config_of(*place.model).data
    prompter, policy = build_prompter(data), Policy(None, tokenizer, "", torch.float32)
    problems = load_problems(data).train
    lengths = [len(policy.encode(prompter.render(problem.question, tokenizer))) for problem in problems]
    assert len(lengths) == gpu_check_runs.SIZES[size].problems
    assert all(880 <= length <= 920 for length in lengths), lengths


def test_a_step_that_fails_is_said_and_those_that_passed_are_not_done_again(tmp_path, monkeypatch):
    done, limits = [], []

    def step(name: str, needs: tuple[str, ...] = (), fails: Exception | None = None, **more: float) -> Step:
        def work(place: Place) -> dict[str, Any]:
            done.append(name)
            limits.append(place.until - time.monotonic())
            if name == "bad":
                assert "| good | passed |" in (tmp_path / "results.md").read_text(), "not at the end alone"
            if fails is not None:
                raise fails
            return {"speed": 3}

        return Step("work, or don't", work, **{"minutes": 1, "seconds": 20, **more}, needs=needs)

    steps = {
        "good": step("good"), "bad": step("bad", fails=Failed("no update after 3 minutes")),
        "long": step("long", seconds=2701), "card": step("card", ("memory",)), "pair": step("pair", ("two GPUs",)),
        "broken": step("broken", fails=AttributeError("no such setting")), "strict": step("strict", minutes=2),
        "slow": step("slow", fails=TimeOver("not done within the step's limit")),
    }  # fmt: skip
    monkeypatch.setattr(gpu_check, "STEPS", steps)
    (tmp_path / "machine.json").write_text('{"GPU": "none"}')
    place = Place(tmp_path, "8b", 1, 40.0, None)
    for some in (["card"], list(steps)):
        gpu_check.check(place, some, again=False, deadline=time.monotonic() + 2700)
    results = gpu_check.check(place, list(steps), again=False, deadline=time.monotonic() + 2700)
    assert [done.count(name) for name in ("good", "bad", "long", "strict", "slow")] == [1, 2, 0, 1, 2]
    assert limits[done.index("strict")] == pytest.approx(120, abs=10)
    found = {name: (one["verdict"], one.get("why", "")) for name, one in results["steps"].items()}
    assert list(found) == list(steps)  # the table's order, whatever was done first
    assert "it takes 2701 s, and 2700 were left" in found.pop("long")[1]
    assert found == {
        "good": ("passed", ""), "bad": ("failed", "no update after 3 minutes"),
        "card": ("skipped", "62 GiB of GPU memory are needed, there are 40"),
        "pair": ("skipped", "two GPUs are needed, there are 1"),
        "broken": ("failed", "AttributeError: no such setting"), "strict": ("passed", ""),
        "slow": ("unfinished", "not done within the step's limit; the same command goes on with it"),
    }  # fmt: skip
    rows = (tmp_path / "results.md").read_text().splitlines()
    assert {"| good | passed | 0 | speed 3 |", "| bad | failed | 0 | no update after 3 minutes |"} <= {*rows}


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
def test_a_run_to_be_stopped_begins_anew(tmp_path: Path) -> None:
    """Where an earlier check ended it, too: the signal has to come while it trains."""
    place, settings = Place(tmp_path, "small", 0, 0.0, None), ["experiment=smoke", "optim.epochs=40", *SLOW]
    for _ in range(2):
        interrupt(place, "smoke", settings)
        (run,) = (tmp_path / "runs" / "smoke").glob("*")
        assert 0 < len(lines_of(run / "metrics.jsonl")) < 40
        assert not (run / "DONE").exists()
        (run / "metrics.jsonl").write_text("{}\n" * 500)  # as an ended one's


def lacks(place: Place) -> dict[str, str]:
    """What each step that can't be done lacks."""
    found = {name: lacking(place_of(place, name), step) for name, step in STEPS.items()}
    return {name: reason for name, reason in found.items() if reason}


def test_what_the_check_has_written_itself_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=49e9 - 6000))
    here = Place(tmp_path, "8b", 1, 140.0, "python")
    here.shots.write_text("")
    short = f"49 GB of disk are needed in {tmp_path}, 49 are free or its own (--out FOLDER)"
    assert lacks(here)["whole"] == short
    (tmp_path / "weights").write_bytes(bytes(8192))
    assert "whole" not in lacks(here)


def test_no_disk_is_asked_for_beyond_what_a_step_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8B weights and completions need 17 GB, not the 150 of a whole run."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=17e9))
    place = Place(tmp_path, "8b", 1, 140.0, "python")
    (tmp_path / "shots.jsonl").touch()
    refused = {name for name, reason in lacks(place).items() if "disk" in reason}
    assert refused == {"whole", "checkpoint", "rounds", "curve"}


def test_few_minutes_are_for_the_steps_of_most_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model before 8B; no step is begun that would not end in time, none takes the time of those after it."""
    now, limits = [0.0], {}
    monkeypatch.setattr(gpu_check, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(gpu_check, "lacking", lambda place, step: None)

    def attempt(step: Step, place: Place) -> dict[str, Any]:
        (name,) = (name for name, one in STEPS.items() if one is step)
        limits[name] = place.until - now[0]
        now[0] += 60 if name == "model" else 20 if name == "small-model" else step.seconds
        return {"verdict": "passed", "figures": {"size": place.size}}

    monkeypatch.setattr(gpu_check, "attempt", attempt)
    (tmp_path / "machine.json").write_text("{}")
    place = Place(tmp_path, "8b", 1, 140.0, "python")
    results = gpu_check.check(place, list(STEPS), again=False, deadline=720.0, limited=True)["steps"]
    done = [name for name, one in results.items() if one["verdict"] == "passed"]
    small = [name for name in STEPS if name.startswith("small-")]
    assert done[: len(small) + 1] == ["preflight", *small]
    assert {"update", "head", "model", "sampling"} <= {*done}, "the first 8B figures fit, too"
    assert now[0] <= 720
    assert limits["small-sampling"] == 2 * STEPS["small-sampling"].seconds
    assert all(one["figures"]["size"] == "135m" for name, one in results.items() if name in small)
    assert "were left; the same command goes on with it" in results["whole"]["why"]
    twelve, forty_five = (now[0], sum(step.seconds for step in STEPS.values()))
    assert twelve < forty_five <= 60 * gpu_check.TOTAL


@pytest.mark.parametrize(("gigabytes", "small"), [(0.3, True), (16, False)])
def test_a_model_is_that_of_the_steps_of_its_size(tmp_path: Path, gigabytes: float, small: bool) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(int(gigabytes * 1e9))
    place = gpu_check.with_given_model(Place(tmp_path / "out", "8b", 1, 140.0, None), tmp_path)
    random = "small-random-model" if not small else "random-model"
    assert (place.small().weights == tmp_path, place.weights == tmp_path) == (small, not small)
    assert random in {place.weights.name, place.small().weights.name}
    cpu = gpu_check.with_given_model(Place(tmp_path / "out", "small", 0, 0.0, None), tmp_path)
    assert cpu.weights == cpu.small().weights == tmp_path


def test_without_git_the_commit_is_unknown(measurements: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    assert measurements.commit() == "unknown"  # a copy of the files
    monkeypatch.setenv("PATH", "/nowhere")
    assert measurements.commit() == "unknown"


def test_the_time_of_a_small_update_is_taken_apart(measurements: Any, tmp_path: Path) -> None:
    figures = measurements.small_update("small", str(tmp_path))
    lines = json.loads((tmp_path / "update-small-kernels.json").read_text())
    assert figures["operations"] == pytest.approx(sum(line["times"] for line in lines), abs=1)
    assert figures["casts"] > 0
    assert figures["transposes"] > 0
    milliseconds = [line["ms"] for line in lines]
    assert milliseconds == sorted(milliseconds, reverse=True)
    assert figures["1."].startswith(measurements.short_name(lines[0]["name"]))
    assert "11." not in figures
    assert "10." in figures


def test_what_is_lacking_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=150e9))
    steps = [name for name, step in STEPS.items() if "model" in step.needs]
    no_model = {name: f"there is no model (step {'small-' * name.startswith('small-')}model)" for name in steps}
    assert lacks(Place(tmp_path, "8b", 2, 62.0, "python")) == no_model
    for prefix in ("", "small-"):
        (tmp_path / f"{prefix}shots.jsonl").write_text("")
    assert not lacks(Place(tmp_path, "8b", 2, 62.0, "python"))
    large = [name for name in steps if not name.startswith("small-")]
    little = "62 GiB of GPU memory are needed, there are 61"
    assert lacks(Place(tmp_path, "8b", 2, 61.0, "python")) == dict.fromkeys(["update", "checkpoint", *large], little)
    no_vllm = "vLLM is needed: --vllm PYTHON"
    alone = dict.fromkeys([*large, "small-sampling"], no_vllm) | {"several": "two GPUs are needed, there are 1"}
    assert lacks(Place(tmp_path, "8b", 1, 62.0, None)) == alone
    no_gpu = dict.fromkeys(["sampling", "small-sampling"], no_vllm) | {"tests": "there is no GPU"}
    assert lacks(Place(tmp_path, "100m", 0, 0.0, None)) == no_gpu  # smaller models are sampled from without vLLM
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    packages = {"small-trl": "trl", "small-lora": "peft", "lora": "peft", "tests": "pytest"}
    missing = {step: f"{name} is not installed: {PACKAGES[name]}" for step, name in packages.items()}
    assert lacks(Place(tmp_path, "8b", 2, 62.0, "python")) == missing


def test_a_run_without_the_line_about_its_first_update_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "whole.log").write_text("nothing\n")
    with pytest.raises(Failed, match="no line about log π − log μ before the first update in"):
        gate(Place(tmp_path, "8b", 1, 140.0, None), "whole")


def test_a_python_without_vllm_is_one_line(tmp_path: Path) -> None:
    done = check(tmp_path, "--size", "small", "--vllm", "/no/python")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --vllm: sampler.python=/no/python: can't be started")
    assert len(done.stderr.splitlines()) == 1


def test_the_document_names_every_step_and_what_is_needed() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    limits = {row[1].strip(" `"): float(row[3]) for row in rows}
    assert limits == {name: step.minutes for name, step in STEPS.items()}
    most = max(step.models for step in gpu_check.LARGE.values() if step.what[:8] != "all GPUs")
    assert f"{math.ceil(most * gpu_check_runs.SIZES['8b'].gigabytes)} GB of disk" in text


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
        with pytest.raises(TimeOver, match=r"not done within the step's limit; it\.log says how far it came"):
            execute(place, "it", command)
    else:
        execute(place, "it", command)
    state = Path(f"/proc/{int((tmp_path / 'it.log').read_text())}/stat")
    assert wait_for(lambda: not state.exists() or " Z " in state.read_text(), 5)


def test_a_command_that_fails_is_its_last_line(tmp_path: Path) -> None:
    place = Place(tmp_path, "small", 0, 0.0, None)
    (tmp_path / "it.log").write_text("a line of an earlier check\n")
    with pytest.raises(Failed, match=r"^no output \(status 3, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(Failed, match=r"^no GPU \(status 1, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit('no GPU')"])
