"""Shared parts of every loss: the protocol that the trainer knows, shape checks, log-ratios, group statistics.

A loss is a frozen dataclass of its `name` and its hyper-parameters (types and ranges by annotation, the rest in
`check`), whose values stand in `conf/algo/<name>.yaml` alone. Calling it maps a batch to per-example losses; the
trainer alone reduces, by the global count, so that padding, accumulation and world size can't change a result.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from topr_exp.schema import FINITE, Range, Section, above, convert, hints_of
from topr_exp.types import Batch, ConfigError, LossOutput, Tensor, TOPRError

Example = TypeVar("Example", contravariant=True)

Finite = Annotated[float, FINITE]
Positive = Annotated[float, Range("above 0 and finite", lambda value: 0 < value < math.inf)]
NotNegative = Annotated[float, Range("at least 0 and finite", lambda value: 0 <= value < math.inf)]
PositiveOrInf = Annotated[float, above(0)]
PositiveOrNull = Annotated[float | None, above(0, "null or above 0")]

BY_TOKEN = ("mu_logp", "old_logp", "mask", "ref_logp", "vocab_kl")  # fields of a batch that are [B, T]
BY_RESPONSE = ("reward", "positive", "group", "group_mean", "group_std", "group_size", "sample")  # that are [B]
STD_OFFSET = 1e-4  # keeps (r − r̄) / std finite where all rewards of a group are equal

NEEDS = {
    "pairs": "called with a PairBatch of correct and incorrect responses",
    "group_rewards": "Batch.group_mean, group_std, group_size, group_rewards: at least 2 responses were sampled",
    "groups": "all responses to a prompt are in one global batch (Batch.group says which belong together)",
    "old_logp": "Batch.old_logp: the sampled tokens scored by training's forward pass, beside μ (mu=sampler)",
    "kept": "all log-probabilities are renormalised over what top_k and top_p let the sampler draw (mu=sampler)",
    "ref_logp": "Batch.ref_logp: the sampled tokens scored by the reference model",
    "vocab_kl": "Batch.vocab_kl: the reference's whole distribution, so it stays in memory",
    "on_policy": "unbiased only if the batch was sampled from the policy that is updated with it",
}


Advantage = Literal["reward", "group", "group_std", "leave_one_out"]
"""Weight of a response: R0 − c, or its reward against those of all n responses to the prompt.

