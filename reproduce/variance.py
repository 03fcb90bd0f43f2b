"""What is computed from the weights where a run ended: its KL to the reference, how much gradients vary (Table 1)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reproduce.figure import Extra, key_of, model_and_seed
from reproduce.records import rounded
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from torch import Tensor

    from topr_exp.config.settings import Config
    from topr_exp.data.problems import Problem
    from topr_exp.models.policy import Policy
    from topr_exp.sampling.completions import Completions

EXAMPLES = 1000  # of the training completions, for each run
BLOCK = 32  # gradients held at a time
PLACES = {" start": 0.0, " near": 0.1, "": 1.0}  # in the keys of numbers: the part of the way that TOPR's run went

LIMITS = {  # of conf/algo, by name: a test holds them equal
    "sft": (1, 1, 0, 0), "topr": (1, 1, 0, 1), "naive": (1, 1, 1, 1), "is": (0, float("inf"), 0, float("inf")),
    "tis": (0, 1, 0, 1),
}  # fmt: skip


def settings_of(folder: Path) -> Config:
    """The run's settings."""
    from omegaconf import OmegaConf

    from topr_exp.config.load import load

    return load(OmegaConf.create(json.loads((folder / "config.json").read_text(encoding="utf-8"))["resolved"]))


def completions(config: Config, policy: Policy, problems: Sequence[Problem], place: Path) -> Completions:
    """The completions of these problems that lie at `place`, a table of a store."""
    from topr_exp.data.prompts import build_prompter, tokenize_prompts
    from topr_exp.sampling.completions import Completions
    from topr_exp.store import Store

    questions = tokenize_prompts(problems, build_prompter(config.data), policy, config.sampler.max_new_tokens)
    columns = Store(place.parent.parent).open(place).read()
    return Completions(questions.problems, questions.prompts, columns)


def log_likelihoods(policy: Policy, rollouts: Completions, rows: Sequence[int], batch_size: int) -> list[float]:
    """log π(y | x) of some completions."""
    from topr_exp.training.logprobs import log_probabilities

    return [sum(line) for line in log_probabilities(policy, rollouts, rows, batch_size)["logp"].to_pylist()]


# ---- AGRO: how far the policy went


