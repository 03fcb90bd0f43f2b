"""Ranges of settings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from tests.conftest import config_of
from topr_exp.config.load import build_section
from topr_exp.config.schema import Section, above, at_least, ranges, within
from topr_exp.config.settings import Config
from topr_exp.types import ConfigError

CHOICES = {"cluster": "slurm", "sampler": "vllm"}
POSITIVE, NATURAL, OPTIONAL, ALL = "1 or more", "0 or more", "null or 1 or more", "null (all) or 1 or more"
RANGES = {
    "data.threshold": "a finite number",
    "compose.mix": "in (0, 1)",
    "compose.max_draws": "1 or more",
    "schedule.prompts": OPTIONAL, "schedule.updates": OPTIONAL, "schedule.rounds": OPTIONAL,
    "schedule.replay": "in [0, 1)", "task.solutions": OPTIONAL, "task.test_solutions": OPTIONAL,
    "seed": NATURAL, "baseline": "a finite number", "effective_positive": "in [0, 1]", "iterations": POSITIVE,
    "data.seed": NATURAL, "data.train_problems": ALL, "data.test_problems": ALL, "data.n": POSITIVE,
    "data.eval_n": POSITIVE, "data.shots": NATURAL,
    "sampler.seed": NATURAL, "sampler.temperature": "in (0, 10]", "sampler.top_p": "in (0, 1]",
    "sampler.top_k": "0 (the whole vocabulary) or more", "sampler.max_new_tokens": POSITIVE,
    "sampler.prompts_per_shard": POSITIVE, "sampler.tensor_parallel": POSITIVE,
    "sampler.gpu_memory_utilization": "in (0, 1]", "sampler.cpu_cache_gib": "above 0", "sampler.timeout_min": "above 0",
    "sampler.shards_at_once": OPTIONAL,
    "compose.n_examples": ALL, "compose.pairs_per_problem": POSITIVE,
    "optim.lr": "above 0", "optim.weight_decay": NATURAL, "optim.grad_clip": "above 0 (.inf for none)",
    "optim.batch_size": POSITIVE, "optim.micro_batch_size": POSITIVE, "optim.score_batch_size": POSITIVE,
    "optim.epochs": POSITIVE, "optim.warmup_steps": NATURAL,
    "evaluation.seed": NATURAL, "evaluation.every": OPTIONAL, "evaluation.problems": OPTIONAL,
    "checkpoint.every_seconds": "0 (after every update) or more",
    "checkpoint.keep_iterations": "numbers from 1, null for all",
    "cluster.threads": OPTIONAL, "cluster.timeout_min": POSITIVE, "cluster.max_num_timeout": NATURAL,
    "cluster.signal_delay_s": POSITIVE, "cluster.nodes": POSITIVE, "cluster.gpus_per_node": OPTIONAL,
    "cluster.cpus_per_task": OPTIONAL, "cluster.mem_gb": OPTIONAL, "cluster.array_parallelism": POSITIVE,
    "cluster.additional_parameters": "null or {NAME: VALUE}",
}  # fmt: skip


@pytest.fixture(scope="module")
def config() -> Config:
    return config_of(*(f"{group}={choice}" for group, choice in CHOICES.items()))


def test_every_range_is_declared_and_applied(config: Config) -> None:
    sections = {"": config} | {f"{f.name}.": getattr(config, f.name) for f in dataclasses.fields(Config)}
    declared = {}
    for prefix, section in sections.items():
        for name, range_ in ranges(type(section)) if isinstance(section, Section) else ():
            declared[f"{prefix}{name}"] = range_.allowed
            wrong: Any = {"keep_iterations": [0], "baseline": math.inf, "threshold": math.inf}.get(name, -11)
            with pytest.raises(ValueError) as error:
                dataclasses.replace(section, **{name: wrong})
            assert str(error.value) == f"{name} must be {range_.allowed}; got {wrong}"
    assert declared == RANGES


@pytest.mark.parametrize(("key", "value"), [("cluster.processes", 0), ("cluster.jobs", 0), ("cluster.threads", 0)])
def test_each_place_has_ranges_of_its_own(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be (null or )?1 or more; got {value}$"):
        config_of(f"{key}={value}")


@pytest.mark.parametrize(
    ("range_", "inside", "outside"),
    [
        (at_least(1), [1, 2], [0, 0.5, float("nan")]),
        (above(0), [1e-9, float("inf")], [0, -1, float("nan")]),
        (within("(0, 1]"), [1e-9, 1], [0, 1.01, float("nan")]),
        (within("[-1, 1]"), [-1, 0, 1], [-1.01, 1.01]),
        (within("[0, 1)"), [0, 0.99], [-0.01, 1]),
    ],
)
def test_ranges_end_where_they_say(range_: Any, inside: list[float], outside: list[float]) -> None:
    assert all(range_.holds(value) for value in inside)
    assert not any(range_.holds(value) for value in outside)


def test_the_name_of_a_place_decides_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"^cluster.name=\[1\]: expected one of local, slurm$"):
        build_section("cluster", {"name": [1]})
