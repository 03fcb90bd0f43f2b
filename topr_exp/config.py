"""A run's settings and every check that can be made before a model loads or a job is submitted.

YAML holds values, the dataclasses hold names, types and ranges. Hydra composes; `load` refuses. A mistake raises
`ConfigError` with one line: the key, what was given, what is allowed. Nothing heavy is imported here.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import json
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from topr_exp import rules
from topr_exp.checks import check_files
from topr_exp.composition.config import ComposeConfig
from topr_exp.data.config import DataConfig, Reward
from topr_exp.models.config import ModelConfig
from topr_exp.sampling.config import SamplerConfig, sampler_schema, sampler_with
from topr_exp.schema import build, convert, first_line, plain
from topr_exp.sweeps.config import ClusterConfig, cluster_schema, cluster_with
from topr_exp.tracking.config import TrackingConfig
from topr_exp.training.config import CheckpointConfig, OptimConfig, ScheduleConfig
from topr_exp.types import ConfigError
from topr_exp.verifier.config import TaskConfig

CHOSEN = {"cluster": cluster_schema, "sampler": sampler_schema}  # groups whose choices have different settings


class Mu(Enum):
    """Where log μ of sampled completions comes from: a forward pass of training, or what the sampler drew with."""

    scored = "scored"
    sampler = "sampler"


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation samples with the sampler's settings and this seed, the same for every run that is compared."""

    seed: int
    every: int | None  # updates between two evaluations while training; None: only before and after
    problems: int | None  # test problems (the first ones) that these use; None: all

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more; got {self.seed}")
        for name in ("every", "problems"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be null or 1 or more; got {value}")
        if self.problems is not None and self.every is None:
            raise ValueError(f"problems={self.problems} is not read where every is null; set evaluation.every too")


@dataclass(frozen=True)
class Config:
    """One run, checked."""

    name: str
    seed: int
    baseline: float | None
    effective_positive: float | None
    iterations: int
    mu: Mu
    dry_run: bool
    output_dir: str
    task: TaskConfig
    algo: Any  # a loss of topr_exp.algorithms, or a user's
    data: DataConfig
    model: ModelConfig
    sampler: SamplerConfig
    compose: ComposeConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    cluster: ClusterConfig
    tracking: TrackingConfig

    def __post_init__(self) -> None:
        rules.check(self)

    @property
    def reward(self) -> Reward:
        """The rewards: the data's if set, else those of the algorithm's paper (1 and -1 where it names none)."""
        return self.data.reward or Reward[getattr(self.algo, "rewards", Reward.pm1.name)]

    @property
    def reference(self) -> ModelConfig:
        """The model that π_ref is: the one that model.reference names, else the model in training as it was."""
        path = self.model.reference or self.model.path
        revision = None if self.model.reference else self.model.revision
        return dataclasses.replace(self.model, path=path, revision=revision)

    @property
    def solver(self) -> ModelConfig:
        """The model that writes the solutions which a verifier reads."""
        assert self.task.solver is not None
        return dataclasses.replace(self.model, path=self.task.solver, revision=None)

    @property
    def grader_name(self) -> str:
        """Who grades the model's completions: a verifier's against the truth about a solution."""
        return "verdict" if self.task.verifies else self.data.grader_name

    @property
    def experiment(self) -> dict[str, Any]:
        """What decides the result, as plain values: all settings but where the run computes and reports."""
        values = plain(self)
        for key in ("dry_run", "output_dir", "cluster", "tracking", "checkpoint"):
            del values[key]
        for group, keys in (("sampler", self.sampler.PLACE), ("optim", self.optim.PLACE)):
            for key in keys:
                del values[group][key]
        if not self.task.verifies:  # has no settings, and runs made before there was a choice keep their folders
            del values["task"]
        return values

    @property
    def folder(self) -> Path:
        """The run's folder: the same for the same experiment, however it is started."""
        parts = [self.algo.name, self.data.name, self.model.name]
        if self.baseline is not None:
            parts.append(f"c{self.baseline:g}")
        if self.effective_positive is not None:
            parts.append(f"pe{self.effective_positive:g}")
        parts.append(f"s{self.seed}")
        return Path(self.output_dir) / self.name / folder_name(parts, self.experiment)

    @property
    def store(self) -> Path:
        """The folder of the store that all runs share."""
        return Path(self.output_dir) / "store"


def folder_name(parts: Sequence[str], decides: Any) -> str:
    """A folder's name, short and safe: the parts for the eye, and a hash of all that decides what is in the folder."""
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:10]
    safe = "_".join("".join(ch if ch.isalnum() or ch in ".-" else "-" for ch in part)[:24] for part in parts)
    return f"{safe}_{digest}"


