"""What groups of settings declare: ranges, and which keys are no part of a run's name."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from omegaconf import OmegaConf

from tests.conftest import config_of
from topr_exp.config.load import build_section, load, unknown_key
from topr_exp.config.optim import OptimConfig
from topr_exp.config.schema import build, plain
from topr_exp.config.section import Section, above, at_least, deciding, ranges, within
from topr_exp.config.settings import Config
from topr_exp.runs.folder import RunFolder, refuse_other_experiment
from topr_exp.types import ConfigError, TOPRError

CHOICES = {"cluster": "slurm", "sampler": "vllm"}
POSITIVE, NATURAL, OPTIONAL, ALL = "1 or more", "0 or more", "null or 1 or more", "null (all) or 1 or more"
RANGES = {
    "data.threshold": "a finite number",
    "compose.mix": "in (0, 1)",
    "compose.max_draws": "1 or more",
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


# ---- keys that are added: a run from before has its name, and goes on


@dataclass(frozen=True)
class LaterOptim(OptimConfig):
    average: str

    ADDED: ClassVar[Mapping[str, Any]] = {"average": "mean"}


@dataclass(frozen=True)
class Curriculum(Section):
    name: str
    levels: int | None


@dataclass(frozen=True)
class LaterConfig(Config):
    curriculum: Curriculum

    ADDED: ClassVar[Mapping[str, Any]] = {"curriculum": Curriculum("none", None)}  # beside those of the base


def test_a_key_that_is_added_to_a_group_changes_no_name_at_its_default(config: Config) -> None:
    same, other = (
        dataclasses.replace(config, optim=LaterOptim(**vars(config.optim), average=average))
        for average in ("mean", "sum")
    )
    assert json.dumps(same.experiment) == json.dumps(config.experiment)
    assert same.folder == config.folder
    assert other.experiment["optim"]["average"] == "sum"
    assert other.folder != config.folder
    assert plain(same)["optim"]["average"] == "mean"  # what a run did is written down in full


def test_stored_settings_without_an_added_key_have_its_default(config: Config) -> None:
    stored = plain(config)
    assert build(LaterOptim, stored["optim"], "optim.", unknown_key).average == "mean"
    with pytest.raises(ConfigError, match=r"^optim\.lr is not set$"):
        build(LaterOptim, {key: value for key, value in stored["optim"].items() if key != "lr"}, "optim.", unknown_key)
    del stored["task"]  # as runs were stored before there was a choice
    assert load(OmegaConf.create(stored)) == config


def test_a_group_that_is_added_changes_no_name_at_its_default(config: Config) -> None:
    sections = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    same, other = (LaterConfig(**sections, curriculum=Curriculum(*given)) for given in (("none", None), ("none", 3)))
    assert same.folder == config.folder
    assert other.folder != config.folder
    assert deciding(other)["curriculum"] == {"name": "none", "levels": 3}
    assert "task" not in same.experiment


LOSS = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Mine:
    name: str
    scale: float
"""
PROTOCOL = """
    needs: ClassVar[frozenset] = frozenset()
    uses_baseline: ClassVar[bool] = True

    def __call__(self, batch): ...
"""


def test_a_run_goes_on_after_its_loss_got_a_new_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("_target_: growing.Mine\nname: mine\nscale: 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def settings(loss: str, *more: str) -> Config:
        (tmp_path / "growing.py").write_text(loss + PROTOCOL)
        importlib.invalidate_caches()
        sys.modules.pop("growing", None)
        found: Config = config_of("--config-dir", str(tmp_path), "algo=mine", f"output_dir={tmp_path}", *more)
        return found

    before = settings(LOSS)
    with RunFolder(before):
        pass
    later = LOSS + "    advantage: str\n    ADDED: ClassVar[dict] = {'advantage': 'none'}\n"
    same = settings(later)  # with the YAML of before, too
    assert (same.algo.advantage, same.folder) == ("none", before.folder)
    assert settings(later, "+algo.advantage=none").folder == before.folder
    with RunFolder(same) as folder:
        assert folder.read("state.json")["attempt"]["number"] == 2
    other = settings(later, "+algo.advantage=rank")
    assert other.folder != before.folder
    with pytest.raises(TOPRError, match=r"holds another experiment \(algo.advantage: None -> rank\)"):
        refuse_other_experiment(other, json.loads((before.folder / "config.json").read_text()))


def test_the_name_of_a_place_decides_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"^cluster.name=\[1\]: expected one of local, slurm$"):
        build_section("cluster", {"name": [1]})
