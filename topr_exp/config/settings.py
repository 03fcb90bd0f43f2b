"""All settings of a run in one object, with a section for each group of `conf/`, and the rules among them.

The values stand in the YAMLs, the names, types and ranges in the dataclasses of this package.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, get_args

from topr_exp.algorithms.base import Advantage, Loss
from topr_exp.config import groups
from topr_exp.config.data import ANSWER_GRADERS, DataConfig, Grading, Reward
from topr_exp.config.model import ModelConfig, SamplerConfig
from topr_exp.config.run_folders import NAME, folder_of, run_name
from topr_exp.config.yamls import loss_of_own_yaml
from topr_exp.schema import FINITE, Count, Rule, Section, Seed, identity, show, within

SOLVE_TASK = groups.TaskConfig()


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """The settings of one run, checked."""

    name: Annotated[str, NAME]
    seed: Seed
    baseline: Annotated[float | None, FINITE] = None
    effective_positive: Annotated[float | None, within("[0, 1]")] = None
    iterations: Count = 1
    mu: Annotated[str, groups.MU] = "scored"
    dry_run: bool
    overwrite: bool = False
    output_dir: str
    task: groups.TaskConfig = SOLVE_TASK
    algo: Loss
    data: DataConfig
    model: ModelConfig
    sampler: SamplerConfig
    compose: groups.ComposeConfig
    optim: groups.OptimConfig
    schedule: groups.ScheduleConfig
    evaluation: groups.EvaluationConfig
    checkpoint: groups.CheckpointConfig
    cluster: groups.ClusterConfig
    tracking: groups.TrackingConfig

    def __post_init__(self) -> None:
        """Expand `~`, which transformers does where it saves a model, and pathlib does not."""
        expanded = os.path.expanduser(self.output_dir)
        object.__setattr__(self, "output_dir", expanded)
        super().__post_init__()

    def check(self) -> Iterator[Rule]:
        no_home = self.output_dir.startswith("~")
        yield "output_dir", not no_home, "a folder (`~` stands for a home folder that there is; else write ./~)"
        for rules in RULES:
            yield from rules(self)
        processes = self.cluster.world_size
        batch_size = self.optim.batch_size
        if batch_size % processes:
            divisors = ", ".join(str(count) for count in range(1, batch_size + 1) if batch_size % count == 0)
            dividend = f"optim.batch_size={batch_size}, of which every process takes an equal part ({divisors})"
            raise ValueError(f"{self.cluster.processes_are} must divide {dividend}; got {processes}")

    @property
    def reward(self) -> Reward:
        """The rewards: the data's if set, else those of the algorithm's paper (1 and -1 where it names none)."""
        return self.data.reward or self.algo.rewards

    @property
    def needs_sampling(self) -> bool:
        """True where completions to train on are sampled, in place of a log or beside it."""
        return self.data.completions is None or self.compose.mix is not None

    @property
    def reference_model(self) -> ModelConfig:
        """The model that π_ref is: the one that model.reference names, else the model in training as it was."""
        if not self.model.reference:
            return self.model
        return replace(self.model, path=self.model.reference, revision=None)

    @property
    def solver_model(self) -> ModelConfig:
        """The model that writes the solutions which a verifier reads."""
        assert self.task.solver is not None
        return self.untrained_model(self.task.solver)

    @property
    def mu_path(self) -> str | None:
        """The path of the model that scores log μ of imported completions; None: as the word `mu` says."""
        if self.mu in get_args(groups.MuSource):
            return None
        return self.mu

    def untrained_model(self, path: str) -> ModelConfig:
        """Another model with the settings of the trained one."""
        return replace(self.model, path=path, revision=None, lora=None)

    @property
    def grading(self) -> Grading:
        """Settings of grading the completions; a verifier's verdict is compared with the truth."""
        if self.task.verifies:
            return Grading("verdict")
        return self.data.grading(graded=self.reward == "graded")

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that decide the result, as plain values: they name the run, and a stored run is compared in them."""
        return identity(self)

    @property
    def folder(self) -> Path:
        """The run's folder: the same for the same experiment, however it is started."""
        return self.folder_in_sweep()

    def folder_in_sweep(self, swept_keys: Iterable[str] = ()) -> Path:
        """The run's folder; the name of a new one shows the values of some keys without a default."""
        name = run_name(self, loss_of_own_yaml(self.algo), swept_keys)
        return folder_of(Path(self.output_dir) / self.name, name)

    @property
    def store(self) -> Path:
        """The folder of the store that all runs share."""
        return Path(self.output_dir) / "store"


