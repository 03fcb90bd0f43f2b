"""Beyond the papers: the length of sampled completions while training, with and without 1/T in the loss."""

from collections.abc import Sequence
from functools import partial

from reproduce.claims import (
    Claim,
    Decision,
    Extra,
    below,
    claim_by_seeds,
    ends_above,
    for_each,
    judge_by,
    paired_records,
)
from reproduce.figure import Figure
from reproduce.groups import algorithms, by_choice, crossed, everything
from reproduce.panels import Panel, grid, legend_below, metric
from reproduce.selection import Record, Runs, pick

KEY = "algo.length_normalize"
with_and_without = crossed(algorithms, by_choice({"with 1/T": [f"{KEY}=null"], "without 1/T": [f"{KEY}=false"]}))
LENGTHS = {
    "length": "completions",
    "length_correct": "correct completions",
    "length_incorrect": "incorrect completions",
}


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    tokens = partial(metric, groups=with_and_without(runs), part="lengths")
    labels = {"ylabel": "tokens"}
    return [
        Panel(partial(tokens, name="length"), "all sampled completions", labels=labels),
        Panel(
            partial(tokens, name="length_correct"),
            "correct ones",
            legend=legend_below(3),
            labels=labels,
        ),
        Panel(partial(tokens, name="length_incorrect"), "incorrect ones", labels=labels),
    ]


def shorter_completions(algorithm: str) -> Decision:
    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        divided, undivided = pick(runs, f"{KEY}=null"), pick(runs, f"{KEY}=false")
        claims = []
        for name, completions in LENGTHS.items():
            differences = []
            for record, undivided_record in paired_records(divided, undivided):
                differences.append(final_length(record, name) - final_length(undivided_record, name))
            claims.append(shorter(f"{algorithm}: {completions} end shorter with 1/T than without", differences))
        changes = []
        for record in divided:
            changes.append(final_length(record, "length") - record["lengths"]["length"][0])
        claims.append(shorter(f"{algorithm} with 1/T: completions end shorter than the base's", changes))
        return claims

    return judge


def final_length(record: Record, name: str) -> float:
    """Mean tokens at the end; name: of LENGTHS."""
    return float(record["lengths"][name][-1])


def claims_about(algorithm: str) -> list[Decision]:
    return [
        shorter_completions(algorithm),
        ends_above(f"{algorithm}: pass@1 ends higher without 1/T than with", f"{KEY}=false", f"{KEY}=null"),
    ]


def shorter(text: str, differences: Sequence[float]) -> Claim:
    """That completions are shorter, by the difference of each seed in tokens."""
    tokens = [f"{difference:+.1f}" for difference in differences]
    return claim_by_seeds(text, differences, f"tokens of each seed: {' '.join(tokens)}", below)


FIGURE = Figure(
    name="length_bias",
    title="Beyond the papers: the length of completions",
    claim="Does dividing the loss by the length of a completion, as TOPR does, make completions shorter?",
    experiments=("length_bias",),
    draw=grid(panels, rows=everything, width=3.8),
    judge=judge_by(for_each(algorithms, claims_about)),
    levels=(with_and_without,),
    full_words=(),
    only_full=True,
    names_models=True,
    metrics=("length",),
    note="All at 3e-4. Mean tokens of the completions to the first 50 test problems, 22 turns. Longer completions can "
    "mean that the careful way of working took the place of the terse one.",
)
