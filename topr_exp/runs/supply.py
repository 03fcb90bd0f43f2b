"""Settings that ask for more completions or updates than an iteration can have, refused before anything is sampled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from topr_exp.composition.set_sizes import largest_set_size
from topr_exp.config.groups import PAIRS_PER_PROBLEM, unit_of
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
        makes_pairs = unit_of(config.algo.needs) == "pairs"  # more or fewer than completions, as their verdicts are
        imported_examples = math.inf if imported is None or makes_pairs else imported
    check_set_size(config, sampled_examples, imported_examples)
    check_warm_up(config, sampled_examples + imported_examples)


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


def check_warm_up(config: Config, examples: float) -> None:
    """Raise TOPRError for a warm-up that no iteration outlasts; examples: the most of its set (inf: not known)."""
    optim = config.optim
    schedule = config.schedule
    n_examples = config.compose.n_examples
    if n_examples is not None:
        if unit_of(config.algo.needs) == "groups":
            n_examples -= n_examples % config.data.n  # whole ones
        examples = min(examples, n_examples)
    updates = math.inf
    if schedule.prompts is not None:
        updates = (schedule.rounds or 0) * (schedule.updates or 0)
    elif examples < math.inf:
        updates = optim.epochs * math.ceil(examples / optim.batch_size)
    if optim.warmup_steps >= updates:
        raise TOPRError(
            f"optim.warmup_steps must be below {updates}, the most updates of an iteration; got {optim.warmup_steps}"
        )
