"""Header of a run: what it says of itself before it starts, and in its model's card."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.composition.test_selection import compose
from tests.conftest import config_of
from topr_exp.composition.candidates import Candidates
from topr_exp.composition.training_set import build_training_set
from topr_exp.config.data import Reward
from topr_exp.runs.console import header, idle_gpus, never_rarer, signs
from topr_exp.runs.task_set import TrainedOn

TOPR = "topr (a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0, ratio=sequence, length_normalize=True)"
LEFT_OUT = (
    ", 1 left out: no answer can be read, 1 left out: the question is in test, 1 left out: the prompt is too long"
)
ROUNDS = ["experiment=smoke", "algo=rloo", "schedule.rounds=3", "schedule.prompts=8", "schedule.replay=0.3",
          "optim.batch_size=32"]  # fmt: skip
VERIFIER = ["task=verifier", "task.solver=tiny"]


def shown(*overrides: str, device: str = "cpu") -> dict[str, str]:
    """The header by its rows, for 5 training problems, of which more were left out, and 3 test problems."""
    policy: Any = SimpleNamespace(parameters=598_000, place="cpu, float32", device=SimpleNamespace(type=device))
    nothing, some = SimpleNamespace(unparsable=0, overlapping=0), SimpleNamespace(unparsable=1, overlapping=1)
    sets: Any = SimpleNamespace(train_report=some, test_report=nothing)
    train, test = (SimpleNamespace(problems=[None] * count, too_long=left) for count, left in ((5, 1), (3, 0)))
    config = config_of("output_dir=out", "name=n", *overrides)
    lines = header(config, policy, sets, train, test, TrainedOn(5, 5, "5 of them"), {}).splitlines()  # type: ignore
    return {line[:12].rstrip(): line[12:] for line in lines}


def test_every_row_of_a_plain_run() -> None:
    rows = shown("algo=topr", "baseline=-0.3", "data=gsm8k", "sampler.top_k=5", "sampler.top_p=0.9")
    assert rows.pop("folder").startswith("out/n/topr_gsm8k_tiny_lr1e-4_c-0.3_s0_")
    assert rows == {
        "algorithm": f"{TOPR}, baseline=-0.3, rewards 1 and -1",
        "trained on": f"5 of them{LEFT_OUT}",
        "tested on": "3 problems generated in the form of gsm8k",
        "model": "tiny, 0.60 M parameters, cpu, float32",
        "sampling": "hf (seed=0, temperature=1.0, top_p=0.9, top_k=5, max_new_tokens=64, prompts_per_shard=32); "
        "n=16 to train, eval_n=8 to evaluate",
        "examples": "uniform (pairs_per_problem=16)",
        "training": "adamw (lr=0.0001, betas=[0.9, 0.999], weight_decay=0.0, grad_clip=1.0, batch_size=32, epochs=1)",
        "seed": "0",
    }


@pytest.mark.parametrize(
    ("overrides", "row", "text"),
    [
        (["effective_positive=0.5"], "algorithm", f"{TOPR}, effective_positive=0.5, rewards 1 and -1"),
        (["data.reward=zero_one"], "algorithm", f"{TOPR}, rewards 1 and 0"),
        (ROUNDS, "rounds", "prompts=8, updates=1, rounds=3, replay=0.3"),
        (["iterations=3"], "iterations", "3"),
        (["mu=sampler"], "log μ", "what the sampler drew with"),
        (["compose.n_examples=10", "compose.drop_truncated=true"], "examples",
         "uniform (n_examples=10, pairs_per_problem=16, drop_truncated=True)"),
        (VERIFIER, "task", "verifier (solver=tiny, solutions=16, test_solutions=32, template="),
        (VERIFIER, "tested on", "3 solutions to problems generated in the form of gsm8k"),
        (["data.test_split=validation"], "tested on", "3 problems generated in the form of gsm8k of the train"),
    ],
)  # fmt: skip
def test_a_setting_is_named_where_it_is_made(overrides: list[str], row: str, text: str) -> None:
    assert text in shown(*overrides)[row]


@pytest.mark.parametrize(("seen", "processes", "idle"), [(8, 1, True), (8, 8, False), (1, 1, False)])
def test_gpus_that_are_left_idle_are_said(
    seen: int, processes: int, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(seen))))
    rows = shown(f"cluster.processes={processes}", device="cuda")
    assert ("GPUs" in rows) == idle
    if idle:
        assert rows["GPUs"].startswith("1 of 8 are used: cluster.processes=8 divides this run over all")
        assert "cluster.jobs=8" in rows["GPUs"]


@pytest.mark.parametrize(
    ("kind", "rewards", "c", "row", "said"),
    [
        ("pm1", None, 0.3, "correct: > 0 100 %; wrong: < 0 100 %", ""),
        ("zero_one", None, 0.0, "correct: > 0 100 %; wrong: = 0 100 %",
         "topr learns nothing from 100 % of the wrong answers"),
        ("zero_one", None, 0.1, "correct: > 0 100 %; wrong: < 0 100 %", ""),
        ("graded", [1, 0.9, 0.3, 0, 0], 0.0, "correct: > 0 100 %; wrong: > 0 33.3 %, = 0 66.7 %",
         "topr makes 33.3 % of the wrong answers likelier and topr learns nothing from 66.7 % of the wrong answers"),
        ("graded", [1, 0.2, 0.3, 0, 0], 0.2, "correct: > 0 50 %, = 0 50 %; wrong: > 0 33.3 %, < 0 66.7 %",
         "topr makes 33.3 % of the wrong answers likelier"),
    ],
)  # fmt: skip
def test_the_signs_of_r_are_said_before_training(
    kind: Reward, rewards: list[float] | None, c: float, row: str, said: str
) -> None:
    """Two correct completions and three wrong ones."""
    reward = None if rewards is None else np.array(rewards)
    no, positive = np.zeros(5, bool), np.array([True, True, False, False, False])
    candidates = Candidates(np.zeros(5, np.int64), positive, no, None, reward, None)
    found = build_training_set(candidates, kind, compose(), "examples", seed=0, iteration=1, baseline=c,
                               effective=None).signs()  # fmt: skip
    assert signs(found) == f"R           {row}"
    assert never_rarer(found, "topr") == said + bool(said) * (
        ": their R is not below 0; set data.reward=pm1, or baseline above the reward of wrong answers"
    )


@pytest.mark.parametrize(
    ("overrides", "by_sign"), [((), True), (("algo=naive",), True), (("algo=sft",), False), (("algo=tis",), True),
                               (("algo.advantage=group",), False)],
)  # fmt: skip
def test_losses_whose_limits_go_by_the_sign(overrides: tuple[str, ...], by_sign: bool) -> None:
    assert getattr(config_of("output_dir=out", "name=n", *overrides).algo, "by_sign", False) is by_sign


def test_gpus_that_a_run_leaves_idle_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topr_exp.runs.console.visible_gpus", lambda: list("01234567"))
    assert idle_gpus(1).startswith("1 of 8 are used: cluster.processes=8 divides this run over all")
    assert "cluster.jobs=8 starts as many runs" in idle_gpus(4)
    assert idle_gpus(8) == ""
