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
import os
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from topr_exp.composition.config import ComposeConfig, ComposeName, unit_of
from topr_exp.data.config import DataConfig, Reward
from topr_exp.data.prompts import build_prompter
from topr_exp.models.config import ModelConfig
from topr_exp.models.loading import find_folder
from topr_exp.sampling.config import SamplerConfig, VLLMConfig, sampler_schema, sampler_with
from topr_exp.schema import build, convert, first_line, plain, show
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
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more; got {self.seed}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be 1 or more; got {self.iterations}")
        allowed = all(ch.isalnum() or ch in "._-" for ch in self.name) and self.name[:1].isalnum()
        if not allowed or len(self.name) > 100:
            raise ValueError(
                "name must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit; "
                f"got {self.name or 'nothing'}"
            )
        if self.name in ("store", "check"):
            raise ValueError(f"name={self.name}: that folder of output_dir has another use; take another name")
        if self.baseline is not None and not -1 <= self.baseline <= 1:
            raise ValueError(f"baseline must be in [-1, 1]; got {self.baseline}")
        if self.effective_positive is not None and not 0 <= self.effective_positive <= 1:
            raise ValueError(f"effective_positive must be in [0, 1]; got {self.effective_positive}")
        if self.baseline is not None and self.effective_positive is not None:
            raise ValueError(
                f"baseline={self.baseline:g} and effective_positive={self.effective_positive:g} exclude each other: "
                "each sets the other (Eq. 12); give one"
            )
        for key in ("baseline", "effective_positive"):
            if getattr(self, key) is not None and not self.algo.uses_baseline:
                raise ValueError(
                    f"{key}={getattr(self, key):g} means nothing for algo={self.algo.name}, where a constant "
                    f"baseline cancels; leave {key} out"
                )
        if self.effective_positive is not None and self.compose.name is ComposeName.positives:
            raise ValueError(
                f"effective_positive={self.effective_positive:g} can't be reached with compose=positives, "
                "whose share of positives is 1 whatever the baseline; set baseline instead"
            )
        if self.effective_positive is not None and self.reward is Reward.zero_one:
            raise ValueError(
                f"effective_positive={self.effective_positive:g} is of rewards 1 and -1 (Eq. 12), and data.reward is "
                "zero_one; set baseline instead"
            )
        if self.mu is Mu.sampler and (self.data.completions is not None or self.schedule.prompts is not None):
            raise ValueError(
                "mu must be scored where data.completions is set (those bring their own) and on-policy; got sampler"
            )
        self.cluster.check_batch(self.optim.batch_size)
        self._check_unit()
        self._check_schedule()
        if self.task.verifies and self.data.completions is not None:
            raise ValueError(
                f"data.completions={self.data.completions} holds answers to the problems, which task=verifier does not "
                "train on: it verifies what task.solver writes"
            )

        if self.model.reference is not None and not {"ref_logp", "vocab_kl"} & self.algo.needs:
            raise ValueError(
                f"model.reference={self.model.reference} is not read by algo={self.algo.name}, whose loss has no "
                "reference; leave it out"
            )

    def _check_unit(self) -> None:
        """Refuse settings that would break up the pairs or groups that the algorithm trains on."""
        unit = unit_of(self.algo.needs)
        try:
            self.compose.check_unit(unit, self.algo.name)
        except ValueError as error:
            raise ValueError(f"compose.{error}") from None
        if {"groups", "group_rewards"} & self.algo.needs and self.data.n < 2:
            raise ValueError(f"data.n must be 2 or more for algo={self.algo.name}, which compares; got {self.data.n}")
        if unit == "groups" and self.optim.batch_size % self.data.n:
            raise ValueError(
                f"optim.batch_size must be a multiple of data.n={self.data.n} for algo={self.algo.name}, which trains "
                f"on whole groups; got {self.optim.batch_size}"
            )

    def _check_schedule(self) -> None:
        """Refuse to train an algorithm that is right on-policy only on anything else."""
        schedule = self.schedule
        if schedule.prompts is not None and self.optim.epochs != 1:
            raise ValueError(f"optim.epochs must be 1 where schedule.prompts is set; got {self.optim.epochs}")
        if schedule.prompts is not None and self.data.train_problems and schedule.prompts > self.data.train_problems:
            raise ValueError(
                f"schedule.prompts must be at most data.train_problems={self.data.train_problems}; "
                f"got {schedule.prompts}"
            )
        if schedule.prompts is not None and unit_of(self.algo.needs) == "pairs":
            raise ValueError(
                f"algo={self.algo.name} trains on pairs of a correct and an incorrect completion, which a round may "
                "not have; it needs schedule=offline"
            )
        if schedule.prompts is not None and self.compose.name is not ComposeName.uniform:
            raise ValueError(
                f"compose={self.compose.name.name} may find nothing in a round's few completions; compose must be "
                "uniform where schedule.prompts is set"
            )
        if schedule.prompts is not None and self.compose.n_examples is None:
            assert schedule.updates is not None
            sampled = schedule.prompts * self.data.n
            if schedule.updates * self.optim.batch_size < sampled:
                raise ValueError(
                    f"optim.batch_size must be {-(-sampled // schedule.updates)} or more, so that schedule.updates="
                    f"{schedule.updates} train on the {sampled} completions of a round (schedule.prompts="
                    f"{schedule.prompts} times data.n={self.data.n}); got {self.optim.batch_size}"
                )
        if self.data.completions is not None and (schedule.prompts is not None or self.iterations > 1):
            raise ValueError(
                f"data.completions={self.data.completions} is trained on instead of sampling; it goes with "
                "iterations=1 and schedule=offline only"
            )
        if self.data.completions is not None and unit_of(self.algo.needs) == "groups":
            raise ValueError(
                f"data.completions={self.data.completions} may hold any number of completions a problem; "
                f"algo={self.algo.name} needs whole groups of data.n"
            )
        if schedule.prompts is not None and self.effective_positive is not None:
            raise ValueError(
                f"effective_positive={self.effective_positive:g} needs a fixed training set; set baseline where "
                "schedule.prompts is set"
            )
        if schedule.prompts is not None and self.compose.drop_truncated:
            raise ValueError(
                "compose.drop_truncated=true may leave nothing of a round's few completions; it must be false where "
                "schedule.prompts is set"
            )
        drawn = (self.sampler.temperature, self.sampler.top_p, self.sampler.top_k)
        if "on_policy" in self.algo.needs and drawn != (1.0, 1.0, 0):
            raise ValueError(
                f"algo={self.algo.name} is right on-policy only: it needs completions of the policy itself, "
                "sampler.temperature=1, sampler.top_p=1 and sampler.top_k=0; got temperature="
                f"{drawn[0]:g}, top_p={drawn[1]:g}, top_k={drawn[2]}"
            )
        if "on_policy" in self.algo.needs and (schedule.updates != 1 or schedule.replay > 0):
            raise ValueError(
                f"algo={self.algo.name} is right on-policy only: it needs schedule=on_policy with schedule.updates=1 "
                f"and schedule.replay=0; got updates={show(schedule.updates)}, replay={schedule.replay:g}"
            )

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
        for key in self.sampler.PLACE:
            del values["sampler"][key]
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
        raise ConfigError(f"{error.full_key}: {first_line(error)}") from None
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


