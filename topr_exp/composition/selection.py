"""Which completions are trained on: uniform, positives, proportion, Anna Karenina, whole groups (TOPR, section 4).

Everything here is a pure function of the candidates' columns, the settings, the seed and the iteration; the rows that
come back are sorted, since the order of training is drawn elsewhere. Pairs for DPO are in `training_set`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import Candidates, random_generator, solved_between
from topr_exp.config.groups import ComposeConfig, Unit
from topr_exp.types import TOPRError

Rows = NDArray[np.int64]
Words = tuple[str, str, str]  # the setting that asks for exact shares of two kinds of completions, and their names


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of the candidates that are trained on, in order, and what they are."""

    examples: Rows  # [N, 1], or [N, 2] (correct, incorrect) for pairs
    description: dict[str, Any]  # in numbers, ready for JSON: see `describe`


def select_examples(
    candidates: Candidates, config: ComposeConfig, seed: int, iteration: int, of: str = ""
) -> Selection:
    """The training set of single completions that `config` asks for; of: the round that it is of, else nothing.

    uniform: N of all. positives: N of the correct ones. proportion: round(pN) correct ones and the rest incorrect,
    without `n_examples` as many as there are for that share. anna_karenina: each problem's first correct completion (N
    of these where there are more), then random incorrect ones up to N. N above what there is takes all, with a note;
    proportion and `mix` (imported completions among sampled ones) refuse: they promise a share.

    Raises TOPRError when there is nothing to train on or too little of one kind.
    """
    rows = usable_rows(candidates, config)
    positive = candidates.positive[rows]
    rng = random_generator(seed, iteration, f"compose examples{of}")
    n, note = config.n_examples, None
    if config.mix is not None:
        chosen, available, note = select_mix(rng, candidates, rows, config)
    elif config.name == "uniform":
        chosen, available = sample_rows(rng, rows, n), len(rows)
    elif config.name == "positives":
        if not positive.any():
            raise TOPRError(f"compose=positives: none of the {len(rows)} completions is correct")
        chosen, available = sample_rows(rng, rows[positive], n), int(positive.sum())
    elif config.name == "proportion":
        assert config.positive_share is not None
        chosen, available = sample_proportion(rng, rows[positive], rows[~positive], config.positive_share, n)
    else:
        positives = rows[positive]
        _, first = np.unique(candidates.problem[positives], return_index=True)
        firsts, negatives = positives[first], rows[~positive]
        chosen = sample_rows(rng, firsts, n)
        chosen = np.concatenate([chosen, sample_rows(rng, negatives, None if n is None else n - len(chosen))])
        available = len(firsts) + len(negatives)
        if n is not None and n <= len(firsts):
            note = f"compose.n_examples={n} leaves no room for incorrect completions: {len(firsts)} problems are solved"
    chosen.sort()
    return describe(candidates, chosen[:, None], config, "examples", available, note)


def select_mix(
    rng: np.random.Generator, candidates: Candidates, rows: Rows, config: ComposeConfig
) -> tuple[Rows, int, str]:
    """round(mix N) imported completions and the rest sampled ones, the largest set there is, and a line on it."""
    assert config.mix is not None
    assert candidates.imported is not None, "mix needs the column `imported`"
    if config.name == "positives":
        rows = rows[candidates.positive[rows]]
    imported = candidates.imported[rows]
    words = ("compose.mix", "imported", "sampled")
    chosen, largest = sample_proportion(rng, rows[imported], rows[~imported], config.mix, config.n_examples, words)
    count = int(candidates.imported[chosen].sum())
    note = f"compose.mix={config.mix:g}: {count} imported and {len(chosen) - count} sampled completions"
    return chosen, largest, note


def select_groups(candidates: Candidates, config: ComposeConfig, seed: int, iteration: int, of: str = "") -> Selection:
    """Whole problems with all their completions, drawn at random until no other would fit into N completions.

    A problem with a single completion is left out: group baselines need two. Raises TOPRError when no problem fits.
    """
    rows = usable_rows(candidates, config)
    index, group, size = np.unique(candidates.problem, return_inverse=True, return_counts=True)
    usable = np.flatnonzero((size >= 2) & np.isin(index, candidates.problem[rows]))
    if not len(usable):
        raise TOPRError(f"no problem has two or more completions ({len(index)} problems, {len(group)} completions)")
    order = random_generator(seed, iteration, f"compose groups{of}").permutation(usable)
    total = np.cumsum(size[order])
    limit = config.n_examples if config.n_examples is not None else int(total[-1])
    # The first that does not fit ends the draw: skipping it for a smaller one would favour small groups.
    picked = order[: np.searchsorted(total, limit, side="right")]
    if not len(picked):
        raise TOPRError(
            f"compose.n_examples={limit} is less than the {size[order[0]]} completions of one problem, "
            "and this algorithm trains on whole groups"
        )
    rows = np.flatnonzero(np.isin(group, picked))
    return describe(candidates, rows[:, None], config, "groups", int(total[-1]))


