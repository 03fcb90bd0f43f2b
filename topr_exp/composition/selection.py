"""Selection of a training set: uniform, positives, proportion, Anna Karenina, whole groups, pairs (TOPR, section 4).

Everything here is a pure function of the completions' columns, the settings, the seed and the iteration. Selected rows
are sorted; the order of training is drawn elsewhere.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from topr_exp.composition.draws import Rows, random_generator, sample_distinct, sample_rows
from topr_exp.composition.problem_groups import is_solved_between
from topr_exp.composition.set_sizes import largest_set_size
from topr_exp.config.groups import PAIRS_PER_PROBLEM, ComposeConfig, Unit
from topr_exp.sampling.completions import Completions
from topr_exp.types import TOPRError


class NothingKeptError(TOPRError):
    """The completions at hand leave nothing to train on."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of completions that are trained on, in order."""

    examples: Rows  # [N, 1], or [N, 2] (correct, incorrect) for pairs
    description: dict[str, Any]  # in numbers, ready for JSON: see `describe`


@dataclass(frozen=True, slots=True)
class Draw:
    """Rows of completions before they are described."""

    rows: Rows  # [N]; of pairs [N, 2] (correct, incorrect)
    available: int  # size of the largest set that could be drawn
    note: str | None = None  # for the user


def select(
    completions: Completions,
    config: ComposeConfig,
    unit: Unit,
    *,
    seed: int,
    iteration: int,
    round_number: int | None = None,
) -> Selection:
    """Select the examples of a training set, at random by seed, iteration and round.

    NothingKeptError where there is nothing to train on; TOPRError where there is too little of one kind.
    """
    purpose = f"compose {unit}"
    if round_number is not None:
        purpose += f" of round {round_number}"
    rng = random_generator(seed, iteration, purpose)
    rows = usable_rows(completions, config)
    draw_unit = DRAW[unit]
    draw = draw_unit(rng, completions, rows, config)
    return describe(completions, draw, config, unit)


# ---- single completions


def draw_examples(rng: Generator, completions: Completions, rows: Rows, config: ComposeConfig) -> Draw:
    """Draw single completions.

    uniform: N of all. positives: N of the correct ones. proportion: round(pN) correct ones and the rest incorrect,
    without `n_examples` as many as there are for that share. anna_karenina: each problem's first correct completion (N
    of these where there are more), then random incorrect ones up to N. N above what there is takes all, with a note;
    proportion and `mix` (imported completions among sampled ones) refuse: they promise a share.
    """
    is_correct = completions.is_correct[rows]
    correct = rows[is_correct]
    incorrect = rows[~is_correct]
    n = config.n_examples
    if config.mix is not None:
        draw = draw_mix(rng, completions, rows, config)
    elif config.name == "uniform":
        draw = Draw(sample_rows(rng, rows, n), len(rows))
    elif config.name == "positives":
        if not len(correct):
            raise NothingKeptError(f"compose=positives: none of the {len(rows)} completions is correct")
        draw = Draw(sample_rows(rng, correct, n), len(correct))
    elif config.name == "proportion":
        assert config.positive_share is not None
        kinds = {"correct": correct, "incorrect": incorrect}
        draw = draw_proportion(rng, kinds, key="compose.positive_share", share=config.positive_share, n=n)
    else:
        draw = draw_anna_karenina(rng, completions, correct, incorrect, n)
    return replace(draw, rows=np.sort(draw.rows))


def draw_anna_karenina(rng: Generator, completions: Completions, correct: Rows, incorrect: Rows, n: int | None) -> Draw:
    """Draw each problem's first correct completion (at most n), then incorrect ones up to n."""
    _, first = np.unique(completions.problem_index[correct], return_index=True)
    first_correct = correct[first]  # one row for each problem that is solved
    solved_count = len(first_correct)  # of problems
    positives = sample_rows(rng, first_correct, n)
    n_negatives = None
    note = None
    if n is not None:
        n_negatives = n - len(positives)
        if n_negatives == 0:
            note = (
                f"compose.n_examples={n} leaves no room for incorrect completions: {solved_count} problems are solved"
            )
    negatives = sample_rows(rng, incorrect, n_negatives)
    rows = np.concatenate([positives, negatives])
    return Draw(rows, available=solved_count + len(incorrect), note=note)


