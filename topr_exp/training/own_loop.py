"""A loss in a training loop of the user's own: from a model's logits to a `Batch`, and from losses to a number."""

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from topr_exp.composition.problem_groups import group_statistics
from topr_exp.config.groups import MuSource, Reduction, mu_rules, reduction_rules
from topr_exp.sampling.completions import index_in_group
from topr_exp.schema import show
from topr_exp.training.padding import pad_tokens
from topr_exp.types import Batch, ConfigError, LossFunction, LossOutput, PairBatch, Tensor, TOPRError


@dataclass(frozen=True)
class ConfiguredLoss:
    """A loss with what its YAML asks of the training loop: the policy that μ is, and what an update divides by.

        output = loss(batch)  # a LossOutput: losses [B] and metrics [B]
        loss.reduce(output.loss, batch).backward()

    mu: "sampler" where `Batch.mu_logp` must be the sampler's own log-probabilities; with "scored" a forward pass over
    the completions by the weights that sampled them gives it. reduction: `optim.reduction`.
    """

    function: LossFunction  # the loss itself, with the hyper-parameters as its fields
    reduction: Reduction
    mu: MuSource

    def __post_init__(self) -> None:
        values = {
            "optim.reduction": self.reduction,
            "mu": self.mu,
            "algo.length_normalize": self.function.divides_by_length,
        }
        reductions = get_args(Reduction)
        mu_sources = get_args(MuSource)
        rules = [
            ("optim.reduction", self.reduction in reductions, " or ".join(reductions)),
            ("mu", self.mu in mu_sources, ", ".join(mu_sources)),
            *reduction_rules(self.function, self.reduction),
            *mu_rules(self.function, self.mu),
        ]
        for key, holds, allowed in rules:
            if not holds:
                raise ConfigError(f"{key} must be {allowed}; got {show(values[key])}")

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def needs(self) -> frozenset[str]:
        return self.function.needs

    @property
    def signals(self) -> Any:
        """The function from the global batch to `Batch.signals`; None for a loss that needs none."""
        if self.function.signal_names:
            return self.function.signals
        return None

    def __call__(self, batch: Batch | PairBatch) -> LossOutput:
        kind = PairBatch if "pairs" in self.needs else Batch
        if not isinstance(batch, kind):
            raise TOPRError(f"algo={self.name} takes a topr_exp.{kind.__name__}; got a {type(batch).__name__}")
        return self.function(batch)

    def divisor(self, batch: Batch | PairBatch) -> int:
        """Count what divides an update's summed losses: completions, pairs or sampled tokens of the global batch."""
        if self.reduction == "tokens" and isinstance(batch, Batch):
            return int(batch.mask.sum())
        return example_count(batch)

    def reduce(self, losses: Tensor, batch: Batch | PairBatch, divisor: int | None = None) -> Tensor:
        """Reduce the losses [B] of `batch` to the one number that an update minimises.

        divisor: of the global batch, where `batch` is a micro-batch of it; the micro-batches' numbers then add up.
        """
        expected = [example_count(batch)]
        shape = list(losses.shape)
        if shape != expected:
            raise TOPRError(f"losses of algo={self.name} must have shape {expected}; got {shape}")
        if divisor is None:
            divisor = self.divisor(batch)
        return losses.sum() / divisor


def example_count(batch: Batch | PairBatch) -> int:
    """Count the completions or pairs of a batch."""
    if isinstance(batch, PairBatch):
        return len(batch.chosen.logp)
    return len(batch.logp)


def completion_logprobs(logits: Tensor, input_ids: Tensor, completion_mask: Tensor) -> Tensor:
    """Score each sampled token: log-probabilities [B, T] float32, a completion's first token in column 0, then padding.

    logits: [B, S, V] of a causal language model for `input_ids` [B, S], each a prompt and its completion with padding
    before and after them, none between: a token is scored by the logits just before it.
    completion_mask: [B, S], True (or 1) at sampled tokens. Divide the logits by the temperature if μ has one.
    """
    import torch

    expected = list(input_ids.shape)
    for name, shape in (("logits", logits.shape[:2]), ("completion_mask", completion_mask.shape)):
        if list(shape) != expected:
            raise TOPRError(f"{name} must be of the input_ids, shape {expected}; got {list(shape)}")
    is_sampled = completion_mask.bool()
    has_completion = is_sampled.any(1)  # [B]
    if is_sampled[:, 0].any() or not has_completion.all():
        raise TOPRError("completion_mask must be False at the first token and True at one or more of each row")
    predictions = sampled_rows(logits, completion_mask)  # [N, V]
    targets = input_ids[is_sampled]  # [N]
    check_token_ids(targets, logits.shape[-1])
    logp = -torch.nn.functional.cross_entropy(predictions, targets, reduction="none")
    return pad_tokens(logp, padded_mask(completion_mask))


def check_token_ids(ids: Tensor, vocabulary: int) -> None:
    """Raise TOPRError for numbers that are no tokens: to torch, the -100 of labels is a token to leave out."""
    if ids.is_floating_point():
        raise TOPRError(f"input_ids must be whole numbers; got {ids.dtype}")
    strange_ids = ids[(ids < 0) | (ids >= vocabulary)]
    if len(strange_ids):
        allowed = f"from 0 to {vocabulary - 1}, the vocabulary, at sampled tokens"
        raise TOPRError(f"input_ids must be {allowed}; got {int(strange_ids[0])}")


def sampled_rows(logits: Tensor, completion_mask: Tensor) -> Tensor:
    """Select the logits that predict each sampled token, [N, V], float32 or more."""
    import torch

    is_sampled = completion_mask.bool()
    next_is_sampled = is_sampled[:, 1:]  # the logits at a token predict the next one
    rows = logits[:, :-1][next_is_sampled]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return rows.to(dtype)