def distances_of_runs(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """KL(π ‖ π_ref) of each run's final model, by its settings: the mean over its test completions of Δ to π_ref."""
    return {key_of(record): rounded(distance(folder)) for record, folder in finished}


def distance(folder: Path) -> float:
    """KL(π ‖ π_ref) in nats a completion, estimated on completions that π itself sampled for the test problems."""
    from topr_exp.data.problems import load_problems
    from topr_exp.models.policy import load_policy

    config = settings_of(folder)
    place = Path(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["final"]["rollouts"])
    policy = load_policy(config.model, config.cluster.device, folder / "model")
    rollouts = completions(config, policy, load_problems(config.data).test, place)
    policies = (policy, load_policy(config.reference, config.cluster.device))
    size = config.optim.score_batch_size
    totals = [np.array(log_likelihoods(each, rollouts, range(len(rollouts)), size)) for each in policies]
    return float(np.mean(totals[0] - totals[1]))


# ---- Table 1


def variances(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """`moments` of choices of limits, by model, seed and at which weights.

    Of all choices on the straight line from the start of TOPR's run to its end (PLACES: parts of the way), and, as
    "own", of each choice where its own run ended.
    """
    found: dict[str, dict[str, list[float | None]]] = {}
    for record, folder in finished:
        name, key, seed = record["settings"]["algo.name"], model_and_seed(record), int(record["settings"]["seed"])
        for place, part in PLACES.items() if name == "topr" else {"": 1.0}.items():
            made = {each: [rounded(value) for value in both] for each, both in of_run(folder, seed, part).items()}
            if name == "topr":
                found[key + place] = made
        if name in LIMITS:
            found.setdefault(f"{key} own", {})[name] = made[name]
    return found


def of_run(folder: Path, seed: int, part: float = 1.0) -> dict[str, tuple[float, float]]:
    """`moments` for some of a run's training completions, at a part of its way from the start to its end."""
    import torch

    from topr_exp.data.problems import load_problems
    from topr_exp.models.policy import load_policy
    from topr_exp.store import Store

    config = settings_of(folder)
    sources = json.loads((folder / "iteration-1" / "sources.json").read_text(encoding="utf-8"))
    store = Store(sources["store"])
    device = config.cluster.device
    policy, start = load_policy(config.model, device, folder / "model"), load_policy(config.model, device)
    with torch.no_grad():
        for end, begin in zip(policy.model.parameters(), start.model.parameters(), strict=True):
            end.copy_(begin + part * (end - begin) if part < 1 else end)
    rollouts = completions(config, policy, load_problems(config.data).train, store.root / sources["rollouts"])
    verdicts = store.open(store.root / sources["verdicts"]).read(["verdict"])["verdict"].to_numpy()

    some = np.random.default_rng(seed).permutation(len(rollouts))[:EXAMPLES]
    logs = [log_likelihoods(each, rollouts, some.tolist(), config.optim.score_batch_size)
            for each in (policy, start)]  # fmt: skip
    factors = coefficients(np.array(logs[0]) - np.array(logs[1]), verdicts[some] == "correct")
    sequences = [(rollouts.prompt_of(row), rollouts.tokens[row]) for row in some.tolist()]
    return moments(gradients(policy.model, sequences), factors)


def coefficients(delta: NDArray[np.float64], positive: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    """w · R, [B] for each choice of limits: w = clip(e^Δ, a±, b±), R = ±1."""
    found = {}
    for name, (a_pos, b_pos, a_neg, b_neg) in LIMITS.items():
        weight = np.clip(np.exp(delta), np.where(positive, a_pos, a_neg), np.where(positive, b_pos, b_neg))
        found[name] = np.where(positive, weight, -weight)
    return found


def gradients(model: Any, sequences: Sequence[tuple[Any, Any]]) -> Iterable[Tensor]:
    """∇ log π(y|x) / T of each sequence, [weights], one after the other."""
    import torch

    from topr_exp.training.hidden_states import Inputs
    from topr_exp.training.logprobs import score_tokens

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for sequence in sequences:
        inputs = Inputs([sequence], weights[0].device)
        mean = score_tokens(model, inputs).logp.sum() / len(sequence[1])
        yield torch.cat([each.flatten() for each in torch.autograd.grad(mean, weights)])


def moments(each: Iterable[Tensor], factors: Mapping[str, NDArray[np.float64]]) -> dict[str, tuple[float, float]]:
    """The trace of the covariance of c_i g_i over the examples i, and ‖E c_i g_i‖², for each list of factors c.

    each: the gradients g_i, in order; factors: c [B] by name. Both numbers are unbiased: the squared norm of the mean
    over B examples is above ‖E c g‖² by a B-th of the trace.
    """
    import torch

    names, count = [*factors], len(next(iter(factors.values())))
    table = torch.tensor(np.stack([factors[name] for name in names]))
    total: Any = 0.0
    squares = torch.zeros(len(names), dtype=torch.float64)
    block: list[Tensor] = []
    for i, gradient in enumerate(each):
        block.append(gradient)
        if len(block) == BLOCK or i == count - 1:
            stacked = torch.stack(block).double()
            some = table[:, i + 1 - len(block) : i + 1].to(stacked.device)
            total = total + some @ stacked
            squares += (some**2 @ (stacked**2).sum(1)).cpu()
            block = []
    mean = ((total / count) ** 2).sum(1).cpu()
    trace = (squares / count - mean) * count / (count - 1)
    signal = mean - trace / count
    return {name: (float(trace[i]), float(signal[i])) for i, name in enumerate(names)}