group: r − r̄; group_std: (r − r̄) / (std + 1e-4), std with n − 1; leave_one_out: r − r̄_−i.
"""


@runtime_checkable
class Loss(Protocol[Example]):
    """A pure loss of a Batch, or of a PairBatch if it needs "pairs".

    `needs` names what the batch must carry (keys of `NEEDS`); it may depend on the fields, so ask the instance.
    `uses_baseline` is False where c cancels, only scales the loss or has no meaning: setting one is then an error. A
    class may also name the rewards of its paper, `rewards = "zero_one"`; without that a wrong answer is worth -1. With
    `needs_mu = False` its gradient does not depend on `Batch.mu_logp`, so that it can be trained with mu=none.

    A loss whose coefficients depend on the whole global batch, of which `__call__` may see a part, has a method
    `signals` from a Batch to tensors [B] by name. The trainer calls it over the global batch, scored by the current
    policy, without gradients, and `__call__` finds its part in `Batch.signals`. `signals` itself is None where these
    hyper-parameters need none. Where the global batch has to hold all responses to a prompt, `needs` has "groups".
    """

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def uses_baseline(self) -> bool: ...

    def __call__(self, batch: Example) -> LossOutput: ...


class Typed(Section):
    """Base of the losses here: fields are converted and checked as settings are, also where Python built the object."""

    def __post_init__(self) -> None:
        schema: Any = type(self)
        for name, hint in hints_of(schema).items():
            object.__setattr__(self, name, convert(name, getattr(self, name), hint))
        super().__post_init__()


@dataclass(frozen=True)
class Named(Typed):
    """Base of the losses here; of two with the same class (`topr`, `tis`) the name tells which one it is."""

    name: str


class ZeroOne(Named):
    """Rewards and baseline of a loss whose paper gives 0 for a wrong answer and compares the answers to a prompt."""

    uses_baseline: ClassVar[bool] = False
    rewards: ClassVar[str] = "zero_one"


class OfGroup(Named):
    """Needs and baseline of a loss that weighs a response against the others to its prompt."""

    needs: ClassVar[frozenset[str]] = frozenset({"group_rewards"})
    uses_baseline: ClassVar[bool] = False


def check_batch(batch: Batch, *extra: str) -> None:
    """Raise TOPRError for a wrong shape or dtype in a batch, or if an optional field named in `extra` is missing."""
    shape, dtype = list(batch.logp.shape), str(batch.logp.dtype)
    refuse_field("logp", "[B, T]", shape, len(shape) == 2)
    refuse_field("logp", "float32 or float64", dtype, dtype in ("torch.float32", "torch.float64"))
    for name in ("mask", "positive"):
        field_dtype = str(getattr(batch, name).dtype)
        refuse_field(name, "bool", field_dtype, field_dtype == "torch.bool")
    for names, expected in ((BY_TOKEN, shape), (BY_RESPONSE, shape[:1])):
        for name in names:
            value = getattr(batch, name)
            if value is not None:
                refuse_field(name, f"of shape {expected}", list(value.shape), list(value.shape) == expected)
    if batch.group_rewards is not None:
        rewards_shape = list(batch.group_rewards.shape)
        by_response = len(rewards_shape) == 2 and rewards_shape[0] == shape[0]
        refuse_field("group_rewards", f"of shape [{shape[0]}, n]", rewards_shape, by_response)
    for name in extra:
        needed(batch, name)


def refuse_field(name: str, allowed: str, given: object, ok: bool) -> None:
    """Raise TOPRError with one line that names a field of a batch, what is allowed and what was given."""
    if not ok:
        raise TOPRError(f"Batch.{name} must be {allowed}; got {given}")


def needed(batch: Batch, name: str) -> Tensor:
    """An optional field of a batch; TOPRError where it is missing."""
    value: Tensor | None = getattr(batch, name)
    if value is None:
        raise TOPRError(f"Batch.{name} is missing: this loss reads it")
    return value


def signal(batch: Batch, key: str) -> Tensor:
    """One of the tensors [B] that the loss's `signals` computed over the global batch, checked."""
    if key not in batch.signals:
        raise TOPRError(f"Batch.signals lacks {key!r}: run loss.signals over the global batch first")
    value, shape = batch.signals[key], list(batch.logp.shape[:1])
    refuse_field(f"signals[{key!r}]", f"of shape {shape}", list(value.shape), list(value.shape) == shape)
    refuse_field(f"signals[{key!r}]", "detached", "a tensor with a gradient", not value.requires_grad)
    return value


def masked(values: Tensor, batch: Batch) -> Tensor:
    """`values` [B, T] with 0 at padding, whatever stood there."""
    return values.where(batch.mask, 0.0)


def lengths(batch: Batch) -> Tensor:
    """T, the number of sampled tokens of each response, [B], in the dtype of logp; at least 1."""
    return batch.mask.sum(1).clamp(min=1).to(batch.logp.dtype)


def log_prob(batch: Batch) -> Tensor:
    """logπ(y|x) = Σ_t logπ(y_t|x, y_<t), [B], with gradient."""
    return masked(batch.logp, batch).sum(1)


def token_log_ratio(batch: Batch) -> Tensor:
    """logπ(y_t|x, y_<t) − logμ(y_t|x, y_<t), [B, T], with gradient."""
    return masked(batch.logp - batch.mu_logp, batch)


def log_ratio(batch: Batch) -> Tensor:
    """Δ = logπ(y|x) − logμ(y|x) of the whole response, [B], with gradient."""
    return token_log_ratio(batch).sum(1)


