"""What `tiny_long` was pre-trained on: a story of many turns, and a completion in one of six styles.

  careful, careful slip
            each event said again, with its sum; the same with one wrong result and all that follows from it
  terse, terse slip
            the totals alone; the same with one wrong result and all that follows from it
  hasty     as careful, but only to half of the turns: shorter, tempting, and right where the others cancel out
  unmarked  as careful, then the answer without the form that a grader reads (invalid)

A text slips once or not at all, and early: in turn 1 half of the time, in turn 2 half of the rest, and so on. So as
many long texts as short ones are right, and a model needs nothing but the number of the turn to slip as often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

from topr_exp.data import ledger
from topr_exp.data.embedded import Calc, draw_tasks
from topr_exp.data.ledger import Event, LedgerTask

# That of data=ledger; a test holds them equal.
TEMPLATE = "Question: {question}\nAnswer:"
MARKED, UNMARKED = " The answer is {answer}.", " So it is {answer}."


def terse(start: int, events: Sequence[Event], calc: Calc) -> str:
    """The answer, by steps that say who came and the total after it, worked out in the head."""
    total = start
    for turn, event in enumerate(events, 1):
        total = calc.compute(total, event.op, event.count)
        calc.steps += f" {turn} {event.name} {total}."
    return str(total)


def hasty(start: int, events: Sequence[Event], calc: Calc) -> str:
    """The total half-way, by the careful way up to there."""
    calc.steps += " Quickly:"
    return ledger.careful(start, events[: (len(events) + 1) // 2], calc)


WAYS = {
    "careful": ledger.careful,
    "careful slip": ledger.careful,
    "terse": terse,
    "terse slip": terse,
    "hasty": hasty,
    "unmarked": ledger.careful,
}
STYLES = tuple(WAYS)
FEW = 5  # turns
LENGTHS, MOST = (2, 4, 10, 22), 24  # turns of one half of the stories; those of the other half have any number


def examples(
    stories: list[LedgerTask], mix: dict[str, float], rng: random.Random, short: int
) -> Iterator[tuple[str, str]]:
    """Prompts with completions, without end; the first `short` ones are of few turns."""
    few = [story for story in stories if len(story.events) <= FEW]
    for number in count():
        story = rng.choice(few if number < short else stories)
        style = rng.choices(list(mix), list(mix.values()))[0]
        yield TEMPLATE.format(question=story.question), completion(story, style, rng)


def completion(story: LedgerTask, style: str, rng: random.Random) -> str:
    """A completion in one style; it begins with a space and leaves out the end-of-sequence token."""
    calc = Calc(early(len(story.events), rng), rng) if style.endswith("slip") else Calc()
    answer = WAYS[style](story.start, story.events, calc)
    return calc.steps + (UNMARKED if style == "unmarked" else MARKED).format(answer=answer)


def early(turns: int, rng: random.Random) -> int:
    """Where a text slips, from 0."""
    return next((turn for turn in range(turns - 1) if rng.random() < 0.5), turns - 1)


@lru_cache
def pool(size: int, seed: int) -> list[LedgerTask]:
    """The stories that a recipe draws from."""
    return draw_tasks(draw, "pretrain", size, seed)


def draw(rng: random.Random) -> LedgerTask:
    return ledger.draw(rng, rng.choice(LENGTHS) if rng.random() < 0.5 else rng.randint(LENGTHS[0], MOST))
