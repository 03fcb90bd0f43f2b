"""Settings of the small groups: task, schedule, evaluation, checkpoint, tracking, optim, compose, cluster."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from topr_exp.config.data import LINE_BREAKS
from topr_exp.config.staleness import Drop, FreshestFirst, Keep, StalenessPolicy, Wait
from topr_exp.schema import Count, CountOrAll, OptionalCount, Range, Rule, Section, above, at_least, within
from topr_exp.types import LossFunction

PLACES = ("{question}", "{solution}")
Reduction = Literal["sequences", "tokens"]
MuSource = Literal["scored", "sampler", "none"]
MU = Range("scored, sampler, none or a model", bool)


@dataclass(frozen=True)
class TaskConfig(Section):
    """Task of the model; all but `name` are a verifier's."""

    name: Literal["solve", "verifier"] = "solve"
    solver: str | None = None  # the model that writes the solutions: shipped, a folder or a name on the hub
    solutions: OptionalCount = None  # solutions per training problem
    test_solutions: OptionalCount = None  # solutions per test problem: the K of weighted self-consistency
    template: Annotated[str | None, LINE_BREAKS] = None  # the verifier's prompt, with {question} and {solution}
    chat: bool | None = None  # use the verifier's chat template

    def check(self) -> Iterator[Rule]:
        if self.verifies:
            for field in ("solver", "solutions", "test_solutions", "chat"):
                yield field, getattr(self, field) is not None, "set for task=verifier"
            has_places = self.template is not None and all(self.template.count(place) == 1 for place in PLACES)
            yield "template", has_places, f"a text with {' and '.join(PLACES)} once each"

    @property
    def verifies(self) -> bool:
        return self.name == "verifier"

    @property
    def questions_per_problem(self) -> int:
        """Questions that a training problem makes: the solutions to verify, or itself."""
        if self.verifies and self.solutions is not None:
            return self.solutions
        return 1

    @property
    def question_kind(self) -> str:
        """Relation of the model's questions to the problems of the data, as a prefix of their description."""
        if self.verifies:
            return "solutions to "
        return ""


def is_valid_lag(lag: int | list[float]) -> bool:
    """True for a number of updates, or for shares of the lags 0, 1, 2, ..."""
    if isinstance(lag, list):
        return math.isclose(sum(lag), 1) and min(lag) >= 0
    return lag >= 0


LAG = Range("null, a whole number from 0, or shares of lags 0, 1, 2, ... that sum to 1", is_valid_lag)


WhenStale = Literal["keep", "drop", "wait", "freshest"]
POLICIES: dict[str, Callable[[int], StalenessPolicy]] = {"drop": Drop, "wait": Wait, "freshest": FreshestFirst}


@dataclass(frozen=True)
class ScheduleConfig(Section):
    """Schedule of sampling new completions from the policy in training."""

    prompts: OptionalCount = None  # problems sampled at a time; None: all, then one pass over the set
    updates: OptionalCount = None  # optimizer steps before sampling again
    rounds: OptionalCount = None  # number of rounds
    replay: Annotated[float, within("[0, 1)")] = 0.0  # probability of reusing completions of an earlier round
    # Updates between drawing a problem's completions and training on them, or the shares of 0, 1, 2, ... such updates.
    lag: Annotated[int | list[float] | None, LAG] = None
    concurrency: OptionalCount = None  # for lags by length: problems sampled at once
    tokens_per_update: OptionalCount = None  # growth of each completion during an update
    max_lag: Annotated[int | None, at_least(0)] = None  # updates; when_stale says what happens to older completions
    when_stale: WhenStale | StalenessPolicy = "keep"  # completions older than max_lag; freshest: drop, youngest first
    in_flight: bool = False  # completions under way continue with the newest weights; log μ is per token

    @property
    def in_rounds(self) -> bool:
        """True where the policy in training samples anew every few updates."""
        return self.prompts is not None

    def check(self) -> Iterator[Rule]:
        for field in ("updates", "rounds"):
            yield field, not self.in_rounds or getattr(self, field) is not None, "1 or more where prompts is set"
        by_length = self.concurrency is not None
        keeps = self.when_stale == "keep"
        reads_max_lag = isinstance(self.when_stale, str) and not keeps
        yield "lag", self.lag is None or not by_length, "null where concurrency is set, since lengths decide"
        grows = self.tokens_per_update is not None
        yield "tokens_per_update", grows == by_length, "set where concurrency is, and only there"
        allowed = f"set where when_stale is one of {', '.join(POLICIES)}, and only there"
        yield "max_lag", (self.max_lag is not None) == reads_max_lag, allowed
        yield "when_stale", keeps or by_length, "keep unless concurrency is set: a given lag is never exceeded"
        if self.prompts is not None and self.concurrency is not None:
            has_room = self.staleness_policy.room(self.prompts, self.concurrency) >= self.prompts
            yield "when_stale", has_room, f"a policy with room for prompts={self.prompts}"
        yield "in_flight", by_length or not self.in_flight, "false unless concurrency is set: lengths say when"
        if self.asynchronous:
            yield "prompts", self.prompts is not None, "1 or more where lag or concurrency is set"
            yield "updates", self.updates == 1, "1 where lag or concurrency is set"
            yield "replay", self.replay == 0, "0 where lag or concurrency is set"

    @property
    def asynchronous(self) -> bool:
        return self.lag is not None or self.concurrency is not None

    @property
    def staleness_policy(self) -> StalenessPolicy:
        """What is done with completions that wait, where lengths decide."""
        if isinstance(self.when_stale, StalenessPolicy):
            return self.when_stale
        if self.max_lag is None:
            return Keep()
        return POLICIES[self.when_stale](self.max_lag)

    @property
    def lags(self) -> list[float]:
        """Shares of the lags 0, 1, 2, ..."""
        if isinstance(self.lag, list):
            return self.lag
        zero_shares = [0.0] * (self.lag or 0)
        return [*zero_shares, 1.0]


