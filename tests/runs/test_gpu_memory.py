"""A GPU that is too small for what is asked is told before weights are loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from topr_exp import pipeline
from topr_exp.evaluate import main as evaluate
from topr_exp.models import files, policy
from topr_exp.models.loading import SHIPPED, load_model
from topr_exp.pipeline import run
from topr_exp.runs import benchmark, gpu_memory
from topr_exp.runs.gpu_memory import GIB, Training, check_evaluation, check_run, check_solver, demands, refuse_shortage
from topr_exp.runs.sampler_memory import Beside
from topr_exp.types import ConfigError

LLAMA = 8_030_261_248
CASTS = Beside({"their cast to bfloat16": 15.0})
ENGINE = Beside({"the engine's weights": 15.0}, ["sampler.tensor_parallel=2"], engine=True)
VERIFIER = ["task=verifier", "task.solver=tiny", "task.solutions=2", "task.test_solutions=3"]
LORA = "model.lora={rank: 4, alpha: 8, targets: all-linear}"


def needed(sampler: Beside | None = None, frozen: int | None = None, **training: Any) -> dict[str, float]:
    found = demands(LLAMA, Training(**training), frozen=frozen, sampler=sampler)
    return {demand.stage: round(demand.total, 1) for demand in found}


def test_what_a_model_of_8_billion_weights_needs() -> None:
    assert needed() == {"sampling": 29.9, "training": 59.8}  # as benchmarks/simulated_memory.py counts
    assert needed(CASTS)["sampling"] == 44.9
    assert needed(adamw=True)["training"] == 119.7
    assert needed(shards=8) == {"sampling": 29.9, "training": 7.5}
    assert needed(reference="scored") == {"sampling": 29.9, "scoring": 59.8, "training": 59.8}
    assert needed(reference="kept", shards=2)["training"] == 59.8
    (alone,) = demands(LLAMA, None, sampler=ENGINE)
    assert (alone.stage, round(alone.total, 1)) == ("sampling", 44.9)


def test_what_training_keeps_lies_beside_a_sampler_between_updates() -> None:
    every: dict[str, Any] = {"adamw": True, "reference": "kept", "shards": 4}
    assert needed(ENGINE, **every) == {"sampling": 44.9, "scoring": 59.8, "training": 59.8}
    between = needed(ENGINE, **every, between=True)
    assert between.pop("sampling between updates") == 97.3  # 15 of AdamW, 30 of π_ref, 7.5 of a shard
    assert between == {"sampling": 44.9, "scoring": 59.8, "training": 59.8}
    assert needed(ENGINE, **every, between=True, engine_stays=True)["training"] == 74.8
    assert needed(ENGINE, between=True) == {"sampling": 44.9, "sampling between updates": 44.9, "training": 59.8}
    # How much transformers holds is known of the largest evaluation, before and after training, not of what is between.
    assert needed(CASTS, **every, between=True)["sampling between updates"] == 82.3


def test_what_it_needs_where_an_adapter_alone_is_trained() -> None:
    assert needed(frozen=2) == {"sampling": 15.0, "training": 15.0}
    assert needed(frozen=2, adamw=True) == needed(frozen=2)
    assert needed(frozen=2, reference="kept", shards=2) == {"sampling": 15.0, "scoring": 29.9, "training": 22.4}
    assert needed(ENGINE, frozen=2, between=True, shards=2)["sampling between updates"] == 37.4


def told(asked: list[gpu_memory.Demand], free: float) -> str:
    refuse_shortage("model=llama3_8b", asked, max(demand.total for demand in asked))
    with pytest.raises(ConfigError) as caught:
        refuse_shortage("model=llama3_8b", asked, free)
    return str(caught.value)


def test_a_shortage_names_what_is_needed_what_is_free_and_what_lowers_it() -> None:
    assert told(demands(LLAMA, Training(adamw=True), sampler=CASTS), 79.2) == (
        "model=llama3_8b: training needs 119.7 GiB on a GPU and more for activations (weights 29.9, gradients 29.9, "
        "AdamW's state 59.8), and 79.2 GiB are free; optim=paper (Adafactor), or cluster.processes=2 or more with "
        "cluster.parallel=fsdp, or take a smaller model or a larger GPU"
    )
    text = told(demands(LLAMA, Training(shards=8), sampler=ENGINE), 39.4)
    assert "sampling needs 44.9 GiB on a GPU and more for activations (weights 29.9, the engine's weights 15.0)" in text
    assert text.endswith(
        ", and 39.4 GiB are free; sampler.tensor_parallel=2, or take a smaller model or a larger GPU"
    )  # fmt: skip
    rounds = Training(between=True, engine_stays=True, reference="kept")
    assert "free; sampler.sleep=true, or an algorithm without a reference model, or cluster.processes=2" in told(
        demands(LLAMA, rounds, sampler=ENGINE), 79.2
    )
    assert told(demands(LLAMA, Training(shards=2), frozen=4), 24).endswith(
        "take model.dtype=bfloat16, a smaller model or a larger GPU"
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets the GiB which a GPU has free, of which torch keeps one that it does not use."""
    import torch

    def has(free: float) -> None:
        values = {
            "is_available": True,
            "mem_get_info": (int((free - 1) * GIB), 140 * GIB),
            "memory_reserved": 3 * GIB,
            "memory_allocated": 2 * GIB,
        }
        for name, value in values.items():
            monkeypatch.setattr(torch.cuda, name, lambda value=value: value)

    monkeypatch.setattr(gpu_memory, "files", SimpleNamespace(weight_count=lambda folder: 2_000_000_000))
    return has


