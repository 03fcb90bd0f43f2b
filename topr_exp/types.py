"""The values that flow through a run, in the order in which they appear: problem, completion, batch, loss.

Nothing here computes. torch's Tensor is a name for annotations only, so that config checks stay fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

Verdict = Literal["correct", "incorrect", "invalid"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Finish = Literal["stop", "length", "stop_string"]  # how a completion ended: by itself, cut off, at a stop string
FINISHES: tuple[Finish, ...] = get_args(Finish)
CORRECT, INCORRECT, INVALID = range(len(VERDICTS))  # codes: indices into VERDICTS


class TOPRError(Exception):
    """A user's mistake or an outside failure: shown as one line, without a traceback."""


class ConfigError(TOPRError, ValueError):
    """A setting that is wrong: the line names the key, what was given and what is allowed."""


def has_half_pair(text: str) -> bool:
    """Check for half of a surrogate pair, which is no character and can't be encoded."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True, slots=True)
class Problem:
    """One question x with its gold answer."""

    id: str  # stable and unique, e.g. "gsm8k/embedded/train/000012"
    question: str
    answer: str  # gold, as the grader compares it
    level: int | None = None  # difficulty, 1 (easy) to 5
    subject: str | None = None
    source: str | None = None  # id of the problem that this one was made from; those of one source are not independent
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)  # further ones of its data, for the template
    opens_thought: bool = False  # its prompt ends with <think>; known once prompts are built


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of a loss: B sampled completions, padded on the right to T completion tokens.

    Log-probabilities: float32 or float64, 0 where `mask` is False. Gradients: of `logp`, `vocab_kl` and `head_logp`.
    """

    logp: Tensor  # [B, T] log π(y_t | x, y_<t)
    mu_logp: Tensor  # [B, T] log μ(y_t | x, y_<t)
    mask: Tensor  # [B, T] bool, True at sampled tokens (the end-of-sequence token included)
    reward: Tensor  # [B] R0, before any baseline: 1 and −1, 1 and 0, or any numbers of a grader or log
    positive: Tensor  # [B] bool, the verdict is correct
    baseline: float = 0.0  # c
    group: Tensor | None = None  # [B] int64, equal for completions to one prompt
    sample: Tensor | None = None  # [B] int64, which of the n completions to its prompt this one is
    group_mean: Tensor | None = None  # [B] mean reward over all n samples of the prompt, before subsampling
    group_std: Tensor | None = None  # [B] standard deviation of these rewards (n - 1 in the denominator)
    group_size: Tensor | None = None  # [B] n, before subsampling
    group_rewards: Tensor | None = None  # [B, n] these rewards, −∞ at the end where a prompt has fewer than others
    old_logp: Tensor | None = None  # [B, T] log π_old: the weights that were μ's, scored by training's forward pass
    ref_logp: Tensor | None = None  # [B, T] log π_ref
    vocab_kl: Tensor | None = None  # [B, T] KL(π(.|x,y_<t) || π_ref(.|x,y_<t)) over the vocabulary, with gradient
    head_logp: Tensor | None = None  # [B, T, k] log π of the k tokens that the sampler found likeliest, with gradient
    head_mu_logp: Tensor | None = None  # [B, T, k] log μ of the same, −∞ where one could not be drawn
    signals: dict[str, Tensor] = field(default_factory=dict)  # what the loss's `signals` computed over the global batch


@dataclass(frozen=True, slots=True)
class PairBatch:
    """B pairs of completions to the same prompt: `chosen` correct, `rejected` not."""

    chosen: Batch
    rejected: Batch


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Per-example losses; the trainer alone reduces them, by the global count of examples."""

    loss: Tensor  # [B], to be minimised
    metrics: dict[str, Tensor] = field(default_factory=dict)  # name -> [B], detached; logged as means by verdict


class LossFunction(Protocol):
    """A loss as training sees it; `algorithms.base.Loss` says what each part means."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def needs_mu(self) -> bool: ...

    @property
    def divides_by_length(self) -> bool: ...

    @property
    def signal_names(self) -> frozenset[str]: ...

    def signals(self, batch: Batch) -> dict[str, Tensor]: ...

    def __call__(self, batch: Any) -> LossOutput: ...