def check_files(config: Config) -> None:
    """Refuse files, folders and functions that are named and not there; what is on the hub shows when it is loaded."""
    data = config.data
    if data.source not in ("embedded", "hub"):
        if not Path(data.source).expanduser().is_dir():
            raise ConfigError(f"data.source={data.source}: no such folder; allowed: embedded, hub or a folder")
        from topr_exp.data.problems import check_source

        check_source(data)
    if data.completions is not None:
        places = (Path(data.completions), config.store / data.completions / "key.json")
        if not any(place.is_file() for place in places):
            raise ConfigError(
                f"data.completions={data.completions}: neither a file nor a table of {config.store} (kind/hash)"
            )
    for key, path in (
        ("model.path", config.model.path),
        ("model.reference", config.model.reference),
        ("task.solver", config.task.solver),
    ):
        folder = find_folder(path, key) if path is not None else None
        if folder is not None and key == "model.path":
            if config.model.revision is not None:
                raise ConfigError(f"model.revision={config.model.revision}: {path} is a folder, which has none")
            check_model(folder, config)
    build_prompter(data)  # refuses worked examples that are not there
    if data.grader is not None:
        from topr_exp.grading.grader import check_name

        check_name(data.grader)


def check_model(folder: Path, config: Config) -> None:
    """Refuse what a model's own files rule out before it is loaded: a context that is too short, a missing template."""
    try:
        context = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
        template = "chat_template" in (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError):
        return  # loading it will tell
    if isinstance(context, int) and config.sampler.max_new_tokens >= context:
        raise ConfigError(
            f"sampler.max_new_tokens must be below {context}, the tokens of the model's context; "
            f"got {config.sampler.max_new_tokens}"
        )
    if config.data.chat and not template and not any(folder.glob("chat_template*")):
        raise ConfigError("data.chat=true: the model's tokenizer has no chat template; set data.chat=false")


def check_machine(configs: Iterable[Config]) -> None:
    """Refuse what this machine could not start: a folder that can't be written in, a sampler that is not installed."""
    runs = list(configs)
    for folder in dict.fromkeys(config.output_dir for config in runs):
        check_output_dir(folder)
    for python in dict.fromkeys(config.sampler.python for config in runs if isinstance(config.sampler, VLLMConfig)):
        from topr_exp.sampling.engine import check_python

        check_python(python)


def check_output_dir(name: str) -> None:
    path = Path(name).absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        raise ConfigError(f"output_dir={name}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"output_dir={name}: nothing can be written in {there}")


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