def draw_mix(rng: Generator, completions: Completions, rows: Rows, config: ComposeConfig) -> Draw:
    """Draw round(mix N) imported completions and the rest sampled ones."""
    assert config.mix is not None
    assert completions.is_imported is not None, "mix needs the column `imported`"
    if config.name == "positives":
        is_correct = completions.is_correct[rows]
        rows = rows[is_correct]
    is_imported = completions.is_imported[rows]
    kinds = {"imported": rows[is_imported], "sampled": rows[~is_imported]}
    draw = draw_proportion(rng, kinds, key="compose.mix", share=config.mix, n=config.n_examples)
    imported_count = int(completions.is_imported[draw.rows].sum())
    sampled_count = len(draw.rows) - imported_count
    note = f"compose.mix={config.mix:g}: {imported_count} imported and {sampled_count} sampled completions"
    return replace(draw, note=note)


def draw_proportion(rng: Generator, kinds: dict[str, Rows], *, key: str, share: float, n: int | None) -> Draw:
    """Draw round(share n) rows of the first of two kinds and the rest of the second; key: the setting of the share.

    kinds: rows by name. TOPRError where n is too large, and without n where there are none of a kind.
    """
    first, second = kinds  # names
    first_count = len(kinds[first])
    second_count = len(kinds[second])
    largest = largest_set_size(first_count, second_count, share)
    if n is None:
        if not first_count or not second_count:
            raise NothingKeptError(
                f"{key}={share:g} needs {first} and {second} completions; "
                f"{first_count} {first} and {second_count} {second} are available"
            )
        n = largest
    n_first = round(share * n)
    drawn_rows = []
    for kind, count in ((first, n_first), (second, n - n_first)):
        rows = kinds[kind]
        if count > len(rows):
            raise TOPRError(
                f"{key}={share:g} with compose.n_examples={n} needs {count} {kind} "
                f"completions; {len(rows)} are available (enough for compose.n_examples={largest})"
            )
        drawn_rows.append(sample_rows(rng, rows, count))
    return Draw(np.concatenate(drawn_rows), largest)


# ---- whole problems and pairs


def draw_groups(rng: Generator, completions: Completions, rows: Rows, config: ComposeConfig) -> Draw:
    """Draw whole problems with all completions at random, until no other fits into N completions.

    A problem with a single completion is left out: group baselines need two. Raises TOPRError when no problem fits.
    """
    usable_problems = completions.problem_index[rows]
    problems, group, sizes = np.unique(completions.problem_index, return_inverse=True, return_counts=True)
    is_candidate = (sizes >= 2) & np.isin(problems, usable_problems)
    if not is_candidate.any():
        raise TOPRError(f"no problem has two or more completions ({len(problems)} problems, {len(group)} completions)")
    candidates = np.flatnonzero(is_candidate)
    group_order = rng.permutation(candidates)
    cumulative_sizes = np.cumsum(sizes[group_order])
    available = int(cumulative_sizes[-1])
    limit = config.n_examples if config.n_examples is not None else available
    # The first that does not fit ends the draw: skipping it for a smaller one would favour small groups.
    group_count = np.searchsorted(cumulative_sizes, limit, side="right")
    if group_count == 0:
        raise TOPRError(
            f"compose.n_examples={limit} is less than the {cumulative_sizes[0]} completions of one problem, "
            "and this algorithm trains on whole groups"
        )
    selected_groups = group_order[:group_count]
    is_selected = np.isin(group, selected_groups)  # by completion
    return Draw(np.flatnonzero(is_selected), available)


def draw_pairs(rng: Generator, completions: Completions, rows: Rows, config: ComposeConfig) -> Draw:
    """Draw min(PAIRS_PER_PROBLEM, n+ n-) distinct pairs of each problem without replacement, then N of them all.

    Sorted by problem; each set of that many of a problem's n+ n- pairs is equally likely. NothingKeptError without one.
    """
    is_correct = completions.is_correct[rows]
    problems, group = np.unique(completions.problem_index[rows], return_inverse=True)
    correct = RowsByGroup(rows[is_correct], group[is_correct], len(problems))
    incorrect = RowsByGroup(rows[~is_correct], group[~is_correct], len(problems))
    # Pair number i n_incorrect[g] + j of group g joins its i-th correct completion and its j-th incorrect one.
    pair_counts = correct.sizes * incorrect.sizes
    pair_group, pair_number = sample_distinct(rng, pair_counts, PAIRS_PER_PROBLEM)
    available = len(pair_number)
    if not available:
        raise NothingKeptError(
            f"no problem has both a correct and an incorrect completion ({len(problems)} problems, {len(rows)} "
            f"completions, {int(is_correct.sum())} correct): there are no pairs to train on"
        )
    subset = sample_rows(rng, np.arange(available), config.n_examples)
    subset.sort()
    pair_group = pair_group[subset]
    pair_number = pair_number[subset]
    i, j = np.divmod(pair_number, incorrect.sizes[pair_group])
    chosen = correct.rows_at(pair_group, i)
    rejected = incorrect.rows_at(pair_group, j)
    return Draw(np.stack([chosen, rejected], axis=1), available)


