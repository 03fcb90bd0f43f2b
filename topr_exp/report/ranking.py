"""The best of several groups of runs, as far as all comparisons together allow."""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import pandas as pd

from topr_exp.evaluation.intervals import FEWEST_SEEDS, below_another
from topr_exp.report.estimates import (
    Groups,
    comparison_rows,
    differences,
    estimate_text,
    finished_only,
    mean_values,
    why_incomparable,
)
from topr_exp.report.reader import FAILED, Run
from topr_exp.report.repetitions import Repetitions, gain, read_repetitions, shared_seeds
from topr_exp.runtime.terminal import plural
from topr_exp.types import TOPRError

MOST_NAMED = 5  # groups that a sentence names
CONFIDENCE = "at 95 % for all comparisons together"


def rank_groups(groups: Groups) -> tuple[str, list[dict[str, str]]]:
    """Say which group ended best and which ones may be as good; with rows of `comparison_rows`.

    groups: best first.
    """
    finished_groups = finished_only(groups)
    if not finished_groups:
        return "No run has finished yet.", []
    best, runs = next(iter(finished_groups.items()))
    if len(finished_groups) == 1:
        base = estimate_text(runs, "pass@1", "base")
        final = estimate_text(runs, "pass@1", "final")
        size = plural(len(runs), "run")
        return f"{best} went from {base} to {final} % pass@1 ({size}){gain_text(runs)}.", []
    to_best = differences(finished_groups, dict.fromkeys(finished_groups, best), "pass@1")
    rows = comparison_rows(finished_groups, to_best, reference=best, name="pass@1")
    failed_counts = Counter(run.group for run in chain.from_iterable(groups.values()) if run.status == FAILED)
    return standing(finished_groups, "pass@1", failed_counts), rows


def gain_text(runs: Sequence[Run]) -> str:
    """The points that runs gained over their base, as a clause; "" where their verdicts are gone."""
    with contextlib.suppress(TOPRError):
        interval = gain(read_repetitions(runs, "base", "final"))
        if interval is not None:
            return f", by {interval.percent(sign=True)} points"
    return ""


def standing(groups: Groups, name: str, failed_counts: Counter[str]) -> str:
    """Say which of several groups of finished runs has the highest mean, and `against_best` of it.

    failed_counts: by group, the runs that are not in its mean, which may have failed for its loss.
    """
    best, *tied = leaders(mean_values(groups, name))
    best_runs = groups[best]
    comparable = {}  # groups with the test problems of the best
    collapsed = {}
    for label, runs in groups.items():
        collapsed[label] = list(map(has_collapsed, runs))
        with contextlib.suppress(TOPRError):  # the verdicts are gone
            if not why_incomparable([*best_runs, *runs], name):
                comparable[label] = read_repetitions(runs, "final")
    leader_text = highest_mean([best, *tied], len(groups))
    size = plural(len(best_runs), "run")
    score = f"{estimate_text(best_runs, name)} % {name} ({size})"
    failed_count = sum(failed_counts[label] for label in (best, *tied))
    if failed_count:
        verdict_text = f"No winner: {plural(failed_count, 'more run')} failed."
    else:
        verdict_text = against_best(comparable, best, collapsed, name, tied=tied)
    return f"{leader_text}, {score}. {verdict_text}".rstrip()


def leaders(means: Mapping[str, float]) -> list[str]:
    """The groups with the highest mean: several where they tie."""
    highest = max(means.values())
    return [label for label, mean in means.items() if math.isclose(mean, highest, abs_tol=1e-9)]


def highest_mean(labels: Sequence[str], count: int) -> str:
    """Say which of `count` groups have the highest mean."""
    verb = "has" if len(labels) == 1 else "share"
    return f"{'; '.join(labels)} {verb} the highest mean of {count}"


def has_collapsed(run: Run) -> bool:
    """Return True where a run's final pass@1 is below half of its base's."""
    base = run.summary_number("base", "pass@1")
    final = run.summary_number("final", "pass@1")
    return final is not None and base is not None and final < base / 2