# Values by key that some runs need.
WITH_TRUNCATED = {"compose.drop_truncated": False}  # to train on a whole group or round
# To know more of what the sampler drew from than the probabilities of the sampled tokens.
VISIBLE_SAMPLER = {"data.completions": None, "schedule.in_flight": False}
NOTING_SAMPLERS = ("hf", "vllm")
NO_MISMATCH = {"sampler.mismatch.weights": "none", "sampler.mismatch.logits_noise": 0}
ON_POLICY = NO_MISMATCH | {
    "schedule.updates": 1, "schedule.replay": 0, "sampler.temperature": 1, "sampler.top_p": 1, "sampler.top_k": 0,
    "compose.pass_rate": None,
}  # fmt: skip


NUMERIC_REWARDS = ("graded", "given")  # rewards that are any numbers


def fixed_values(config: Config, values: Mapping[str, Any], why: str) -> Iterator[Rule]:
    """The rules that settings have these values by key; why: ends the line of an error."""
    for key, value in values.items():
        yield key, attrgetter(key)(config) == value, f"{show(value)} {why}"


def reward_rules(config: Config) -> Iterator[Rule]:
    """Numbers as rewards come from a grader of the user's own, or with the completions."""
    reward = config.reward
    yield "data.reward", reward not in NUMERIC_REWARDS or not config.task.verifies, "pm1 or zero_one for task=verifier"
    allowed = "pm1, zero_one or graded, unless data.completions alone is trained on"
    yield "data.reward", not config.needs_sampling or reward != "given", allowed
    gives_numbers = config.data.grader_name not in ANSWER_GRADERS
    allowed = "pm1 or zero_one, unless data.grader._target_=package.module.name gives numbers"
    yield "data.reward", gives_numbers or reward != "graded", allowed


def weighting_rules(config: Config) -> Iterator[Rule]:
    """`baseline` and `effective_positive` determine each other (Eq. 12); not every loss reads them."""
    baseline = config.baseline
    effective = config.effective_positive
    algo = config.algo
    in_range = baseline is None or config.reward in NUMERIC_REWARDS or -1 <= baseline <= 1
    yield "baseline", in_range, "in [-1, 1]"
    allowed = f"null where baseline={show(baseline)} is set: each sets the other (Eq. 12)"
    yield "effective_positive", None in (baseline, effective), allowed
    kind: Any = getattr(algo, "advantage", None)
    loss_name = f"algo={algo.name}"
    if kind in get_args(Advantage) and kind != "reward":
        loss_name += f" with algo.advantage={kind}"
    allowed = f"null for {loss_name}, where a constant baseline cancels or only scales the loss"
    yield "baseline", baseline is None or algo.uses_baseline, allowed
    if effective is not None:
        yield "effective_positive", algo.uses_baseline, allowed
        allowed = "null for compose=positives, whose share of positives is 1; set baseline instead"
        yield "effective_positive", config.compose.name != "positives", allowed
        allowed = f"null for data.reward={config.reward}: Eq. 12 is of rewards 1 and -1; set baseline instead"
        yield "effective_positive", config.reward == "pm1", allowed
        allowed = "null where schedule.prompts is set: it needs a fixed training set; set baseline instead"
        yield "effective_positive", not config.schedule.in_rounds, allowed


