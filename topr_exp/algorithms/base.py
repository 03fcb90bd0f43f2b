"""The base class of a loss, and the functions that losses are written with.

A loss is a frozen dataclass of its `name` and its hyper-parameters, whose values stand in `conf/algo/<name>.yaml`; a
field has a default only where that changes nothing. Calling it maps a batch to losses [B]; the trainer alone reduces
them, by the global count, so that padding, accumulation and world size can't change a result.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from topr_exp.schema import FINITE, Range, Rule, Section, above, convert, hints_of
from topr_exp.types import Batch, LossOutput, Tensor, TOPRError

Finite = Annotated[float, FINITE]
Positive = Annotated[float, Range("above 0 and finite", lambda value: 0 < value < math.inf)]
NotNegative = Annotated[float, Range("at least 0 and finite", lambda value: 0 <= value < math.inf)]
PositiveOrInf = Annotated[float, above(0)]
PositiveOrNull = Annotated[float | None, above(0, "null or above 0")]

Advantage = Literal["reward", "group", "group_std", "leave_one_out"]
"""Weight of a completion: R0 − c, or its reward against those of all n completions to the prompt.

group: r − r̄; group_std: (r − r̄) / (std + 1e-4), std with n − 1; leave_one_out: r − r̄_−i.
"""

# ---- the description of a loss

NEEDS = {
    "pairs": "called with a PairBatch of correct and incorrect completions",
    "group_rewards": "Batch.group_mean, group_std, group_size, group_rewards: at least 2 completions were sampled",
    "groups": "all completions to a prompt are in one global batch (Batch.group says which belong together)",
    "old_logp": "Batch.old_logp: the sampled tokens scored by training's forward pass, beside μ (mu=sampler)",
    "kept": "all log-probabilities are renormalised over what top_k and top_p let the sampler draw (mu=sampler)",
    "head": "Batch.head_logp, head_mu_logp: tokens that the sampler found likeliest (sampler.top_logprobs, mu=sampler)",
    "ref_logp": "Batch.ref_logp: the sampled tokens scored by the reference model",
    "vocab_kl": "Batch.vocab_kl: the reference's whole distribution, so it stays in memory",
    "on_policy": "unbiased only if the batch was sampled from the policy that is updated with it",
}
Rewards = Literal["pm1", "zero_one"]  # of a correct and an incorrect completion: 1 and -1, 1 and 0


@dataclass(frozen=True)
class Paper:
    """Source of a loss."""

    method: str  # its name there
    arxiv: str = ""  # identifier; empty for a loss that only code describes
    equation: str = ""  # or section or table


class TypedSection(Section):
    """Base of settings whose fields are converted and checked also where Python built the object."""

    def __post_init__(self) -> None:
        schema: Any = type(self)
        for name, hint in hints_of(schema).items():
            object.__setattr__(self, name, convert(name, getattr(self, name), hint))
        super().__post_init__()


@dataclass(frozen=True)
class Loss(TypedSection, ABC):
    """Base of every loss: hyper-parameters as fields, a description as class variables, `__call__` as the formula.

    A part of the description that depends on the hyper-parameters is a property, so ask the instance.
    """

    name: str  # of its YAML; tells `topr` from `tis`, which have one class

    papers: ClassVar[Mapping[str, Paper]] = MappingProxyType({})  # by `name`
    rewards: ClassVar[Rewards] = "pm1"  # of its paper; `data.reward` overrides them

    @property
    def needs(self) -> frozenset[str]:
        """What the batch must carry: keys of `NEEDS`."""
        return frozenset()

    @property
    def uses_baseline(self) -> bool:
        """False where a constant c cancels, only scales the loss or has no meaning: setting one is then an error."""
        return True

    @property
    def needs_mu(self) -> bool:
        """False where the gradient does not depend on `Batch.mu_logp`, so that mu=none is allowed."""
        return True

    @property
    def lowers_negative_rewards_alone(self) -> bool:
        """True where a completion becomes rarer if its R = R0 − c is below 0, and never else."""
        return False

    @property
    def needs_unequal_rewards(self) -> bool:
        """True where a prompt whose completions have equal rewards has no gradient while π is μ and the reference."""
        return False

    def has_weight(self, reward: float) -> bool:
        """False where a completion with this R = R0 − c has no gradient."""
        return reward != 0

    @property
    def drops_tokens(self) -> bool:
        """True where tokens or completions may be left out; the metric `masked` or `kept` then has their share."""
        return False

    @property
    def signal_names(self) -> frozenset[str]:
        """The tensors that `signals` returns; empty where the loss of a completion depends on no other completion."""
        return frozenset()

    @property
    def divides_by_length(self) -> bool:
        """True where a completion's loss is divided by its number of tokens: the field `length_normalize`, if any."""
        return bool(getattr(self, "length_normalize", False))

    @property
    def paper(self) -> Paper | None:
        return self.papers.get(self.name)

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        """Tensors [B] over the global batch, scored by the current policy without gradients.

        `__call__`, which may see only a part of that batch, finds its part of them in `Batch.signals`. The global batch
        has whole groups if `needs` has "groups".
        """
        return {}

    @abstractmethod
    def __call__(self, batch: Any) -> LossOutput:
        """Losses and metrics [B] of a Batch, or of a PairBatch if `needs` has "pairs"."""

    def output(self, loss: Tensor, batch: Batch, metrics: dict[str, Tensor]) -> LossOutput:
        """Losses [B] that are sums over tokens, divided by T with `length_normalize`, and their metrics."""
        return LossOutput(reduce_tokens(loss, batch, self.divides_by_length), metrics)