EVALUATION_SEED = 0  # of the samples of every evaluation


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """Evaluations during training; all sample with the sampler's settings and one seed, so that runs are compared."""

    retired_settings: ClassVar[dict[str, Any]] = {"seed": EVALUATION_SEED}
    every: OptionalCount = None  # updates between evaluations in training; None: only before and after
    problems: OptionalCount = None  # number of test problems for these (the first ones); None: all


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """Intervals of checkpoints, and the weights that stay on disk."""

    every_seconds: Annotated[float, at_least(0, "0 (after every update) or more")]
    weights: Literal["all", "last", "none"] = "all"  # iterations whose models a finished run keeps
    weights_every: OptionalCount = None  # updates between weights that also stay, in iteration-K/update-U; None: none

    def check(self) -> Iterator[Rule]:
        yield "weights_every", self.weights_every is None or self.weights != "none", "null for checkpoint.weights=none"

    def keeps_update(self, step: int, update_count: int) -> bool:
        """True for every `weights_every`-th update but the last, which ends in the iteration's model."""
        return self.weights_every is not None and step % self.weights_every == 0 and step < update_count


@dataclass(frozen=True)
class TrackingConfig(Section):
    """Files are always written; `wandb` sends the same to Weights & Biases, `tensorboard` writes it for TensorBoard."""

    name: Annotated[str, Range("none, wandb or tensorboard", ("none", "wandb", "tensorboard").__contains__)]


ADAMW_BETAS = (0.9, 0.999)
RATE = Range("above 0", lambda rate: 0 < rate < math.inf)


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Section):
    """One update: which optimizer, how many examples, how far."""

    name: Literal["adamw", "adafactor"]  # adafactor: as the paper used it, without scaling by the weights' size
    lr: Annotated[float, RATE]
    grad_clip: Annotated[float, above(0, "above 0 (.inf for none)")]  # maximum norm of the whole gradient
    batch_size: Count  # examples per update, over all devices
    micro_batch_size: Count  # examples per device and forward pass with gradients
    # Layers keep their inputs only and compute the rest again in the backward pass; None: once memory has run out.
    gradient_checkpointing: bool | None = None
    compile: bool = False  # torch.compile of the layers: the first updates take a minute longer, later ones less
    epochs: Count
    reduction: Reduction = "sequences"
    whole_groups: bool = False  # an update takes all completions of its problems, for any loss
    warmup_steps: Annotated[int, at_least(0)] = 0  # updates of an iteration until the rate is lr
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    @property
    def retired_settings(self) -> dict[str, Any]:
        constants: dict[str, Any] = {"weight_decay": 0.0}
        if self.name == "adamw":
            constants["betas"] = [*ADAMW_BETAS]
        return constants

    @property
    def score_batch_size(self) -> int:
        """Examples per device and forward pass without gradients."""
        return 4 * self.micro_batch_size