NO_PROBLEMS: Any = SimpleNamespace(sets=SimpleNamespace(train=[], test=[]), prompter=None)


def test_a_runs_settings_decide_what_it_needs(gpu: Callable[[float], None]) -> None:
    gpu(8)

    def check(*settings: str, processes: int = 1) -> None:
        check_run(config_of(*settings), NO_PROBLEMS, processes)

    check("cluster.device=cpu")
    with pytest.raises(ConfigError, match=r"^model=tiny: training needs 29.8 GiB .*, and 8.0 GiB are free; optim=pap"):
        check()
    with pytest.raises(ConfigError, match=r"training needs 14.9 GiB .*; cluster.processes=2 or more with"):
        check("optim=paper")
    check(LORA, "algo=agro")  # 7.5 GiB, and π_ref is the same model
    with pytest.raises(ConfigError, match=r"scoring needs 14.9 GiB .*; leave model.reference out"):
        check(LORA, "algo=agro", "model.reference=tiny_noise")
    check("optim=paper", processes=2)  # by fsdp, from a billion weights on
    with pytest.raises(ConfigError, match=r"training needs 14.9 GiB"):
        check("optim=paper", "cluster.parallel=ddp", "cluster.processes=2", processes=2)
    gpu(30)
    check()
    check("algo=kl_pg", "optim=paper")
    with pytest.raises(ConfigError, match=r"training needs 37.3 GiB .* reference model 7.5\)"):
        check("algo=kl_pg")
    rounds = ["schedule=on_policy", "optim.batch_size=512"]
    check(*rounds)
    with pytest.raises(ConfigError, match=r"training needs 40.3 GiB .* engine's weights 7.5, its context 3.0\).*sleep"):
        check(*rounds, "sampler=vllm")
    with pytest.raises(
        ConfigError,
        match=r"sampling between updates needs 32.8 GiB .*, AdamW's state 14.9\), .* free; sampler.* optim=pa",
    ):
        check(*rounds, "sampler=vllm", "sampler.sleep=true")
    check("sampler=vllm")
    gpu(20)
    check("sampler=vllm", "optim=paper")
    with pytest.raises(
        ConfigError, match=r"sampling between updates needs 29.1 GiB .* AdamW's state 7.5, shard in training 3.7"
    ):
        check("sampler=vllm", "evaluation.every=1", processes=2)


