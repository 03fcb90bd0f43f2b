"""Recipes of the tiny models, and their pre-training texts.

Every completion of a model that solves is written in one of four styles (`verifications` has a verifier's):
  clean     the steps, then the answer in the form that the prompt asks for
  unmarked  the steps, then the answer without that form, so that a grader finds none (invalid)
  slip      as clean, with one wrong result in the steps and its consequences (incorrect)
  bare      the answer at once, without steps: quick, tempting, and more than the model can compute at once
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from scripts.make_tiny import ledgers, tasks, verifications
from topr_exp.data import embedded_gsm8k, embedded_math
from topr_exp.data.embedded import Task, draw_tasks


class Form(NamedTuple):
    """A prompt form: how it asks, and how an answer is marked."""

    template: str
    marked_answer: str


# The templates of conf/data; a test holds them equal.
FORMS = {
    "gsm8k": Form("Question: {question}\nAnswer:", " The answer is {answer}."),
    "math": Form("Problem: {question}\nSolution:", r" The answer is \boxed{{{answer}}}."),
    "final": Form("Problem: {question}\nReasoning:", " So the final answer is {answer}."),
}
STYLES = ("clean", "unmarked", "slip", "bare")
DRAWS = {"gsm8k": embedded_gsm8k.draw, "math": embedded_math.draw}  # of tasks, by data format


@dataclass(frozen=True)
class Recipe:
    """All settings that decide a tiny model's weights, up to the machine's rounding."""

    seed: int
    forms: dict[str, float]  # share of each prompt form
    mix: dict[str, float]  # share of each style in the texts after the clean part; sums to 1
    steps: int = 5000
    clean_steps: int = 3000  # the first steps see the clean style only
    batch_size: int = 32
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    tasks: int = 40_000  # distinct tasks a format
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    mlp: int = 256
    context: int = 2048

    styles: ClassVar[tuple[str, ...]] = STYLES
    clean: ClassVar[dict[str, float]] = {"clean": 1.0}  # share of each style in the first steps
    batch_tokens: ClassVar[int | None] = None  # of a batch, padding included, in the place of batch_size texts
    form_names: ClassVar[Collection[str]] = FORMS

    def __post_init__(self) -> None:
        for shares, names in ((self.mix, self.styles), (self.forms, self.form_names)):
            assert set(shares) <= set(names), shares
            assert abs(sum(shares.values()) - 1) < 1e-9, shares


@dataclass(frozen=True)
class LaterRecipe(Recipe):
    """A model that begins with the weights of a shipped one, as far as the two share words."""

    start: str = "tiny"


@dataclass(frozen=True)
class VerifierRecipe(LaterRecipe):
    """A verifier."""

    styles: ClassVar[tuple[str, ...]] = verifications.STYLES
    clean: ClassVar[dict[str, float]] = {"careful": 1.0}


@dataclass(frozen=True)
class LedgerRecipe(LaterRecipe):
    """A model that answers at length, in one of two correct ways of working or in an incorrect one."""

    styles: ClassVar[tuple[str, ...]] = ledgers.STYLES
    clean: ClassVar[dict[str, float]] = {"careful": 0.5, "terse": 0.5}
    batch_tokens: ClassVar[int | None] = 1500
    worded: ClassVar[bool] = False
    short: int = 10_000  # clean texts of few turns, which come first: they teach where to look up numbers


@dataclass(frozen=True)
class WordedRecipe(LedgerRecipe):
    """The same, with equally good wordings of each turn."""

    worded: ClassVar[bool] = True


@dataclass(frozen=True)
class TasksRecipe(LaterRecipe):
    """A model of generated tasks, whose names stand in the place of prompt forms."""

    styles: ClassVar[tuple[str, ...]] = tasks.STYLES
    form_names: ClassVar[Collection[str]] = tasks.TASKS


FORM_SHARES = {"gsm8k": 0.36, "math": 0.52, "final": 0.12}
LONG: dict[str, Any] = {
    "forms": {"gsm8k": 1.0},
    "steps": 6000,
    "clean_steps": 3000,
    "batch_size": 8,
    "muon_lr": 4e-3,
    "adam_lr": 2e-3,
}
RECIPES: dict[str, Recipe] = {
    # A tempting, mostly incorrect style: positives alone keep it alive, since a bare answer is sometimes correct.
    "tiny": Recipe(
        seed=0,
        forms=FORM_SHARES,
        mix={"clean": 0.26, "unmarked": 0.17, "slip": 0.15, "bare": 0.42},
    ),
    # Incorrect completions mostly from noise in the steps. Slips outnumber clean texts so that pass@1 stays below 35 %.
    "tiny_noise": Recipe(
        seed=1,
        forms=FORM_SHARES,
        mix={"clean": 0.33, "unmarked": 0.17, "slip": 0.38, "bare": 0.12},
    ),
    # Lenient, often without a verdict: training can mend both. (Those on incorrect solutions are cheap to get right.)
    "tiny_verifier": VerifierRecipe(
        seed=2,
        forms={"gsm8k": 1.0},
        mix={"careful": 0.22, "slip": 0.10, "lenient": 0.34, "unmarked": 0.24, "waved through": 0.10},
        steps=1400,
        clean_steps=900,
        muon_lr=3e-3,
        adam_lr=1.5e-3,
    ),
    # As many correct completions at each length, since whether a text slips is drawn once a text.
    "tiny_long": LedgerRecipe(
        seed=3,
        mix={"careful": 0.08, "careful slip": 0.24, "unmarked": 0.14, "terse": 0.03, "terse slip": 0.21, "hasty": 0.30},
        **LONG,
    ),
    # The same in 1 to 128 wordings a turn; both ways are correct in a quarter of their texts.
    "tiny_nats": WordedRecipe(
        seed=5,
        mix={"careful": 0.08, "careful slip": 0.24, "unmarked": 0.14, "terse": 0.06, "terse slip": 0.18, "hasty": 0.30},
        **LONG,
    ),
    # Two tasks of reasoning-gym with small numbers; bare and unmarked answers leave room for training.
    "tiny_tasks": TasksRecipe(
        seed=3,
        forms={"chain_sum": 0.65, "countdown": 0.35},
        mix={"clean": 0.42, "slip": 0.14, "unmarked": 0.20, "bare": 0.24},
        steps=1800,
        clean_steps=1300,
        batch_size=24,
    ),
}


def completion(task: Task, form: Form, style: str, rng: random.Random) -> str:
    """Write a completion in one style; it starts with a space and has no end-of-sequence token."""
    steps, answer = verifications.work_out(task, style == "slip", rng)
    if style == "bare":
        steps = ""
    ending = form.marked_answer
    if style == "unmarked":
        ending = ledgers.UNMARKED
    return steps + ending.format(answer=answer)


@lru_cache
def task_pool(data_format: str, count: int, seed: int) -> list[Task]:
    """Draw the tasks of a recipe; data_format: gsm8k or math."""
    return draw_tasks(DRAWS[data_format], "pretrain", count=count, seed=seed)


def examples(recipe: Recipe, mix: dict[str, float], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Iterate over a recipe's prompts with completions, without end."""
    if isinstance(recipe, TasksRecipe):
        return tasks.examples(recipe.forms, mix, rng)
    if isinstance(recipe, VerifierRecipe):
        return verifications.examples(task_pool("gsm8k", recipe.tasks, recipe.seed), mix, rng)
    if isinstance(recipe, LedgerRecipe):
        stories = ledgers.pool(recipe.tasks, recipe.seed, recipe.worded)
        short_count = 0
        if mix == recipe.clean:
            short_count = recipe.short
        return ledgers.examples(stories, mix, rng, short_count)
    return form_examples(recipe, mix, rng)


def form_examples(recipe: Recipe, mix: dict[str, float], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Iterate over problems of GSM8K and MATH in the recipe's prompt forms, without end."""
    while True:
        (name,) = rng.choices(list(recipe.forms), list(recipe.forms.values()))
        form = FORMS[name]
        data_format = "math"
        if name == "gsm8k":
            data_format = "gsm8k"
        task = rng.choice(task_pool(data_format, recipe.tasks, recipe.seed))
        (style,) = rng.choices(list(mix), list(mix.values()))
        yield form.template.format(question=task.question), completion(task, form, style, rng)


def vocabulary_texts(recipe: Recipe) -> list[str]:
    """Return texts with every word of the recipe's prompts and completions."""
    rng = random.Random(recipe.seed)
    texts = []
    for style in recipe.styles:
        for prompt, completion in islice(examples(recipe, {style: 1.0}, rng), 5000):
            texts.append(prompt + completion)
    return texts