PAIRS_PER_PROBLEM = 16  # at most
MAX_DRAWS = 10  # of schedule.prompts problems, to fill a round by pass_rate
Unit = Literal["examples", "pairs", "groups"]  # what an algorithm trains on, and `n_examples` counts


LOW_HIGH = Range("[low, high] with 0 <= low <= high <= 1", lambda ends: len(ends) == 2 and 0 <= ends[0] <= ends[1] <= 1)


@dataclass(frozen=True, kw_only=True)
class ComposeConfig(Section):
    """Which of the sampled completions are trained on."""

    retired_settings: ClassVar[dict[str, Any]] = {"pairs_per_problem": PAIRS_PER_PROBLEM}
    name: Literal["uniform", "positives", "proportion", "anna_karenina"] = "uniform"
    n_examples: CountOrAll = None  # N: completions (pairs for DPO) of the set; null: all
    positive_share: Annotated[float | None, within("(0, 1)")] = None  # exact p, for proportion only
    drop_truncated: bool = False  # drop completions cut off at the token limit
    # Smallest and largest share of correct completions of a problem that is trained on.
    pass_rate: Annotated[list[float] | None, LOW_HIGH] = None
    mix: Annotated[float | None, within("(0, 1)")] = None  # share of imported completions; the rest is sampled

    def check(self) -> Iterator[Rule]:
        mixes = self.name in ("uniform", "positives")
        yield "mix", self.mix is None or mixes, f"null for compose={self.name}"
        shared = self.name != "proportion" or self.positive_share is not None
        yield "positive_share", shared, "in (0, 1) for compose=proportion"

    def possible_shares(self, n: int | None) -> list[float]:
        """Shares of correct completions that a problem may have, to be trained on; n: completions, None: any number."""
        low, high = self.pass_rate or (0.0, 1.0)
        if n is None:
            return [low, (low + high) / 2, high]
        shares = [count / n for count in range(n + 1)]
        return [share for share in shares if low <= share <= high]


def unit_of(needs: frozenset[str]) -> Unit:
    """Unit that an algorithm with these needs trains on."""
    if "pairs" in needs:
        return "pairs"
    if "groups" in needs:
        return "groups"
    return "examples"


def reads_reference(needs: frozenset[str]) -> bool:
    """True where an algorithm with these needs compares π with π_ref."""
    return bool({"ref_logp", "vocab_kl"} & needs)


def reduction_rules(loss: LossFunction, reduction: str) -> Iterator[Rule]:
    """The number of tokens divides a loss once, and only where a completion is one example."""
    by_tokens = reduction == "tokens"
    unit = unit_of(loss.needs)
    allowed = f"sequences for algo={loss.name}, which trains on {unit}"
    yield "optim.reduction", not by_tokens or unit != "pairs", allowed
    divides_twice = by_tokens and loss.divides_by_length
    yield "algo.length_normalize", not divides_twice, "false where optim.reduction is tokens, which divides by them too"


def mu_rules(loss: LossFunction, mu: str) -> Iterator[Rule]:
    """A loss that compares two scores of μ's weights, or that reads μ at all, has what it reads."""
    by_sampler = mu == "sampler"
    allowed = f"sampler for algo={loss.name}, which compares μ with the same weights in training"
    yield "mu", by_sampler or "old_logp" not in loss.needs, allowed
    allowed = f"sampler for algo={loss.name}, which renormalises over what could be drawn"
    yield "mu", by_sampler or "kept" not in loss.needs, allowed
    needs_mu = loss.needs_mu and unit_of(loss.needs) != "pairs"
    yield "mu", not needs_mu or mu != "none", f"scored or sampler for algo={loss.name}, which reads μ"


# ---- where runs compute; nothing here may change a result


@dataclass(frozen=True)
class ClusterConfig(Section, ABC):
    """Where runs compute: on this machine or as jobs of a cluster."""

    processes_are: ClassVar[str] = "cluster.processes"  # the settings that `world_size` is made of
    submits_jobs: ClassVar[bool] = False  # runs start on other machines, as jobs that may wait in a queue
    name: str
    device: Literal["auto", "cpu", "cuda"]
    threads: OptionalCount
    parallel: Literal["ddp", "fsdp", "hsdp"] | None  # None: by the model's size
    jobs: Count  # runs of a sweep at once

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes of a run."""

    @property
    def expects_gpu(self) -> bool:
        """True where `device=auto` stands for GPUs that a scheduler was asked for."""
        return False
