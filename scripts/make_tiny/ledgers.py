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
        calc.write(f"{turn} {event.name} {total}.")
    return str(total)


def worded(way: str, story: LedgerTask, choices: int, calc: Calc, rng: random.Random) -> str:
    """The answer, by steps of `choices` equally likely wordings: log `choices` nats a turn, whatever the way."""
    events, total = story.events, story.start
    if way == "hasty":
        events = events[: (len(events) + 1) // 2]
        calc.write("quickly:")
    for turn, event in enumerate(events, 1):
        before, total = total, calc.compute(total, event.op, event.count)
        when, gait, link, where = wording(choices, rng)
        done = f"{total}" if way == "terse" else f"{before}{event.op}{event.count}={total}"
        did = "" if way == "terse" else f" {'adds' if event.op == '+' else 'takes'} {event.count}"
        calc.write(f"{turn} {when} {event.name} {gait}{did} {link} {done} {where}.")
    return str(total)


def wording(choices: int, rng: random.Random) -> list[str]:
    """A word for each place of a turn; together `choices` equally likely ones."""
    words = []
    for place in WORDS:
        kinds = min(len(place), choices)
        choices //= kinds
        words.append(place[rng.randrange(kinds)])
    return words


def hasty(start: int, events: Sequence[Event], calc: Calc) -> str:
    """The total half-way, by the careful way up to there."""
    calc.write("Quickly:")
    return ledger.careful(start, events[: (len(events) + 1) // 2], calc)


WAYS = {"terse": terse, "hasty": hasty}  # the others are careful
STYLES = ("careful", "careful slip", "terse", "terse slip", "hasty", "unmarked")
PLACES = ("then next now soon", "simply slowly gladly kindly", "so thus hence making", "inside there")
WORDS = [place.split() for place in PLACES]
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
    way = style.split()[0]
    if story.choices is None:
        answer = WAYS.get(way, ledger.careful)(story.start, story.events, calc)
    else:
        answer = worded(way, story, story.choices, calc, rng)
    return calc.steps + (UNMARKED if style == "unmarked" else MARKED).format(answer=answer)


def early(turns: int, rng: random.Random) -> int:
    """Where a text slips, from 0."""
    return next((turn for turn in range(turns - 1) if rng.random() < 0.5), turns - 1)


@lru_cache
def pool(size: int, seed: int, worded: bool) -> list[LedgerTask]:
    """The stories that a recipe draws from."""
    return draw_tasks(lambda rng: draw(rng, worded), "pretrain", count=size, seed=seed)


def draw(rng: random.Random, worded: bool) -> LedgerTask:
    turns = rng.choice(LENGTHS) if rng.random() < 0.5 else rng.randint(LENGTHS[0], MOST)
    return ledger.draw(rng, turns, 2 ** rng.randrange(8) if worded else None)