def unit_rules(config: Config) -> Iterator[Rule]:
    """Pairs and groups are whole and have completions to compare; tokens divide only a loss that allows it.

    The unit of an algorithm is what it trains on: examples, pairs or groups.
    """
    algo = config.algo
    n = config.data.n
    unit = groups.unit_of(algo.needs)
    why_unit = f"for algo={algo.name}, which trains on {unit}"
    needs_groups = unit == "groups"
    if unit != "examples":
        yield from fixed_values(config, {"compose.name": "uniform", "compose.mix": None}, why_unit)
    if needs_groups:
        yield from fixed_values(config, WITH_TRUNCATED, why_unit)
        n_examples = config.compose.n_examples
        yield "compose.n_examples", n_examples is None or n_examples >= n, f"null or data.n={n} or more {why_unit}"
    has_sampled_pairs = unit == "pairs" and config.needs_sampling  # a log has as many as it has
    compares = has_sampled_pairs or bool({"groups", "group_rewards"} & algo.needs)
    yield "data.n", not compares or n >= 2, f"2 or more for algo={algo.name}, which compares"
    whole_groups = config.optim.whole_groups
    why_groups = "where optim.whole_groups is true" if whole_groups else why_unit
    divides = config.optim.batch_size % n == 0
    yield "optim.batch_size", divides or not (needs_groups or whole_groups), f"a multiple of data.n={n} {why_groups}"
    yield "optim.whole_groups", not whole_groups or unit != "pairs", f"false {why_unit}"
    if whole_groups and not needs_groups:
        all_completions = {"compose.name": "uniform", "compose.n_examples": None, "compose.mix": None, **WITH_TRUNCATED}
        yield from fixed_values(config, all_completions, why_groups)
    yield from groups.reduction_rules(algo, config.optim.reduction)


def possible_shares(config: Config) -> list[float]:
    """The shares of correct completions that a problem may have, to be trained on; a log has any number of each."""
    n = config.data.n if config.data.completions is None else None
    return config.compose.possible_shares(n)


def possible_kinds(config: Config) -> set[str]:
    """The kinds of completions that a training set may have, correct and incorrect, whatever the model answers."""
    compose = config.compose
    shares = possible_shares(config)
    kinds = set[str]()
    if any(share > 0 for share in shares):
        kinds.add("correct")
    if any(share < 1 for share in shares) and compose.name != "positives":
        kinds.add("incorrect")
    if compose.name == "proportion" and compose.n_examples is not None and compose.positive_share is not None:
        n_positive = round(compose.positive_share * compose.n_examples)
        if n_positive == 0:
            kinds.discard("correct")
        if n_positive == compose.n_examples:
            kinds.discard("incorrect")
    return kinds


def needs_mixed_verdicts(config: Config) -> bool:
    """True for a loss to which a problem's completions say nothing if all are correct, or all are not."""
    algo = config.algo
    if groups.unit_of(algo.needs) == "pairs":
        return True
    is_moved_by_reference = groups.reads_reference(algo.needs) and config.model.reference is not None
    has_numeric_rewards = config.reward in NUMERIC_REWARDS
    return algo.needs_unequal_rewards and not has_numeric_rewards and not is_moved_by_reference


def pass_rate_rules(config: Config) -> Iterator[Rule]:
    """Some problem can have the completions that the composition and the loss need."""
    algo = config.algo
    compose = config.compose
    key = "compose.pass_rate"
    shares = possible_shares(config)
    around = "[low, high] around a share"
    if config.data.completions is None:
        around += f" k/{config.data.n} of data.n={config.data.n} completions"
    yield key, bool(shares), around
    why = f"for compose={compose.name}"
    has_correct = any(share > 0 for share in shares)
    yield key, has_correct or compose.name != "positives", f"{around}, above 0 {why}"
    has_both = has_correct and any(share < 1 for share in shares)
    yield key, has_both or compose.name != "proportion", f"{around}, one above 0 and one below 1 {why}"
    is_mixed = any(0 < share < 1 for share in shares)
    allowed = f"{around}, above 0 and below 1 for algo={algo.name}, which compares"
    yield key, is_mixed or not needs_mixed_verdicts(config), allowed


def greedy_rules(config: Config) -> Iterator[Rule]:
    """A loss that compares has different completions of a problem."""
    sampler = config.sampler
    is_greedy = sampler.name in NOTING_SAMPLERS and sampler.top_k == 1 and sampler.mismatch.logits_noise == 0
    draws_one = is_greedy and config.data.completions is None
    why = f"for algo={config.algo.name}, which compares: else a problem's completions are all the same"
    yield "sampler.top_k", not (draws_one and needs_mixed_verdicts(config)), f"0 or 2 or more {why}"


