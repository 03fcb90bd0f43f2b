"""Beyond the papers: log μ from the sampler or recomputed, with and without a small top-k."""

from functools import partial

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, within
from reproduce.figure import ALL_SEEDS, BOTH_BASES, Figure
from reproduce.groups import algorithms, by_choice, name_of
from reproduce.panels import Panel, bars, grid
from reproduce.selection import Runs

whose_log_mu = by_choice(
    {
        "sampler, no top-k": ["mu=sampler sampler.top_k=0"],
        "scored, no top-k": ["mu=scored sampler.top_k=0"],
        "sampler, top-k 2": ["mu=sampler sampler.top_k=2"],
        "scored, top-k 2": ["mu=scored sampler.top_k=2"],
    }
)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    panels_of_algorithms = []
    for name, members in algorithms(runs).items():
        draw_bars = partial(bars, groups=whose_log_mu(members), with_base=False)
        panels_of_algorithms.append(Panel(draw_bars, f"{model}, {name_of(name)}"))
    return panels_of_algorithms


def claims_about(algorithm: str) -> list[Decision]:
    return [
        ends_above(
            f"{algorithm}, no top-k: whose log μ it is makes no difference (within a point)",
            "mu=scored sampler.top_k=0",
            "mu=sampler sampler.top_k=0",
            rule=within,
            limit=0.01,
        ),
        ends_above(
            f"{algorithm}, top-k 2: recomputing log μ ends above taking the sampler's",
            "mu=scored sampler.top_k=2",
            "mu=sampler sampler.top_k=2",
        ),
    ]


FIGURE = Figure(
    name="mu",
    title="Beyond the papers: whose log μ",
    claim="Samplers report log-probabilities after top-k: what if these are taken for log μ?",
    experiments=("mu",),
    draw=grid(panels, width=3.2),
    judge=judge_by(for_each(algorithms, claims_about)),
    levels=(algorithms, whose_log_mu),
    full_words=(ALL_SEEDS, BOTH_BASES),
    only_full=True,
    note="Completions are sampled, and the model is tested, with the top-k that is named.",
)