def usable_rows(candidates: Candidates, config: ComposeConfig) -> Rows:
    """The rows that may be chosen; TOPRError where there are none."""
    total = len(candidates.problem)
    kept = np.ones(total, dtype=bool)
    if config.drop_truncated:
        assert candidates.truncated is not None, "drop_truncated needs the column `truncated`"
        kept &= ~candidates.truncated
        if not kept.any():
            raise TOPRError(
                f"compose.drop_truncated=true leaves nothing: all {total} completions were cut off by the token limit "
                "(raise sampler.max_new_tokens)"
            )
    if config.pass_rate is not None:
        kept &= solved_between(candidates, *config.pass_rate)
        if not kept.any():
            raise TOPRError(f"compose.pass_rate={config.pass_rate} leaves nothing: no problem is solved so often")
    if config.duplicates == "drop":
        assert candidates.duplicate is not None, "duplicates=drop needs the column `duplicate`"
        kept &= ~candidates.duplicate  # something is left: the first of each problem is no duplicate
    return np.flatnonzero(kept)


def sample_rows(rng: np.random.Generator, rows: Rows, n: int | None) -> Rows:
    """n of the rows at random without replacement; all of them where n is None or more than there are."""
    if n is None or n >= len(rows):
        return rows.copy()
    return rows[rng.choice(len(rows), size=n, replace=False, shuffle=False)]


def largest_set_size(positives: int, negatives: int, share: float) -> int:
    """The largest N with round(share N) positives and the rest negatives among those that there are."""
    n = int(min((positives + 0.5) / share, (negatives + 0.5) / (1 - share))) + 1  # no larger one can round to fit
    while n > 0 and (round(share * n) > positives or n - round(share * n) > negatives):
        n -= 1
    return n


CORRECTNESS = ("compose.positive_share", "correct", "incorrect")


def sample_proportion(
    rng: np.random.Generator, first: Rows, second: Rows, share: float, n: int | None, words: Words = CORRECTNESS
) -> tuple[Rows, int]:
    """round(share n) of the first kind and the rest of the second, and the largest n; TOPRError where n is above it."""
    largest, (key, one, other) = largest_set_size(len(first), len(second), share), words
    if n is None:
        if not (len(first) and len(second)):
            raise TOPRError(
                f"{key}={share:g} needs {one} and {other} completions; "
                f"{len(first)} {one} and {len(second)} {other} are available"
            )
        n = largest
    wanted = round(share * n)
    for kind, rows, count in ((one, first, wanted), (other, second, n - wanted)):
        if count > len(rows):
            raise TOPRError(
                f"{key}={share:g} with compose.n_examples={n} needs {count} {kind} "
                f"completions; {len(rows)} are available (enough for compose.n_examples={largest})"
            )
    return np.concatenate([sample_rows(rng, first, wanted), sample_rows(rng, second, n - wanted)]), largest


def describe(
    candidates: Candidates, examples: Rows, config: ComposeConfig, unit: Unit, available: int, note: str | None = None
) -> Selection:
    """Add to the chosen examples, [N, 1] or [N, 2] rows of the candidates, what they are."""
    rows = examples.reshape(-1)  # a row may occur in several pairs
    n_positive = int(candidates.positive[rows].sum())
    notes = (
        note or shortfall(config.n_examples, len(examples), available, unit),
        left_out(candidates, config),
        no_positives(n_positive, len(rows)),
    )
    description = {
        "compose": config.name,
        "unit": unit,
        "requested": config.n_examples,
        "available": available,  # the largest set that these candidates admit: completions, or pairs
        "n_train": len(examples),  # completions, or pairs, of the set
        "n_positive": n_positive,  # correct completions (of pairs: their chosen sides)
        "positive_share": n_positive / len(rows),  # p
        "n_problems": len(np.unique(candidates.problem[rows])),
        "n_truncated": None if candidates.truncated is None else int(candidates.truncated[rows].sum()),  # None: unknown
        # One line for the user when the set is not what was asked, or has no correct completion.
        "note": "; ".join(filter(None, notes)) or None,
    }
    return Selection(examples, description)


def shortfall(requested: int | None, n_train: int, available: int, unit: Unit) -> str | None:
    """A line when fewer than the requested number are trained on, else None."""
    if requested is None or n_train >= requested:
        return None
    things = "pairs" if unit == "pairs" else "completions"
    if requested > available:
        return f"compose.n_examples={requested} is more than there are: all {n_train} {things} are used"
    return f"compose.n_examples={requested}: {n_train} completions are used, the whole groups that fit"


def left_out(candidates: Candidates, config: ComposeConfig) -> str | None:
    """A line that counts what `pass_rate` and `duplicates=drop` leave out of these candidates, else None."""
    parts = []
    if config.pass_rate is not None:
        kept = candidates.problem[solved_between(candidates, *config.pass_rate)]
        of = len(np.unique(candidates.problem))
        parts.append(f"compose.pass_rate={config.pass_rate} keeps {len(np.unique(kept))} of {of} problems")
    if config.duplicates == "drop" and candidates.duplicate is not None:
        parts.append(f"{int(candidates.duplicate.sum())} of {len(candidates.duplicate)} completions are repetitions")
    return ", ".join(parts) or None


def no_positives(positives: float, n: int) -> str | None:
    """A line when nothing in the set is correct, else None."""
    return None if positives else f"0 % of the {n} completions of the training set are correct: it has negatives alone"
