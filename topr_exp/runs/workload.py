"""Completions, examples and updates of an iteration: planned for the forecast, refused where there can't be as many."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from topr_exp.composition.set_sizes import largest_set_size
from topr_exp.config.groups import PAIRS_PER_PROBLEM, unit_of
from topr_exp.runs.forecast import SCORING_COST, TRAINING_COST, PlannedWork
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config


def check_supply(config: Config, *, questions: int | None, imported: int | None = None) -> None:
    """Raise TOPRError for settings that so many questions to sample, and imported completions, can't meet.

    None: not known yet. A question is a problem, or a solution to verify; there are fewer if some are too long.
    """
    prompts = config.schedule.prompts
    if prompts is not None and questions is not None and prompts > questions:
        raise TOPRError(f"schedule.prompts={prompts}: there are {questions} problems to sample")
    sampled_examples = 0.0
    if config.needs_sampling:
        sampled_examples = math.inf if questions is None else questions * examples_per_question(config)
    imported_examples = 0.0
    if config.data.completions is not None:
        imported_examples = math.inf  # not known: of pairs, until their verdicts are
        if imported is not None and unit_of(config.algo.needs) != "pairs":
            imported_examples = imported
    check_set_size(config, sampled_examples, imported_examples)
    check_update_counts(config, sampled_examples + imported_examples)


def examples_per_question(config: Config) -> int:
    """The most examples of a question's sampled completions: of pairs as many as its completions can make."""
    n = config.data.n
    if unit_of(config.algo.needs) != "pairs":
        return n
    most_pairs = 0
    for share in config.compose.possible_shares(n):
        correct = round(share * n)
        most_pairs = max(most_pairs, correct * (n - correct))
    return min(PAIRS_PER_PROBLEM, most_pairs)


def check_set_size(config: Config, sampled: float, imported: float) -> None:
    """Raise TOPRError for a set with an exact share that is larger than the completions at hand (inf: not known)."""
    compose = config.compose
    is_unknown = math.isinf(sampled) and math.isinf(imported)
    if compose.n_examples is None or is_unknown:
        return
    largest = math.inf
    if config.data.completions is not None and compose.mix is not None:
        largest = largest_set_size(imported, sampled, compose.mix)
    elif compose.name == "proportion":
        largest = sampled + imported
    if compose.n_examples > largest:
        share = "compose.positive_share" if compose.mix is None else "compose.mix"
        raise TOPRError(
            f"compose.n_examples must be null or at most {largest:.0f}, the completions that there are for {share}; "
            f"got {compose.n_examples}"
        )


def check_update_counts(config: Config, examples: float) -> None:
    """Raise TOPRError for a warm-up that no iteration outlasts, or weights kept of a later update than there is.

    examples: the most of an iteration's set (inf: not known).
    """
    n_examples = config.compose.n_examples
    if n_examples is not None:
        if unit_of(config.algo.needs) == "groups":
            n_examples -= n_examples % config.data.n  # whole ones
        examples = min(examples, n_examples)
    updates = updates_of_iteration(config, examples)
    warmup_steps = config.optim.warmup_steps
    if warmup_steps >= updates:
        raise TOPRError(
            f"optim.warmup_steps must be below {updates}, the most updates of an iteration; got {warmup_steps}"
        )
    weights_every = config.checkpoint.weights_every
    if weights_every is not None and weights_every > updates:
        raise TOPRError(
            f"checkpoint.weights_every must be null or at most {updates}, the most updates of an iteration; "
            f"got {weights_every}"
        )


def updates_of_iteration(config: Config, examples: float) -> float:
    """Return the updates of an iteration; examples: of its set, inf if not known."""
    schedule = config.schedule
    if schedule.in_rounds:
        return (schedule.rounds or 0) * (schedule.updates or 0)
    if math.isinf(examples):
        return examples
    return config.optim.epochs * math.ceil(examples / config.optim.batch_size)


# ---- work to come


def plan_work(
    config: Config, *, iterations: int, train_questions: int, test_questions: int, imported: int
) -> list[PlannedWork]:
    """Return the foreseeable work of a run: an evaluation of the base model, then each iteration.

    imported: completions of a log.
    """
    evaluation_work = PlannedWork("evaluation", "sampling", test_questions * config.data.eval_n)
    sampled = 0
    if config.needs_sampling:
        sampled = (config.schedule.prompts or train_questions) * config.data.n
    if config.schedule.in_rounds:
        training_work = [work_of_rounds(config, sampled, test_questions)]
    else:
        training_work = offline_work(config, sampled, imported, test_questions)
    work_of_iteration = [*training_work, evaluation_work]
    return [evaluation_work, *work_of_iteration * iterations]


def offline_work(config: Config, sampled: int, imported: int, test_questions: int) -> list[PlannedWork]:
    """Return the work of an iteration on a fixed set of sampled and imported completions."""
    candidates = sampled + imported
    scored = 0 if config.mu in ("sampler", "none") else candidates
    examples = min(config.compose.n_examples or candidates, candidates)
    completions_per_update = min(config.optim.batch_size, examples)
    if unit_of(config.algo.needs) == "pairs":
        completions_per_update *= 2
    cost = TRAINING_COST * completions_per_update + evaluation_cost_per_update(config, test_questions)
    return [
        PlannedWork("sampling", "sampling", sampled),
        PlannedWork("scoring", "scoring", scored, SCORING_COST),
        PlannedWork("training", "training", int(updates_of_iteration(config, examples)), cost),
    ]


def work_of_rounds(config: Config, sampled: int, test_questions: int) -> PlannedWork:
    """Return the work of an iteration that samples so many completions a round, scores them and trains, in turns."""
    assert config.schedule.updates is not None
    sampled_per_update = sampled / config.schedule.updates
    cost = (1 + SCORING_COST) * sampled_per_update + TRAINING_COST * config.optim.batch_size
    cost += evaluation_cost_per_update(config, test_questions)
    return PlannedWork("training", "training", int(updates_of_iteration(config, sampled)), cost)


def evaluation_cost_per_update(config: Config, test_questions: int) -> float:
    """Return the cost of evaluations during training, per update: the completions that they sample."""
    every = config.evaluation.every
    if every is None:
        return 0.0
    question_count = min(config.evaluation.problems or test_questions, test_questions)
    return question_count * config.data.eval_n / every