def unknown_key(key: str, known: Iterable[str] = ()) -> ConfigError:
    """The error for a key that nothing reads, with the nearest of `known` or of all that something reads."""
    if other := cluster_with(key):
        return ConfigError(f"nothing reads {key} here; cluster={other} does")
    if other := sampler_with(key):
        return ConfigError(f"nothing reads {key} here; sampler={other} does")
    if key in {f"tracking.{field.name}" for field in dataclasses.fields(TrackingConfig)}:
        return ConfigError(f"nothing reads {key} here; tracking=wandb does")
    names = [*known, *known_keys()]
    own = [name for name in names if name.startswith("algo.") and name not in ("algo.name", "algo._target_")]
    if key.startswith("algo.") and own and not difflib.get_close_matches(key, own, n=1, cutoff=0.8):
        return ConfigError(f"nothing reads {key} here; the algorithm has {', '.join(own)}")
    last = {"learning_rate": "lr"}.get(key.rpartition(".")[2], key.rpartition(".")[2])
    if same := [name for name in names if name != key and name.rpartition(".")[2] == last]:
        return ConfigError(f"nothing reads {key}; did you mean {same[0]}?")
    # Keys of the same depth first: "algorithm" is nearer to "algo" than to "algo.ratio".
    level = [name for name in names if name.count(".") == key.count(".")]
    near = difflib.get_close_matches(key, level, n=1, cutoff=0.5) or difflib.get_close_matches(key, names, n=1)
    return ConfigError(f"nothing reads {key}" + (f"; did you mean {near[0]}?" if near else ""))


def known_keys() -> list[str]:
    """Every dotted key of the schema, the algorithm's own apart."""
    keys = []
    for field in dataclasses.fields(Config):
        keys.append(field.name)
        schema = typing.get_type_hints(Config)[field.name]
        if dataclasses.is_dataclass(schema):
            keys += [f"{field.name}.{sub.name}" for sub in dataclasses.fields(schema)]
    return keys


def load(composed: DictConfig) -> Config:
    """Check what Hydra composed and build the run's settings.

    Raises ConfigError (one line) for unknown or missing keys, wrong types, values out of range, settings that
    exclude each other and data folders that are not there.
    """
    try:
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        inner: BaseException | None = error
        while inner is not None and not isinstance(inner, ConfigError):
            inner = inner.__context__
        # A resolver of ours has named the key itself.
        raise ConfigError(inner or f"{error.full_key}: {first_line(error)}") from None
    assert isinstance(values, dict)
    values.pop("hydra", None)
    hints = typing.get_type_hints(Config)
    sections: dict[str, Any] = {}
    # Groups last: many take a plain key's value over (sampler.seed is seed's), and the mistake is in that.
    for key, value in sorted(values.items(), key=lambda item: isinstance(item[1], dict)):
        if key not in hints:
            raise unknown_key(str(key))
        schema = CHOSEN[key](value) if key in CHOSEN else hints[key]
        if key == "algo":
            sections[key] = build_algorithm(value)
        elif isinstance(schema, type) and dataclasses.is_dataclass(schema):
            sections[key] = build(schema, value, f"{key}.", unknown_key)
        else:
            convert(str(key), value, hints[key])
            sections[key] = value
    config: Config = build(Config, sections, "", unknown_key)
    check_files(config)
    return config


def build_algorithm(values: Any) -> Any:
    """The loss that `algo._target_` names, with its fields checked."""
    target = values.get("_target_") if isinstance(values, dict) else None
    if not isinstance(target, str):
        raise ConfigError(f"algo._target_ must name a class, as in package.module.Class; got {target}")
    module, _, name = target.rpartition(".")
    try:
        schema = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"algo._target_={target}: {type(error).__name__}: {first_line(error)}") from None
    if not (dataclasses.is_dataclass(schema) and hasattr(schema, "needs") and hasattr(schema, "uses_baseline")):
        raise ConfigError(f"algo._target_={target}: not a loss (a dataclass with `needs` and `uses_baseline`)")
    return build(schema, {key: value for key, value in values.items() if key != "_target_"}, "algo.", unknown_key)