def weight_rules(config: Config) -> Iterator[Rule]:
    """Some completion of a training set has a weight, also of a set of one kind alone; p̃ needs both kinds."""
    algo = config.algo
    compose = config.compose
    kinds = possible_kinds(config)
    key = "compose.name"
    if compose.name == "proportion":
        key = "compose.positive_share"
    elif compose.pass_rate is not None:
        key = "compose.pass_rate"
    if config.effective_positive is not None:
        yield key, len(kinds) == 2, "such that there are completions of both kinds where effective_positive is set"
    elif config.reward not in NUMERIC_REWARDS and not algo.needs & {"pairs", "group_rewards"}:
        rewards = {"correct": 1.0, "incorrect": -1.0 if config.reward == "pm1" else 0.0}
        weights = [rewards[kind] - (config.baseline or 0.0) for kind in kinds]
        allowed = f"such that some completions have a weight by algo={algo.name} and data.reward={config.reward}"
        if config.baseline is not None:
            key = "baseline"
            allowed = "other than the reward of all completions that are trained on, whose weight it would make 0"
        yield key, any(map(algo.has_weight, weights)), allowed


def import_rules(config: Config) -> Iterator[Rule]:
    """Imported completions may bring their own log μ, any number a problem, and are trained on once."""
    has_log = config.data.completions is not None
    in_rounds = config.schedule.in_rounds
    yield "compose.mix", has_log or config.compose.mix is None, "null unless data.completions is set"
    yield "mu", config.mu != "none" or not in_rounds, "scored or sampler where schedule.prompts is set"
    yield from groups.mu_rules(config.algo, config.mu)
    allowed = "scored, sampler or none, or with data.completions a model that scores them"
    yield "mu", has_log or config.mu_path is None, allowed
    if has_log:
        single_pass = {"iterations": 1, "schedule.prompts": None}
        yield from fixed_values(config, single_pass, "where data.completions is set")
        yield "data.completions", not config.task.verifies, "null for task=verifier, which writes what it trains on"


