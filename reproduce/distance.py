"""The KL divergence from the reference to which a run trained its policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.claims import Extra
from reproduce.figure import FinishedRuns, key_of
from reproduce.processes import map_on_cores
from reproduce.records import rounded
from reproduce.selection import Record, Runs
from topr_exp import load_policy, prompt_ids, read_completions, read_config, score_completions

KL_TITLE = "KL(π ‖ π_ref), nats a completion"


def compute_distances(finished: FinishedRuns) -> Extra:
    """KL(π ‖ π_ref) of each run's final model, by its settings."""
    keys = [key_of(record) for record, _ in finished]
    distances_of_runs = map_on_cores(distance, [folder for _, folder in finished])
    return dict(zip(keys, map(rounded, distances_of_runs), strict=True))


def distance(folder: Path) -> float:
    """Estimate KL(π ‖ π_ref) in nats a completion: the mean of Δ to π_ref over completions that π sampled itself."""
    config = read_config(folder)
    policy = load_policy(config, run=folder)
    reference = load_policy(config, reference=True)
    completions = read_completions(folder, split="test")
    prompts = prompt_ids(config, policy, split="test")
    prompts_of_rows = [prompts[problem] for problem in completions.problem]
    batch_size = config.optim.score_batch_size
    log_pi = log_likelihoods(policy, prompts_of_rows, completions.tokens, batch_size)
    log_ref = log_likelihoods(reference, prompts_of_rows, completions.tokens, batch_size)
    return float(np.mean(log_pi - log_ref))


def log_likelihoods(policy: Any, prompts: Sequence[Any], tokens: Sequence[Any], batch_size: int) -> NDArray[np.float64]:
    """[B] log-likelihoods of completions, summed token by token in float64."""
    scores = score_completions(policy, prompts, tokens, batch_size=batch_size)
    return np.array([sum(logp.tolist()) for logp in scores])


def recorded_distances(runs: Runs, extra: Extra) -> list[float]:
    """KL(π ‖ π_ref) of each run."""
    return [extra[key_of(record)] for record in runs]


def gain_per_nat(record: Record, extra: Extra) -> float:
    """Points that a run gained in pass@1, divided by its KL to the reference."""
    run = Runs([record])
    gains = run.values() - run.values(stage="base")  # [1, problems]
    return 100 * float(gains.mean()) / extra[key_of(record)]