def token_ref_log_ratio(batch: Batch) -> Tensor:
    """δ_t = logπ(y_t|x, y_<t) − logπ_ref(y_t|x, y_<t), [B, T], with gradient."""
    return masked(batch.logp - needed(batch, "ref_logp"), batch)


def reduce_tokens(loss: Tensor, batch: Batch, length_normalize: bool) -> Tensor:
    """A loss [B] that is a sum over tokens, divided by T if asked."""
    return loss / lengths(batch) if length_normalize else loss


def share_of_tokens(values: Tensor, batch: Batch) -> Tensor:
    """The mean of `values` [B, T], which may be True and False, over each response's tokens, [B]."""
    return masked(values.to(batch.logp.dtype), batch).sum(1) / lengths(batch)


def check_group_size(size: Tensor, name: str) -> None:
    """Raise if a prompt has a single response: nothing to compare it with."""
    if bool((size < 2).any()):
        raise TOPRError(f"algo={name} compares the responses to a prompt and needs at least 2 of each; a group has 1")


def group_sums(batch: Batch, values: Tensor) -> tuple[Tensor, Tensor]:
    """n and Σ `values` over each sample's own group, both [B]."""
    ids, index = needed(batch, "group").unique(return_inverse=True)
    count = values.new_zeros(len(ids)).index_add(0, index, values.new_ones(len(values)))
    total = values.new_zeros(len(ids)).index_add(0, index, values)
    return count[index], total[index]


def check_complete_groups(batch: Batch, name: str) -> None:
    """Raise unless each group in the batch holds at least 2 responses and, where n is known, all n of them."""
    count, _ = group_sums(batch, batch.reward)
    check_group_size(count, name)
    if batch.group_size is not None and bool((count != batch.group_size).any()):
        worst = int((count - batch.group_size).abs().argmax())
        given, allowed = int(count[worst]), int(batch.group_size[worst])
        raise TOPRError(f"algo={name} needs complete groups; a group has {given} of its {allowed} responses here")


def leave_one_out(batch: Batch, values: Tensor) -> Tensor:
    """v_i − v̄_−i, where v̄_−i is the mean over the other responses to the same prompt, [B]; n ≥ 2."""
    count, total = group_sums(batch, values)
    return values - (total - values) / (count - 1)


def advantage_of(batch: Batch, kind: Advantage, name: str) -> Tensor:
    """The advantage of each response, [B]; group statistics are those of all n, also of responses not in the batch."""
    check_batch(batch)
    if kind == "reward":
        return batch.reward - batch.baseline
    size = needed(batch, "group_size")
    check_group_size(size, name)
    centered = batch.reward - needed(batch, "group_mean")
    if kind == "group":
        return centered
    if kind == "leave_one_out":
        n = size.to(centered.dtype)
        return centered * n / (n - 1)
    return centered / (needed(batch, "group_std") + STD_OFFSET)


def check_range(name: str, value: float | str | None, allowed: str, ok: bool) -> None:
    """Raise ConfigError with one line that names the key, what is allowed and what was given."""
    if not ok:
        raise ConfigError(f"{name} must be {allowed}; got {value}")


def clipped_objective(delta: Tensor, advantage: Tensor, eps_low: float, eps_high: float) -> tuple[Tensor, Tensor]:
    """PPO's min(r A, clip(r, 1 − ε_low, 1 + ε_high) A) and where its gradient is zero, for r = e^Δ.

    Where the clipped branch holds, exp is not evaluated at Δ, so a huge ratio gives neither an infinite value nor an
    undefined gradient; A = 0 gives 0. Arguments: Δ with gradient, A, of shapes that broadcast.
    """
    low = math.log(1 - eps_low) if eps_low < 1 else -math.inf
    high = math.log1p(eps_high)
    clipped = ((advantage > 0) & (delta > high)) | ((advantage < 0) & (delta < low))
    inside = (delta.masked_fill(clipped | (advantage == 0), 0.0)).exp() * advantage
    edge = delta.detach().clamp(low, high).exp()
    return inside.where(~clipped, edge * advantage), clipped
