"""The KL divergence from the reference to which a run trained its policy."""

from pathlib import Path

import numpy as np

from reproduce.claims import Extra
from reproduce.figure import FinishedRuns, key_of
from reproduce.records import rounded
from reproduce.selection import Record, Runs
from topr_exp import load_policy, prompt_ids, read_completions, read_config, score_completions

KL_TITLE = "KL(π ‖ π_ref), nats a completion"


def compute_distances(finished: FinishedRuns) -> Extra:
    """KL(π ‖ π_ref) of each run's final model, by its settings."""
    return {key_of(record): rounded(distance(folder)) for record, folder in finished}


def distance(folder: Path) -> float:
    """Estimate KL(π ‖ π_ref) in nats a completion: the mean of Δ to π_ref over completions that π sampled itself."""
    config = read_config(folder)
    policy = load_policy(config, run=folder)
    completions = read_completions(folder, split="test")
    prompts = prompt_ids(config, policy, split="test")
    prompts_of_rows = [prompts[problem] for problem in completions.problem]
    sums = []
    for model in (policy, load_policy(config, reference=True)):
        scores = score_completions(model, prompts_of_rows, completions.tokens, batch_size=config.optim.score_batch_size)
        sums.append(np.array([sum(logp.tolist()) for logp in scores]))
    return float(np.mean(sums[0] - sums[1]))


def distances(runs: Runs, extra: Extra) -> list[float]:
    """KL(π ‖ π_ref) of each run."""
    return [extra[key_of(record)] for record in runs]


def gain_per_nat(record: Record, extra: Extra) -> float:
    """Points that a run gained in pass@1, divided by its KL to the reference."""
    run = Runs([record])
    gained = run.values() - run.values(stage="base")
    return 100 * float(gained.mean()) / extra[key_of(record)]
