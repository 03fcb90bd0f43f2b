"""Beyond the papers: a sampler with rounded weights, and corrections of the mismatch."""

from functools import partial

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, others_end_above
from reproduce.figure import Figure
from reproduce.groups import algorithms, by_choice, crossed, name_of
from reproduce.panels import Panel, bars, grid
from reproduce.selection import Runs

WEIGHTS = "sampler.mismatch.weights"
ROUNDED = {"float8": [f"{WEIGHTS}=float8_e4m3"], "int4": [f"{WEIGHTS}=int4"]}
roundings = by_choice(ROUNDED)
corrections = by_choice(
    {
        "none": ["mu=scored"],
        "TIS": ["algo.correction=2.0"],
        "IcePop": ["mu=sampler algo.correction=null algo.denominator=null"],
        "decoupled": ['algo.correction=".inf"'],
    }
)
corrected = crossed(by_choice({"unrounded": [f"{WEIGHTS}=null"]} | ROUNDED), corrections)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    panels_of_algorithms = []
    for name, members in algorithms(runs).items():
        draw_bars = partial(bars, groups=corrected(members))
        panels_of_algorithms.append(Panel(draw_bars, name_of(name), base=members))
    return panels_of_algorithms


def claims_about(algorithm: str) -> list[Decision]:
    def corrections_help(rounding: str) -> list[Decision]:
        return [others_end_above(lambda name: f"{algorithm}, {rounding}: {name} ends above none", corrections, "none")]

    return [
        ends_above(
            f"{algorithm}: unrounded ends above int4 without correction",
            f"mu=scored {WEIGHTS}=null",
            f"mu=scored {WEIGHTS}=int4",
        ),
        for_each(roundings, corrections_help),
    ]


FIGURE = Figure(
    name="mismatch",
    title="Beyond the papers: a sampler that disagrees",
    claim="The sampler's weights are rounded, as an engine's are: what does that cost, and which correction buys it "
    "back?",
    experiments=(
        "mismatch",
        "mismatch mu=sampler sampler.mismatch.weights=float8_e4m3,int4 algo.denominator=old algo.correction=2",
        "mismatch mu=sampler sampler.mismatch.weights=float8_e4m3,int4 "
        "algo.mask=[{statistic:old_ratio,low:0.5,high:5}]",
        "mismatch mu=sampler sampler.mismatch.weights=float8_e4m3,int4 algo.denominator=old algo.correction=.inf",
    ),
    draw=grid(panels),
    judge=judge_by(for_each(algorithms, claims_about)),
    levels=(algorithms, corrected),
    full_words=(),
    only_full=True,
    names_models=True,
    metrics=("ess", "sampler_kl_token"),
    note="New completions after every update, at each loss's rate without rounding. None: `mu=scored`. TIS: π/π_old, "
    "times π_old/μ up to 2; decoupled: without that cap. IcePop: π/μ without tokens whose π_old/μ is outside [0.5, 5].",
)