@dataclass(frozen=True)
class PenalizedLoss(Loss):
    """Base of a loss that may carry the KL penalty of GRPO (arXiv 2402.03300, Equations 3 and 4): kl_coef · Σ_t k_t.

    With `unbiased_kl`: kl_coef · Σ_t r_t k_t, r_t = π(y_t)/μ(y_t) (DeepSeek-V3.2, arXiv 2512.02556, Equation 7).
    Divided by T with `length_normalize`, as the loss is. Limits, masks and corrections leave it as it is.
    """

    kl_coef: NotNegative = field(default=0.0, kw_only=True)  # weight of the KL to the reference model; 0: none
    unbiased_kl: bool = field(default=False, kw_only=True)  # each token's KL times π/μ: unbiased in value and gradient

    def check(self) -> Iterator[Rule]:
        yield "unbiased_kl", self.kl_coef > 0 or not self.unbiased_kl, "false where kl_coef is 0: nothing reads it"

    @property
    def needs(self) -> frozenset[str]:
        if self.kl_coef == 0:
            return frozenset()
        return frozenset({"ref_logp"})

    def output(self, loss: Tensor, batch: Batch, metrics: dict[str, Tensor]) -> LossOutput:
        if self.kl_coef > 0:
            loss = loss + self.kl_coef * reference_kl(batch, self.unbiased_kl)
        return super().output(loss, batch, metrics)


class GroupLoss(Loss):
    """Base of a loss that weighs a completion against the others to its prompt."""

    uses_baseline = False

    @property
    def needs_unequal_rewards(self) -> bool:
        return True

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"group_rewards"}


class ZeroOneLoss(GroupLoss):
    """Base of a loss whose paper compares the completions to a prompt and gives 0 for an incorrect one."""

    rewards = "zero_one"


# ---- checks of a batch

REQUIRED_FIELDS = ("logp", "mu_logp", "mask", "reward", "positive")
CONSTANT_FIELDS = ("mu_logp", "old_logp", "ref_logp")  # of policies that are not trained: without gradient
TOKEN_FIELDS = ("mu_logp", "old_logp", "mask", "ref_logp", "vocab_kl")  # of a batch, [B, T]
COMPLETION_FIELDS = ("reward", "positive", "group", "group_mean", "group_std", "group_size", "sample")  # [B]


def check_batch(batch: Batch) -> None:
    """Raise TOPRError for a wrong shape or dtype in a batch, a gradient of μ, or a required field that is missing."""
    for name in REQUIRED_FIELDS:
        needed(batch, name)
    shape = list(batch.logp.shape)
    dtype = str(batch.logp.dtype)
    check_field("logp", "[B, T]", shape, len(shape) == 2)
    check_field("logp", "float32 or float64", dtype, dtype in ("torch.float32", "torch.float64"))
    for name in ("mask", "positive"):
        field_dtype = str(getattr(batch, name).dtype)
        check_field(name, "bool", field_dtype, field_dtype == "torch.bool")
    for name in TOKEN_FIELDS:
        check_shape(name, getattr(batch, name), shape)
    for name in COMPLETION_FIELDS:
        check_shape(name, getattr(batch, name), shape[:1])
    if batch.group_rewards is not None:
        rewards_shape = list(batch.group_rewards.shape)
        is_by_completion = len(rewards_shape) == 2 and rewards_shape[0] == shape[0]
        check_field("group_rewards", f"of shape [{shape[0]}, n]", rewards_shape, is_by_completion)
    for name in CONSTANT_FIELDS:
        check_detached(name, getattr(batch, name))