class RowsByGroup:
    """Rows in the order of their groups, 0 to group_count - 1."""

    def __init__(self, rows: Rows, group: Rows, group_count: int) -> None:
        order = np.argsort(group, kind="stable")
        self.rows = rows[order]
        self.sizes = np.bincount(group, minlength=group_count)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def rows_at(self, group: Rows, position: Rows) -> Rows:
        """Return the row at a position in each of some groups, [N]."""
        row_index = self.starts[group] + position
        return self.rows[row_index]


DRAW = {"examples": draw_examples, "groups": draw_groups, "pairs": draw_pairs}


# ---- conditions on completions


def usable_rows(completions: Completions, config: ComposeConfig) -> Rows:
    """List the rows that may be selected; NothingKeptError where there are none."""
    total = len(completions)
    is_usable = np.ones(total, dtype=bool)
    if config.drop_truncated:
        is_usable &= ~completions.is_truncated
        if not is_usable.any():
            raise NothingKeptError(
                f"compose.drop_truncated=true leaves nothing: all {total} completions were cut off by the token limit "
                "(raise sampler.max_new_tokens)"
            )
    if config.pass_rate is not None:
        is_usable &= is_solved_between(completions, *config.pass_rate)
        if not is_usable.any():
            raise NothingKeptError(
                f"compose.pass_rate={config.pass_rate} leaves nothing: no problem is solved so often"
            )
    return np.flatnonzero(is_usable)


# ---- the description of a selection


def describe(completions: Completions, draw: Draw, config: ComposeConfig, unit: Unit) -> Selection:
    """Describe the examples of a draw."""
    examples = draw.rows.reshape(len(draw.rows), -1)  # [N, 1] or [N, 2]
    rows = examples.ravel()  # a row may occur in several pairs
    n_positive = int(completions.is_correct[rows].sum())
    notes = (
        draw.note or shortfall(config.n_examples, len(examples), draw.available, unit),
        exclusions(completions, config),
        no_positives(n_positive, len(rows)),
    )
    description = {
        "compose": config.name,
        "unit": unit,
        "requested": config.n_examples,
        "available": draw.available,  # the largest set that these completions admit: completions, or pairs
        "n_train": len(examples),  # completions, or pairs, of the set
        "n_positive": n_positive,  # correct completions (of pairs: their chosen sides)
        "positive_share": n_positive / len(rows),  # p
        "n_problems": len(np.unique(completions.problem_index[rows])),
        "n_truncated": int(completions.is_truncated[rows].sum()),
        # One line for the user when the set is smaller than requested, or has no correct completion.
        "note": "; ".join(filter(None, notes)) or None,
    }
    return Selection(examples, description)


def shortfall(requested: int | None, n_train: int, available: int, unit: Unit) -> str | None:
    """Say that fewer than the requested number are trained on; None where they are not."""
    if requested is None or n_train >= requested:
        return None
    if requested > available:
        things = "pairs" if unit == "pairs" else "completions"
        return f"compose.n_examples={requested} is more than there are: all {n_train} {things} are used"
    return f"compose.n_examples={requested}: {n_train} completions are used, the whole groups that fit"


def exclusions(completions: Completions, config: ComposeConfig) -> str | None:
    """Count the problems that `pass_rate` keeps, in a line; None without it."""
    if config.pass_rate is None:
        return None
    is_usable = is_solved_between(completions, *config.pass_rate)
    problems = np.unique(completions.problem_index)
    usable_problems = np.unique(completions.problem_index[is_usable])
    return f"compose.pass_rate={config.pass_rate} keeps {len(usable_problems)} of {len(problems)} problems"


def no_positives(positives: float, n: int) -> str | None:
    """Say that none of a set's n completions is correct, else None; positives: their number or share."""
    if positives:
        return None
    return f"0 % of the {n} completions of the training set are correct: it has negatives alone"
