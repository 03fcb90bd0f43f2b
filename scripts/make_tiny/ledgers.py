"""Pre-training texts of `tiny_long`: a story of many turns, and a completion in one of six styles.

  careful, careful slip
            each event repeated with its sum; the same with one wrong result and its consequences
  terse, terse slip
            the totals alone; the same with one wrong result and its consequences
  hasty     as careful, but only to half of the turns: shorter, tempting, and correct where the other half cancels out
  unmarked  as careful, then the answer without the form that a grader reads (invalid)

A text slips at most once, and early: in turn 1 with probability 1/2, in turn 2 with probability 1/4, and so on. So as
many long texts as short ones are correct, and a model needs only the number of the turn to slip as often.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count

from topr_exp.data import ledger
from topr_exp.data.embedded import Calc, draw_tasks
from topr_exp.data.ledger import Event, LedgerTask

# The template of data=ledger; a test holds them equal.
TEMPLATE = "Question: {question}\nAnswer:"
MARKED, UNMARKED = " The answer is {answer}.", " So it is {answer}."
VERBS = {"+": "adds", "-": "takes"}


def terse(start: int, events: Sequence[Event], calc: Calc) -> str:
    """Solve by steps that give each event's name and the total after it; returns the answer."""
    total = start
    for turn, event in enumerate(events, 1):
        total = calc.compute(total, event.op, event.count)
        calc.write(f"{turn} {event.name} {total}.")
    return str(total)


def worded(way: str, story: LedgerTask, choices: int, calc: Calc, rng: random.Random) -> str:
    """Solve by steps of `choices` equally likely wordings, log `choices` nats a turn; returns the answer."""
    events: Sequence[Event] = story.events
    total = story.start
    if way == "hasty":
        events = first_half(events)
        calc.write("quickly:")
    for turn, event in enumerate(events, 1):
        previous_total = total
        total = calc.compute(total, event.op, event.count)
        time, manner, link, place = wording(choices, rng)
        action, result = "", str(total)
        if way != "terse":
            verb = VERBS[event.op]
            action, result = f" {verb} {event.count}", f"{previous_total}{event.op}{event.count}={total}"
        calc.write(f"{turn} {time} {event.name} {manner}{action} {link} {result} {place}.")
    return str(total)


def first_half(events: Sequence[Event]) -> Sequence[Event]:
    return events[: (len(events) + 1) // 2]


def wording(choices: int, rng: random.Random) -> list[str]:
    """Draw a word of each list, one of `choices` equally likely wordings."""
    words = []
    for alternatives in WORDS:
        count = min(len(alternatives), choices)
        choices //= count
        words.append(alternatives[rng.randrange(count)])
    return words


def hasty(start: int, events: Sequence[Event], calc: Calc) -> str:
    """Solve the first half of the turns carefully; returns the total there."""
    calc.write("Quickly:")
    return ledger.solve_by_turns(start, first_half(events), calc)


WAYS = {"terse": terse, "hasty": hasty}  # the others are careful
STYLES = ("careful", "careful slip", "terse", "terse slip", "hasty", "unmarked")
WORDS = (
    ("then", "next", "now", "soon"),
    ("simply", "slowly", "gladly", "kindly"),
    ("so", "thus", "hence", "making"),
    ("inside", "there"),
)
MAX_SHORT_TURNS = 5
LENGTHS = (2, 4, 10, 22)  # turns of half of the stories; the others have any number up to MAX_TURNS
MAX_TURNS = 24


def examples(
    stories: list[LedgerTask], mix: dict[str, float], rng: random.Random, short: int
) -> Iterator[tuple[str, str]]:
    """Iterate over prompts with completions, without end; the first `short` ones are of few turns."""
    styles, shares = list(mix), list(mix.values())
    short_stories = [story for story in stories if len(story.events) <= MAX_SHORT_TURNS]
    for index in count():
        candidates = stories
        if index < short:
            candidates = short_stories
        story = rng.choice(candidates)
        (style,) = rng.choices(styles, shares)
        yield TEMPLATE.format(question=story.question), completion(story, style, rng)


def completion(story: LedgerTask, style: str, rng: random.Random) -> str:
    """Write a completion in one style; it starts with a space and has no end-of-sequence token."""
    calc = Calc()
    if style.endswith("slip"):
        calc = Calc(early_turn(len(story.events), rng), rng)
    way = style.split()[0]
    if story.choices is None:
        solve = WAYS.get(way, ledger.solve_by_turns)
        answer = solve(story.start, story.events, calc)
    else:
        answer = worded(way, story, story.choices, calc, rng)
    ending = MARKED
    if style == "unmarked":
        ending = UNMARKED
    return calc.steps + ending.format(answer=answer)


def early_turn(turns: int, rng: random.Random) -> int:
    """Draw the turn in which a text slips, from 0."""
    turn = 0
    while turn < turns - 1 and rng.random() >= 0.5:
        turn += 1
    return turn


@lru_cache
def pool(size: int, seed: int, has_wordings: bool) -> list[LedgerTask]:
    """Draw the stories of a recipe."""
    return draw_tasks(lambda rng: draw(rng, has_wordings), "pretrain", count=size, seed=seed)


def draw(rng: random.Random, has_wordings: bool) -> LedgerTask:
    if rng.random() < 0.5:
        turns = rng.choice(LENGTHS)
    else:
        turns = rng.randint(LENGTHS[0], MAX_TURNS)
    choices = None
    if has_wordings:
        choices = 2 ** rng.randrange(8)
    return ledger.draw(rng, turns, choices)
