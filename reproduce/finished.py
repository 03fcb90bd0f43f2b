"""What a finished run left on the disk, as the objects that it was computed with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.data.problems import Problem
    from topr_exp.models.policy import Policy
    from topr_exp.sampling.rollouts import Rollouts


def settings(folder: Path) -> Config:
    """The run's settings."""
    from omegaconf import OmegaConf

    from topr_exp.config.load import load

    return load(OmegaConf.create(json.loads((folder / "config.json").read_text(encoding="utf-8"))["resolved"]))


def completions(config: Config, policy: Policy, problems: Sequence[Problem], place: Path) -> Rollouts:
    """The completions of these problems that lie at `place`, a table of a store."""
    from topr_exp.data.prompts import build_prompter
    from topr_exp.data.questions import tokenize_prompts
    from topr_exp.sampling.rollouts import Rollouts
    from topr_exp.store import Store

    questions = tokenize_prompts(problems, build_prompter(config.data), policy, config.sampler.max_new_tokens)
    columns = Store(place.parent.parent).open(place).read()
    return Rollouts(str(place), columns, questions.prompts, [0, len(columns)], 0)


def log_likelihoods(policy: Policy, rollouts: Rollouts, rows: Sequence[int], batch_size: int) -> list[float]:
    """log π(y | x) of some completions."""
    from topr_exp.training.scoring import log_probabilities

    return [sum(line) for line in log_probabilities(policy, rollouts, rows, batch_size)["logp"].to_pylist()]
