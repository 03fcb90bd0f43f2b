"""Rules about settings of several groups; each raises ValueError, with one line, for settings that contradict it."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from topr_exp.algorithms.base import Advantage
from topr_exp.config.cluster import check_parts
from topr_exp.config.data import AnswerFormat, Grading, Reward
from topr_exp.config.groups import MAX_DRAWS, ComposeName, Reduction, unit_of
from topr_exp.config.model import Precision
from topr_exp.config.schema import show

if TYPE_CHECKING:
    from topr_exp.config.settings import Config

LONGEST_NAME = 255  # bytes: what Linux and its file systems take
TAKEN = ("store", "check")  # folders of output_dir that are no sweep's


def check_rules(config: Config) -> None:
    """Apply all rules, the simplest first."""
    check_name(config)
    check_output_dir(config)
    check_rewards(config)
    check_weighting(config)
    check_unit(config)
    check_reduction(config)
    check_imported(config)
    check_rounds(config)
    check_on_policy(config)
    check_warmup(config)
    check_parts(config.cluster.processes_are, config.cluster.world_size, config.optim.batch_size)


def unread(config: Config) -> list[str]:
    """List the settings that are set and that nothing reads: harmless, but perhaps a slip."""
    verifies, rounds = config.task.verifies, config.schedule.prompts is not None
    reads = {
        "model.reference": bool({"ref_logp", "vocab_kl"} & config.algo.needs),
        "model.float32_head": config.model.dtype is not Precision.float32,
        "data.fewshot_file": config.data.shots > 0,
        "data.threshold": config.data.grader_name not in AnswerFormat.__members__,
        "compose.positive_share": config.compose.name is ComposeName.proportion,
        "compose.mix": config.data.completions is not None,
        "compose.max_draws": rounds and config.compose.pass_rate is not None,
        "evaluation.problems": config.evaluation.every is not None,
        **{f"tracking.{key}": config.tracking.name == "wandb" for key in ("project", "entity", "group", "job_type")},
        **{f"task.{key}": verifies for key in ("solver", "solutions", "test_solutions", "template", "chat")},
        **{f"schedule.{key}": rounds for key in ("updates", "rounds", "replay")},
    }
    neutral = {"data.threshold": Grading.threshold, "compose.max_draws": MAX_DRAWS}
    values = {key: attrgetter(key)(config) for key, read in reads.items() if not read}
    return [key for key, value in values.items() if value not in (None, neutral.get(key, False))]


def check_name(config: Config) -> None:
    safe = all(ch.isalnum() or ch in "._-" for ch in config.name) and config.name[:1].isalnum()
    if not safe or len(config.name.encode()) > 100:
        raise ValueError(
            "name must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit; "
            f"got {config.name or 'nothing'}"
        )
    if config.name in TAKEN:
        raise ValueError(f"name={config.name}: that folder of output_dir has another use; take another name")


def check_output_dir(config: Config) -> None:
    for part in config.output_dir.split("/"):
        if (size := len(part.encode())) > LONGEST_NAME:
            raise ValueError(
                f"output_dir: {part[:20]}... has {size} bytes; a folder's name must be at most {LONGEST_NAME} long"
            )


def check_rewards(config: Config) -> None:
    """Require a grader that returns numbers where they are the rewards."""
    data = config.data
    if data.reward is not Reward.graded:
        return
    if config.task.verifies:
        raise ValueError("data.reward=graded: a verdict of task=verifier is right or wrong; use pm1 or zero_one")
    if data.grader_name in AnswerFormat.__members__:
        raise ValueError(
            "data.reward=graded needs a grader of your own that returns numbers (data.grader=package.module:function); "
            f"got {data.grader_name}"
        )


def check_weighting(config: Config) -> None:
    """`baseline` and `effective_positive` determine each other (Eq. 12): allow one, where the loss reads it."""
    baseline, effective = config.baseline, config.effective_positive
    if baseline is not None and config.reward is not Reward.graded and not -1 <= baseline <= 1:
        raise ValueError(f"baseline must be in [-1, 1]; got {baseline:g}")
    if baseline is not None and effective is not None:
        raise ValueError(
            f"baseline={baseline:g} and effective_positive={effective:g} exclude each other: "
            "each sets the other (Eq. 12); give one"
        )
    for key, value in (("baseline", baseline), ("effective_positive", effective)):
        if value is not None and not config.algo.uses_baseline:
            kind = getattr(config.algo, "advantage", Advantage.reward)
            of_group = "" if kind is Advantage.reward else f" with algo.advantage={kind.name}"
            raise ValueError(
                f"{key}={value:g} means nothing for algo={config.algo.name}{of_group}, where a constant baseline "
                f"cancels or only scales the loss; leave {key} out"
            )
    if effective is None:
        return
    if config.compose.name is ComposeName.positives:
        raise ValueError(
            f"effective_positive={effective:g} can't be reached with compose=positives, "
            "whose share of positives is 1 whatever the baseline; set baseline instead"
        )
    if config.reward is not Reward.pm1:
        raise ValueError(
            f"effective_positive={effective:g} is of rewards 1 and -1 (Eq. 12), and data.reward is "
            f"{config.reward.name}; set baseline instead"
        )
    if config.schedule.prompts is not None:
        raise ValueError(
            f"effective_positive={effective:g} needs a fixed training set; set baseline where schedule.prompts is set"
        )


def check_unit(config: Config) -> None:
    """Keep the pairs or groups that the algorithm trains on whole."""
    algo, n, compose = config.algo, config.data.n, config.compose
    kind = unit_of(algo.needs)
    given = [*compose.left_out()] if kind == "groups" else []
    if kind != "examples":
        given += [("mix", compose.mix)] if compose.mix is not None else []
        given += [("name", compose.name.name)] if compose.name is not ComposeName.uniform else []
    if given:
        key, value = given[-1]
        raise ValueError(
            f"compose.{key}={show(value)} picks single completions, but algo={algo.name} trains on {kind}; leave it out"
        )
    if {"groups", "group_rewards"} & algo.needs and n < 2:
        raise ValueError(f"data.n must be 2 or more for algo={algo.name}, which compares; got {n}")
    if kind == "groups" and config.optim.batch_size % n:
        raise ValueError(
            f"optim.batch_size must be a multiple of data.n={n} for algo={algo.name}, which trains on whole groups; "
            f"got {config.optim.batch_size}"
        )


def check_reduction(config: Config) -> None:
    """Divide by the number of tokens once, and of single responses only."""
    if config.optim.reduction is not Reduction.tokens:
        return
    name = config.algo.name
    if unit_of(config.algo.needs) == "pairs":
        raise ValueError(f"optim.reduction must be sequences for algo={name}, which trains on pairs; got tokens")
    if getattr(config.algo, "length_normalize", False):
        raise ValueError(
            f"optim.reduction=tokens divides by the number of tokens, and so does algo.length_normalize=true for "
            f"algo={name}; set one of them otherwise"
        )


def check_imported(config: Config) -> None:
    """Allow imported completions only where sampled ones are trained on once."""
    source, in_rounds = config.data.completions, config.schedule.prompts is not None
    if config.mu.name == "sampler" and (source is not None or in_rounds):
        raise ValueError(
            "mu must be scored where data.completions is set (those bring their own) and on-policy; got sampler"
        )
    if source is None:
        return
    if in_rounds or config.iterations > 1:
        raise ValueError(
            f"data.completions={source} is trained on instead of sampling, or beside it (compose.mix); it goes with "
            "iterations=1 and schedule=offline only"
        )
    if unit_of(config.algo.needs) == "groups":
        raise ValueError(
            f"data.completions={source} may hold any number of completions a problem; "
            f"algo={config.algo.name} needs whole groups of data.n"
        )
    if config.task.verifies:
        raise ValueError(
            f"data.completions={source} holds answers to the problems, which task=verifier does not "
            "train on: it verifies what task.solver writes"
        )


def check_rounds(config: Config) -> None:
    """Require of a round only what its few completions have, and train on all of them."""
    schedule, data, compose = config.schedule, config.data, config.compose
    if schedule.prompts is None:
        return
    assert schedule.updates is not None
    if config.optim.epochs != 1:
        raise ValueError(f"optim.epochs must be 1 where schedule.prompts is set; got {config.optim.epochs}")
    if data.train_problems and schedule.prompts > data.train_problems:
        raise ValueError(
            f"schedule.prompts must be at most data.train_problems={data.train_problems}; got {schedule.prompts}"
        )
    if unit_of(config.algo.needs) == "pairs":
        raise ValueError(
            f"algo={config.algo.name} trains on pairs of a correct and an incorrect completion, which a round may "
            "not have; it needs schedule=offline"
        )
    if compose.name is not ComposeName.uniform:
        raise ValueError(
            f"compose={compose.name.name} may find nothing in a round's few completions; compose must be "
            "uniform where schedule.prompts is set"
        )
    for key, value in compose.left_out():
        raise ValueError(
            f"compose.{key}={show(value)} may leave nothing of a round's few completions; leave it out where "
            "schedule.prompts is set"
        )
    sampled = schedule.prompts * data.n
    if compose.n_examples is None and schedule.updates * config.optim.batch_size < sampled:
        raise ValueError(
            f"optim.batch_size must be {-(-sampled // schedule.updates)} or more, so that schedule.updates="
            f"{schedule.updates} train on the {sampled} completions of a round (schedule.prompts="
            f"{schedule.prompts} times data.n={data.n}); got {config.optim.batch_size}"
        )


def check_on_policy(config: Config) -> None:
    """Train losses that are right on-policy only on-policy."""
    schedule, sampler = config.schedule, config.sampler
    if "on_policy" not in config.algo.needs:
        return
    if schedule.updates != 1 or schedule.replay > 0:
        raise ValueError(
            f"algo={config.algo.name} is right on-policy only: it needs schedule=on_policy with schedule.updates=1 "
            f"and schedule.replay=0; got updates={show(schedule.updates)}, replay={schedule.replay:g}"
        )
    if (sampler.temperature, sampler.top_p, sampler.top_k) != (1.0, 1.0, 0):
        raise ValueError(
            f"algo={config.algo.name} is right on-policy only: it needs completions of the policy itself, "
            "sampler.temperature=1, sampler.top_p=1 and sampler.top_k=0; got temperature="
            f"{sampler.temperature:g}, top_p={sampler.top_p:g}, top_k={sampler.top_k}"
        )


def check_warmup(config: Config) -> None:
    """Keep warm-up shorter than an iteration, where the number of updates is known; training checks it again."""
    steps, most = config.optim.warmup_steps, most_updates(config)
    if most is not None and steps >= most:
        raise ValueError(f"optim.warmup_steps must be below {most}, the most updates of an iteration; got {steps}")


def most_updates(config: Config) -> int | None:
    """The most updates that an iteration can have; None where the data decide."""
    schedule, optim, data = config.schedule, config.optim, config.data
    if schedule.prompts is not None:
        assert schedule.rounds is not None
        assert schedule.updates is not None
        return schedule.rounds * schedule.updates
    if data.train_problems is None or data.completions is not None or config.task.verifies:
        return None
    if unit_of(config.algo.needs) == "pairs":
        return None
    sampled = data.train_problems * data.n
    examples = min(sampled, config.compose.n_examples or sampled)
    return -(-examples // optim.batch_size) * optim.epochs