def check_shape(name: str, value: Tensor | None, expected: list[int]) -> None:
    """Raise TOPRError for a tensor of another shape; an optional one may be missing."""
    if value is not None:
        shape = list(value.shape)
        check_field(name, f"of shape {expected}", shape, shape == expected)


def check_detached(name: str, value: Tensor | None) -> None:
    """Raise TOPRError for a tensor with a gradient; an optional one may be missing."""
    has_gradient = value is not None and value.requires_grad
    check_field(name, "detached", "a tensor with a gradient", not has_gradient)


def check_field(name: str, allowed: str, value: object, holds: bool) -> None:
    """Raise TOPRError with one line that names a field of a batch, what is allowed and what was given."""
    if not holds:
        raise TOPRError(f"Batch.{name} must be {allowed}; got {value}")


def needed(batch: Batch, name: str) -> Tensor:
    """A field of a batch; TOPRError where it is missing."""
    value = getattr(batch, name)
    if value is None:
        source = "; topr_exp.group_fields gives it" if name.startswith("group") else ""
        raise TOPRError(f"Batch.{name} is missing: this loss reads it{source}")
    return value


def signal(batch: Batch, name: str) -> Tensor:
    """One of the tensors [B] that the loss's `signals` computed over the global batch, checked."""
    if name not in batch.signals:
        raise TOPRError(f"Batch.signals lacks {name!r}: run loss.signals over the global batch first")
    value = batch.signals[name]
    label = f"signals[{name!r}]"
    check_shape(label, value, [len(batch.logp)])
    check_detached(label, value)
    return value


# ---- log-probabilities and tokens

LARGEST_LOG_RATIO = 20.0  # of π_ref/π and π/μ in the KL penalty


def masked(values: Tensor, batch: Batch) -> Tensor:
    """`values` [B, T] with 0 at padding, whatever stood there."""
    return values.where(batch.mask, 0.0)


def lengths(batch: Batch) -> Tensor:
    """T, the number of sampled tokens of each completion, [B], in the dtype of logp; at least 1."""
    return batch.mask.sum(1).clamp(min=1).to(batch.logp.dtype)


def sum_over_tokens(values: Tensor, batch: Batch) -> Tensor:
    """Σ_t of `values` [B, T] over each completion's tokens, [B]."""
    return masked(values, batch).sum(1)


def mean_over_tokens(values: Tensor, batch: Batch) -> Tensor:
    """The mean of `values` [B, T], numbers or booleans, over each completion's tokens, [B]."""
    return sum_over_tokens(values.to(batch.logp.dtype), batch) / lengths(batch)


def log_prob(batch: Batch) -> Tensor:
    """logπ(y|x) = Σ_t logπ(y_t|x, y_<t), [B], with gradient."""
    return sum_over_tokens(batch.logp, batch)


def token_log_ratio(batch: Batch) -> Tensor:
    """δ_t = logπ(y_t|x, y_<t) − logμ(y_t|x, y_<t), [B, T], with gradient."""
    return masked(batch.logp - batch.mu_logp, batch)


def log_ratio(batch: Batch) -> Tensor:
    """Δ = logπ(y|x) − logμ(y|x) of the whole completion, [B], with gradient."""
    return token_log_ratio(batch).sum(1)


def ref_log_ratio(batch: Batch) -> Tensor:
    """Δ = logπ(y|x) − logπ_ref(y|x) of the whole completion, [B], with gradient."""
    return sum_over_tokens(batch.logp - needed(batch, "ref_logp"), batch)


def reference_kl(batch: Batch, is_weighted: bool) -> Tensor:
    """Σ_t k_t of each completion, or Σ_t r_t k_t if `is_weighted`, [B], with gradient.

    k = q − 1 − log q ≥ 0,   q = π_ref(y_t)/π(y_t);   GRPO (arXiv 2402.03300), Equation 4
    r = π(y_t)/μ(y_t);                                DeepSeek-V3.2 (arXiv 2512.02556), Equation 7

    The mean of k over samples of π is Σ_t KL(π ‖ π_ref), that of its gradient ∇ Σ_t KL(π_ref ‖ π). Over samples of any
    μ, r k has the mean and the gradient of Σ_t KL(π ‖ π_ref), of next tokens after what μ drew.
    """
    log_ratio = masked(needed(batch, "ref_logp") - batch.logp, batch)
    kl = bounded_exp(log_ratio) - 1 - log_ratio
    if is_weighted:
        kl = bounded_exp(token_log_ratio(batch)) * kl
    return kl.sum(1)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """e^`log_ratio`; beyond LARGEST_LOG_RATIO it goes on along its tangent, which can't overflow."""
    limited = log_ratio.clamp(max=LARGEST_LOG_RATIO)
    return limited.exp() * (1 + log_ratio - limited)