def against_best(
    groups: Mapping[str, Repetitions],
    best: str,
    collapsed: Mapping[str, Sequence[bool]],
    name: str = "pass@1",
    *,
    tied: Sequence[str] = (),
) -> str:
    """Say whether the group with the highest mean is above all others, else which ones are below another.

    Over the seeds that all groups with three or more share; groups with collapsed seeds, whose spread says little, are
    counted and not compared.
    groups: repetitions on the same test problems; collapsed: the seeds of each group, also of those not in `groups`;
    tied: the others with the same mean as the best.
    """
    compared = {}
    not_compared = []
    collapse_texts = []
    for label, is_seed_collapsed in collapsed.items():
        group = groups.get(label, Repetitions([]))
        if any(is_seed_collapsed):
            collapse_texts.append(f"{label} ({sum(is_seed_collapsed)} of {len(is_seed_collapsed)} seeds)")
        elif has_enough_seeds(group):
            compared[label] = group
        else:
            not_compared.append(label)
    reason = why_no_winner(groups, best, collapsed=collapsed, compared=compared)
    if reason:
        sentences = [f"No winner: {reason}."]
    else:
        seeds = shared_seeds(compared.values())
        values = {label: group.with_seeds(seeds).values(name) for label, group in compared.items()}
        rival_text = "all others compared" if not_compared or collapse_texts else "all others"
        sentences = compare_with_best(values, best, tied, rival_text=rival_text)
        sentences += list_groups("Not compared", not_compared)
    sentences += list_groups("Collapsed", collapse_texts)
    return " ".join(sentences)


def has_enough_seeds(group: Repetitions) -> bool:
    has_distinct_seeds = len(set(group.seeds)) == len(group)
    return has_distinct_seeds and len(group) >= FEWEST_SEEDS


def why_no_winner(
    groups: Mapping[str, Repetitions],
    best: str,
    *,
    collapsed: Mapping[str, Sequence[bool]],
    compared: Mapping[str, Repetitions],
) -> str:
    """The reason why the best group can't be compared with another one, or ""; arguments as in `against_best`."""
    has_rival = any(label != best and not any(collapsed[label]) for label in groups)
    if any(collapsed[best]):
        return "some of its seeds collapsed"
    if best not in groups or not has_rival:  # other test problems, verdicts that are gone, or collapsed seeds
        return "no other group can be compared"
    has_shared_seeds = len(shared_seeds(compared.values())) >= FEWEST_SEEDS
    if best not in compared or len(compared) < 2 or not has_shared_seeds:
        return f"fewer than {FEWEST_SEEDS} seeds in common"
    return ""


def compare_with_best(
    values: Mapping[str, np.ndarray], best: str, tied: Sequence[str], *, rival_text: str
) -> list[str]:
    """Say that the best groups are above all others, else which ones are below another or may be as good.

    values: [seeds, problems] by group. rival_text: words for all groups of `values` but the best.
    """
    labels = list(values)
    table = below_another(np.stack(list(values.values())))
    is_below = pd.DataFrame(table, index=labels, columns=labels)  # the group of a row is below that of a column
    is_loser = is_below.any(axis=1)
    losers = [label for label in labels if is_loser[label]]
    winners = [label for label in (best, *tied) if label in labels and label not in losers]
    rivals = [label for label in labels if label not in winners]
    if winners and rivals and is_below.loc[rivals, winners].all(axis=None):
        subject = "They are" if tied else "It is"
        return [f"{subject} above {rival_text}, {CONFIDENCE}."]

    sentences = list_groups(f"Below another, {CONFIDENCE}", losers)
    if best not in losers:  # else its mean is the highest by seeds that the others lack
        pronoun = "them" if tied else "it"
        undecided = [label for label in rivals if label not in losers]
        sentences += list_groups(f"Not told apart from {pronoun}", undecided)
    return sentences


def list_groups(head: str, labels: Sequence[str]) -> list[str]:
    """A sentence that lists groups, or none where there are none."""
    if not labels:
        return []
    names = list(labels[:MOST_NAMED])
    if len(labels) > MOST_NAMED:
        names.append(f"{len(labels) - MOST_NAMED} more")
    return [f"{head}: {'; '.join(names)}."]