def round_rules(config: Config) -> Iterator[Rule]:
    """A round needs only what its few completions have, and trains on all of them."""
    schedule = config.schedule
    data = config.data
    compose = config.compose
    optim = config.optim
    if schedule.prompts is None:
        return
    assert schedule.updates is not None
    questions = config.task.questions_per_problem
    limit = f"data.train_problems={data.train_problems}"
    if questions > 1:
        limit += f" times task.solutions={questions}"
    has_too_few = data.train_problems is not None and schedule.prompts > data.train_problems * questions
    yield "schedule.prompts", not has_too_few, f"at most {limit}"
    allowed = f"null for algo={config.algo.name}: a round may have no pairs of a correct and an incorrect completion"
    yield "schedule.prompts", groups.unit_of(config.algo.needs) != "pairs", allowed
    why = "where schedule.prompts is set: a round has few completions"
    yield from fixed_values(config, {"compose.name": "uniform", **WITH_TRUNCATED}, why)
    sampled_count = schedule.prompts * data.n
    trained_count = min(sampled_count, compose.n_examples or sampled_count)
    smallest = -(-trained_count // schedule.updates)  # rounded up
    purpose = f"so that schedule.updates={schedule.updates} train on the {trained_count} completions of a round"
    yield "optim.batch_size", optim.batch_size >= smallest, f"{smallest} or more, {purpose}"
    if schedule.in_flight:
        why = "where schedule.in_flight is true: one process draws the rest of each completion"
        single_process = {"sampler.name": "hf", "cluster.world_size": 1, "compose.pass_rate": None}
        yield from fixed_values(config, single_process, why)


def sampling_rules(config: Config) -> Iterator[Rule]:
    """Only transformers can be changed on purpose; shipped samplers alone note what they draw from; limits of vLLM."""
    sampler = config.sampler
    top_logprobs = sampler.top_logprobs
    can_note = sampler.name in NOTING_SAMPLERS
    if sampler.name != "hf":
        why = f"for sampler={sampler.name}: sampler=hf alone can be changed"
        yield from fixed_values(config, NO_MISMATCH, why)
    is_hot_for_vllm = sampler.name == "vllm" and sampler.temperature > 2
    yield "sampler.temperature", not is_hot_for_vllm, "in (0, 2] for sampler=vllm"
    if "head" in config.algo.needs:
        why = f"for algo={config.algo.name}, which reads the sampler's distribution (algo.center_scores)"
        yield "sampler.name", can_note, f"hf or vllm {why}"
        yield from fixed_values(config, {"mu": "sampler"} | VISIBLE_SAMPLER, why)
        yield "sampler.top_logprobs", top_logprobs is not None, f"1 or more {why}: how many of the likeliest tokens"
    if top_logprobs is not None:
        why = f"null for sampler={sampler.name}: sampler=hf and sampler=vllm alone note them"
        yield "sampler.top_logprobs", can_note, why
        yield "sampler.top_logprobs", not config.schedule.in_flight, "null where schedule.in_flight is true"
    if "kept" in config.algo.needs:
        why = f"for algo={config.algo.name}, which renormalises over what could be drawn"
        yield "sampler.name", can_note, f"hf or vllm {why}"
        yield from fixed_values(config, VISIBLE_SAMPLER, why)
        yield "sampler.top_k", sampler.has_truncation, f"1 or more, or sampler.top_p below 1, {why}: else all can"
        is_bounded = sampler.name != "vllm" or sampler.top_k > 0
        yield "sampler.top_k", is_bounded, f"1 or more with sampler=vllm {why}"


def on_policy_rules(config: Config) -> Iterator[Rule]:
    """Losses that are right on-policy only are trained so."""
    if "on_policy" in config.algo.needs:
        why = f"for algo={config.algo.name}, which is right on-policy only (schedule=on_policy)"
        yield from fixed_values(config, ON_POLICY, why)
        yield "schedule.lag", config.schedule.lags == [1], f"null or 0 {why}"
        yield "schedule.concurrency", config.schedule.concurrency is None, f"null {why}"


RULES = (
    reward_rules, weighting_rules, unit_rules, pass_rate_rules, greedy_rules, weight_rules, import_rules, round_rules,
    sampling_rules, on_policy_rules
)  # fmt: skip


KEYS_OF_LOGS = ("data.columns", "data.skip_malformed", "data.completion_limit")
KEYS_OF_VERIFIERS = ("task.solver", "task.solutions", "task.test_solutions", "task.template", "task.chat")
KEYS_OF_ROUNDS = ("schedule.updates", "schedule.rounds", "schedule.replay")


def unread(config: Config) -> list[str]:
    """List the settings that are set and that nothing reads: harmless, but perhaps a slip."""
    verifies = config.task.verifies
    in_rounds = config.schedule.in_rounds
    has_log = config.data.completions is not None
    is_read = {
        "model.reference": groups.reads_reference(config.algo.needs),
        "data.chat_options": config.data.chat or bool(config.task.chat) or has_log,
        "data.threshold": config.data.grader_name not in ANSWER_GRADERS or config.reward == "given",
        **dict.fromkeys(KEYS_OF_LOGS, has_log),
        "compose.positive_share": config.compose.name == "proportion",
        "evaluation.problems": config.evaluation.every is not None,
        **dict.fromkeys((*NO_MISMATCH, "sampler.top_logprobs"), config.needs_sampling),
        "optim.epochs": not in_rounds,
        **dict.fromkeys(KEYS_OF_VERIFIERS, verifies),
        **dict.fromkeys(KEYS_OF_ROUNDS, in_rounds),
    }
    defaults = NO_MISMATCH | {"data.threshold": Grading.threshold, "optim.epochs": 1}  # of the others null or false
    unread_values = {key: attrgetter(key)(config) for key, key_is_read in is_read.items() if not key_is_read}
    return [key for key, value in unread_values.items() if value not in (None, defaults.get(key, False))]