def reduce_tokens(loss: Tensor, batch: Batch, length_normalize: bool) -> Tensor:
    """A loss [B] that is a sum over tokens, divided by T if `length_normalize`."""
    if not length_normalize:
        return loss
    return loss / lengths(batch)


# ---- groups: the completions to one prompt

STD_OFFSET = 1e-4  # keeps (r − r̄) / std finite where all rewards of a group are equal


def check_group_size(size: Tensor, name: str) -> None:
    """Raise if a prompt has a single completion: nothing to compare it with."""
    if bool((size < 2).any()):
        raise TOPRError(f"algo={name} compares the completions to a prompt and needs at least 2 of each; a group has 1")


def group_total(batch: Batch, values: Tensor) -> Tensor:
    """The sum of `values` [B] over the rows of each row's group, [B]."""
    group_ids, group_index = needed(batch, "group").unique(return_inverse=True)
    totals = values.new_zeros(len(group_ids)).index_add(0, group_index, values)
    return totals[group_index]


def group_count(batch: Batch) -> Tensor:
    """The number of rows of each row's group, [B], in the dtype of the rewards."""
    return group_total(batch, batch.reward.new_ones(len(batch.reward)))


def check_complete_groups(batch: Batch, name: str) -> None:
    """Raise unless each group in the batch holds at least 2 completions and, where n is known, all n of them."""
    count = group_count(batch)
    check_group_size(count, name)
    if batch.group_size is None:
        return
    lack = (count - batch.group_size).abs()
    if lack.any():
        row = lack.argmax()
        present = int(count[row])
        sampled = int(batch.group_size[row])
        raise TOPRError(f"algo={name} needs complete groups; a group has {present} of its {sampled} completions here")


def leave_one_out(batch: Batch, values: Tensor) -> Tensor:
    """v_i − v̄_−i, where v̄_−i is the mean over the other completions to the same prompt, [B]; n ≥ 2."""
    total_of_others = group_total(batch, values) - values
    return values - total_of_others / (group_count(batch) - 1)


def by_sign(positive: float, negative: float, is_positive: Tensor, batch: Batch) -> Tensor:
    """A setting of positives or of negatives for each completion, in the shape of `is_positive`."""
    return batch.logp.new_full(is_positive.shape, negative).masked_fill(is_positive, positive)


def advantage_of(batch: Batch, kind: Advantage, name: str) -> Tensor:
    """The advantage of each completion, [B]; group statistics are over all n, also completions not in the batch."""
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


# ---- PPO's clipping


def clipped_objective(delta: Tensor, advantage: Tensor, eps_low: float, eps_high: float) -> tuple[Tensor, Tensor]:
    """PPO's min(r A, clip(r, 1 − ε_low, 1 + ε_high) A) and where its gradient is zero, for r = e^Δ.

    Where the clipped branch holds, exp is not evaluated at Δ, so a huge ratio gives neither an infinite value nor an
    undefined gradient; A = 0 gives 0. Arguments: Δ with gradient, A, of shapes that broadcast.
    """
    low = log_or_minus_inf(1 - eps_low)
    high = math.log1p(eps_high)
    is_clipped = is_pushed_out(delta, advantage, low, high)
    has_no_gradient = is_clipped | (advantage == 0)
    ratio = delta.masked_fill(has_no_gradient, 0.0).exp()
    clipped_ratio = delta.detach().clamp(low, high).exp()
    objective = (ratio * advantage).where(~is_clipped, clipped_ratio * advantage)
    return objective, is_clipped


def is_pushed_out(values: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """True where A pushes a value beyond [low, high] further out: above with A > 0, below with A < 0."""
    is_above = (advantage > 0) & (values > high)
    is_below = (advantage < 0) & (values < low)
    return is_above | is_below


def log_or_minus_inf(limit: float) -> float:
    """log of a limit of a ratio; −∞ for 0 or less, which limits nothing."""
    if limit <= 0:
        return -math.inf
    return math.log(limit)