def test_what_is_sampled(gpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported completions take the place of sampled ones, a round has so many problems."""
    found: list[list[tuple[str, int, int]]] = []

    def beside(*given: Any) -> Beside:
        found.append([(asked.key, len(asked.problems), asked.n) for asked in given[-1]])
        return Beside()

    monkeypatch.setattr(gpu_memory, "beside", beside)
    gpu(100)
    problems: Any = SimpleNamespace(sets=SimpleNamespace(train=range(900), test=range(50)), prompter=None)
    config = config_of("data.n=3", "data.eval_n=5")
    compose = dataclasses.replace(config.compose, mix=0.5)
    imported = dataclasses.replace(config, data=dataclasses.replace(config.data, completions="file"))
    rounds = config_of("data.n=3", "data.eval_n=5", "schedule=on_policy", "schedule.prompts=8", "optim.batch_size=32")
    for each in (config, imported, dataclasses.replace(imported, compose=compose), rounds):
        check_run(each, problems, 1)
    check_evaluation(config, problems)
    check_solver(config_of("model=tiny_verifier", *VERIFIER), problems)
    test, train = ("data.eval_n", 50, 5), ("data.n", 900, 3)
    assert found == [
        [test, train], [test], [test, train], [test, ("data.n", 8, 3)], [test],
        [("task.test_solutions", 50, 3), ("task.solutions", 900, 2)],
    ]  # fmt: skip


def test_a_model_that_is_not_trained_and_a_solver(gpu: Callable[[float], None]) -> None:
    gpu(10)
    verifier = ["task=verifier", "task.solver=tiny", "sampler=vllm", "sampler.gpu_memory_utilization=0.5"]
    for check, name in ((check_evaluation, "model=tiny_verifier"), (check_solver, "task.solver=tiny")):
        check(config_of("model=tiny_verifier", "task=verifier", "task.solver=tiny"), NO_PROBLEMS)
        with pytest.raises(ConfigError, match=f"^{name}: sampling needs 14.9 GiB .*, and 10.0 GiB are free"):
            check(config_of("model=tiny_verifier", *verifier), NO_PROBLEMS)
    with pytest.raises(ConfigError, match=r"^task.solver=tiny: .*\(weights 7.5, their cast to bfloat16 3.7\)"):
        check_solver(config_of("model=tiny_verifier", *VERIFIER, LORA, "model.dtype=bfloat16"), NO_PROBLEMS)
    gpu(8)
    check_evaluation(config_of(LORA, "model.dtype=bfloat16"), NO_PROBLEMS)
    with pytest.raises(ConfigError, match=r"weights 7.5, their cast to bfloat16 3.7"):
        check_evaluation(config_of("model.dtype=bfloat16"), NO_PROBLEMS)


# ---- whole runs and evaluations


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which nothing has room, and no weights that may be loaded."""

    def load(*given: Any) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(gpu_memory, "free_gib", lambda device: 0.001)
    for module in (pipeline, benchmark, policy):
        monkeypatch.setattr(module, "load_policy", load)


@pytest.mark.usefixtures("small")
def test_a_run_is_refused_before_weights_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model=tiny: .* needs 0.\d GiB on a GPU .* and 0.0 GiB are free"):
        run(config_of(*overrides(tmp_path)))
    with pytest.raises(ConfigError, match=r"^task.solver=tiny: sampling needs 0.\d GiB .*per_shard or task.\w*soluti"):
        run(config_of(*overrides(tmp_path, "model=tiny_verifier", *VERIFIER)))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("settings", [["model=tiny"], ["model=tiny_verifier", *VERIFIER]])
def test_an_evaluation_is_refused_before_weights_are_loaded(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["data.test_problems=6", "data.eval_n=4", "cluster.threads=1", f"output_dir={tmp_path}"]
    assert evaluate([*settings, *more]) == 2
    name = "task.solver=tiny" if len(settings) > 1 else "model=tiny"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {name}: sampling needs 0.")


def test_weights_are_counted_from_headers() -> None:
    model, _ = load_model("tiny")
    assert files.weight_count(SHIPPED / "tiny") == sum(weight.numel() for weight in model.parameters())
