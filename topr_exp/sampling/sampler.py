"""Interface of samplers, and the completion that they return."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from topr_exp.config.model import SamplerConfig
from topr_exp.models.policy import Policy
from topr_exp.sampling.top_logprobs import TopTokens

Prompts = Sequence[Sequence[int]]  # token ids
Seed = tuple[int, ...]  # numbers that name the randomness
ReportTokens = Callable[[int], None]  # called with the number of tokens that were drawn since its last call
TimeStage = Callable[[str], AbstractContextManager[None]]  # measures a block under the name of a stage


def seed_of(*numbers: int) -> int:
    """Return a 63-bit seed for a tuple of numbers."""
    text = " ".join(map(str, numbers))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def split_every(rows: Any, size: int) -> list[Any]:
    """Split a sequence or table into consecutive parts of `size` rows; the last may have fewer."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@dataclass(slots=True)
class Sample:
    """One sampled completion."""

    tokens: list[int] = field(default_factory=list)  # the end-of-sequence token included when it was sampled
    logprobs: list[float] = field(default_factory=list)  # under the distribution each token was drawn from
    finish: str = "length"  # stop (end-of-sequence), stop_string or length
    drawable_ids: list[list[int]] = field(default_factory=list)  # by token, of a sampler that `keeps_drawable`
    top_tokens: list[TopTokens] = field(default_factory=list)  # by token, with `sampler.top_logprobs`

    def stop(self, finish: str) -> None:
        """End the completion before the token limit."""
        self.finish = finish


SamplesByPrompt = list[list[Sample]]


class Sampler(ABC):
    """Draws completions from policies; `prepare` comes before `sample`, `close` frees all that it holds."""

    def __init__(self, config: SamplerConfig, *, keeps_drawable: bool = False) -> None:
        """keeps_drawable: samples list the tokens that could be drawn in the place of each of theirs."""
        self.config = config
        self.keeps_drawable = keeps_drawable
        self.stage_timer: TimeStage = lambda stage: nullcontext()
        self.report: ReportTokens = lambda tokens: None

    def time_stages_with(self, stage_timer: TimeStage) -> None:
        """Measure stages, such as the start of an engine, with `stage_timer(name)`."""
        self.stage_timer = stage_timer

    @contextmanager
    def reporting(self, report: ReportTokens) -> Iterator[None]:
        """Report tokens as they are drawn, while the block runs."""
        outer_report = self.report
        self.report = report
        try:
            yield
        finally:
            self.report = outer_report

    def warm_up(self) -> None:  # noqa: B027
        """Start work in the background that needs no model, such as imports."""

    def prepare(self, policy: Policy, max_length: int) -> None:  # noqa: B027
        """Sample from this policy next; max_length: tokens of prompt and completion together."""

    def start(self, policy: Policy, prompts: Prompts) -> None:  # noqa: B027
        """Start processes that `sample` would start, so that their start is not measured as sampling."""

    @abstractmethod
    def sample(self, policy: Policy, prompts: Prompts, n: int, seed: Seed, stop: Sequence[str]) -> SamplesByPrompt:
        """Draw n completions of each prompt, a function of the weights and the arguments.

        stop: texts that end a completion. TOPRError if an engine breaks.
        """

    @abstractmethod
    def made_by(self) -> dict[str, str]:
        """Name program, versions and device; stored with the completions, no part of their key."""

    def without_mismatch(self) -> "Sampler":
        """Return a sampler for completions not trained on: without `sampler.mismatch`, noting nothing beside them."""
        return self

    def sleep(self) -> None:  # noqa: B027
        """Free memory that is quick to free: the policy trains next and is sampled from again afterwards."""

    def release(self) -> None:
        """Free memory for training that samples nothing; afterwards the policy is sampled from again."""
        self.close()

    def close(self) -> None:  # noqa: B027
        """End all processes and free their memory; `prepare` and `sample` start them again."""