def padded_mask(completion_mask: Tensor) -> Tensor:
    """Mark as many tokens of each row as its completion has, from column 0 on; [B, T] bool."""
    import torch

    counts = completion_mask.bool().sum(1)
    positions = torch.arange(int(counts.max()), device=counts.device)
    return positions < counts[:, None]


def batch_from_logits(  # noqa: PLR0913 - the fields of a batch
    logits: Tensor,
    input_ids: Tensor,
    completion_mask: Tensor,
    *,
    mu_logp: Tensor | None,
    reward: Tensor,
    positive: Tensor | None = None,
    baseline: float = 0.0,
    group: Tensor | None = None,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
    sampler_logits: Tensor | None = None,
    head_size: int | None = None,
) -> Batch:
    """Build a `Batch` from a causal language model's logits, with their gradient.

    logits, input_ids, completion_mask: as in `completion_logprobs`, which gives mu_logp, old_logp and ref_logp [B, T]
    from another model's logits. mu_logp: None for completions of the model as it is. reward: [B]. positive: [B] bool,
    default reward > 0. group: [B] whole numbers, equal for completions of one prompt, all of which are in this batch.
    sampler_logits: [B, S, V] of the model that drew the completions, for losses that need "head"; head_size: tokens of
    the head, the likeliest ones; None: all V.
    """
    import torch

    logp = completion_logprobs(logits, input_ids, completion_mask)
    token_fields: dict[str, Any] = {"mu_logp": logp.detach()}
    for name, values in {"mu_logp": mu_logp, "old_logp": old_logp, "ref_logp": ref_logp}.items():
        if values is None:
            continue
        if values.shape != logp.shape:
            raise TOPRError(f"{name} must be [B, T], shape {list(logp.shape)}; got {list(values.shape)}")
        token_fields[name] = values.detach().to(logp.device)
    for name, values in {"reward": reward, "positive": positive, "group": group}.items():
        if values is not None:
            check_numbers(name, values, len(logp))
    if positive is None:
        positive = reward > 0
    batch = Batch(
        logp=logp,
        mask=padded_mask(completion_mask),
        reward=reward.to(logp),
        positive=positive.to(logp.device, torch.bool),
        baseline=baseline,
        **token_fields,
    )
    if sampler_logits is not None:
        batch = replace(batch, **head_fields(logits, sampler_logits, completion_mask, head_size))
    if group is None:
        return batch
    return replace(batch, **group_fields(group, batch.reward))


def check_numbers(name: str, values: object, count: int) -> None:
    """Raise TOPRError for what is no tensor of a number for each of `count` completions."""
    import torch

    received: object = f"a {type(values).__name__}"
    if isinstance(values, torch.Tensor):
        received = list(values.shape)
    if received != [count]:
        raise TOPRError(f"{name} must be a tensor [B], shape [{count}]; got {received}")


def head_fields(
    logits: Tensor, sampler_logits: Tensor, completion_mask: Tensor, head_size: int | None
) -> dict[str, Any]:
    """Score the sampler's likeliest tokens by both policies, [B, T, k], as fields of a batch."""
    if sampler_logits.shape != logits.shape:
        raise TOPRError(f"sampler_logits must be of shape {list(logits.shape)}; got {list(sampler_logits.shape)}")
    vocabulary = logits.shape[-1]
    size = vocabulary if head_size is None else head_size
    if not 1 <= size <= vocabulary:
        raise TOPRError(f"head_size must be 1 to {vocabulary}, the vocabulary; got {head_size}")
    logp = sampled_rows(logits, completion_mask).log_softmax(-1)  # [N, V]
    sampler_rows = sampled_rows(sampler_logits.detach(), completion_mask).to(logp.dtype)
    head_mu_logp, head_ids = sampler_rows.log_softmax(-1).topk(size)
    head_logp = logp.gather(-1, head_ids)
    mask = padded_mask(completion_mask)
    return {
        "head_logp": pad_tokens(head_logp, mask),
        "head_mu_logp": pad_tokens(head_mu_logp, mask),
    }


def group_fields(group: Tensor, reward: Tensor) -> dict[str, Any]:
    """Compare the completions of each prompt: the fields of a `Batch` that losses with a group's advantage read.

        batch = dataclasses.replace(batch, **topr_exp.group_fields(group, batch.reward))

    group: [B] whole numbers, equal for completions of one prompt, all of which are here. reward: [B] float32 or 64.
    """
    import torch

    if reward.dtype not in (torch.float32, torch.float64):
        raise TOPRError(f"reward must be float32 or float64; got {reward.dtype}")
    if group.ndim != 1 or group.shape != reward.shape:
        raise TOPRError(f"group must be [B], the shape {list(reward.shape)} of the rewards; got {list(group.shape)}")
    _, group_index = np.unique(group.cpu().numpy(), return_inverse=True)  # from 0
    group_index = group_index.astype(np.int32)
    rewards = reward.detach().cpu().numpy()
    statistics = group_statistics(group_index, rewards)
    group_rewards = statistics.rewards_of_problems(np.arange(len(rewards)))

    def numbers(values: np.ndarray, dtype: torch.dtype = reward.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=reward.device)

    return {
        "group": numbers(group_index, torch.int64),
        "sample": numbers(index_in_group(group_index), torch.int64),
        "group_mean": numbers(statistics.mean),
        "group_std": numbers(statistics.std),
        "group_size": numbers(statistics.size),
        "group_rewards": numbers(group_rewards),
    }
