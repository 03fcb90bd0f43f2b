"""Beyond the papers: the ratios that other frameworks use under the name of TOPR."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by
from reproduce.figure import Figure
from reproduce.groups import RATE, TURNS, everything, lengths, rates, ratios
from reproduce.panels import Panel, against, grid
from reproduce.selection import Runs, pick
from topr_exp import Batch, loss
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEQUENCE, TOKEN, GEOMETRIC = "algo.ratio=sequence", "algo.ratio=token", "algo.ratio=geometric"
COMPLETION_LENGTHS = {10: "-", 100: "--", 1000: ":"}  # tokens, and the dashes of their lines
LEGEND = {"frameon": True, "framealpha": 0.9, "edgecolor": "white"}
LEGEND_BESIDE = {"loc": "center left", "bbox_to_anchor": [1.1, 0.5]}


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    labels = {"xlabel": "learning rate", "ylim": [0, 103]}
    drawn_panels = []
    for turns in (2, 4, 10, 22):
        members = pick(runs, f"{TURNS}={turns}")
        by_rate = partial(against, groups=ratios(members), key=RATE)
        legend = LEGEND if turns == 2 else None
        drawn_panels.append(Panel(by_rate, f"{turns} turns", base=members, legend=legend, labels=labels))
    weight_labels = {"xlabel": "Δ = log π/μ of the completion"}
    drawn_panels.append(Panel(negative_weights, "an incorrect completion", legend=LEGEND_BESIDE, labels=weight_labels))
    return drawn_panels


def negative_weights(ax: Axes) -> None:
    """The weight by TOPR's three ratios of an incorrect completion of 10, 100 and 1,000 tokens, one with all of Δ."""
    import torch

    delta = torch.linspace(-20, 4, 121)
    for i, ratio in enumerate(("geometric", "sequence", "token")):
        topr = loss("topr", ratio=ratio)
        for tokens, dashes in COMPLETION_LENGTHS.items():
            label = f"{ratio}, T = {tokens}"
            if ratio == "sequence":  # the same at every length
                label = ratio
                if tokens != min(COMPLETION_LENGTHS):
                    continue
            logp = torch.zeros(len(delta), tokens)
            logp[:, 0] = delta
            batch = Batch(
                logp=logp,
                mu_logp=torch.zeros_like(logp),
                mask=torch.ones_like(logp).bool(),
                reward=-torch.ones(len(delta)),
                positive=torch.zeros(len(delta)).bool(),
            )
            weight = topr(batch).metrics["weight"]
            ax.plot(delta, weight, color=series_style(i)["color"], ls=dashes, label=label)
    ax.set(ylabel="weight", ylim=(0, 1.05))


def claims_about(turns: str) -> list[Decision]:
    at_one, at_best = f"{RATE}=0.0003", f"best {RATE}"
    return [
        ends_above(
            f"{turns}, 3e-4: the completion's ratio ends above each token's",
            f"{SEQUENCE} {at_one}",
            f"{TOKEN} {at_one}",
        ),
        ends_above(
            f"{turns}, 3e-4: the completion's ratio ends above the geometric mean",
            f"{SEQUENCE} {at_one}",
            f"{GEOMETRIC} {at_one}",
        ),
        ends_above(
            f"{turns}, each at its best rate tried: the completion's ratio ends above the geometric mean",
            f"{at_best} {SEQUENCE}",
            f"{at_best} {GEOMETRIC}",
        ),
    ]


def half_step_is_better(turns: str) -> list[Decision]:
    text = f"{turns}, geometric mean: 1.7e-4 ends above 1e-4"
    return [ends_above(text, f"{GEOMETRIC} {RATE}=0.00017", f"{GEOMETRIC} {RATE}=0.0001")]


FIGURE = Figure(
    name="frameworks",
    title="Beyond the papers: what frameworks call TOPR",
    claim="The paper limits the ratio of a whole completion; a pull request to veRL limits its geometric mean over the "
    "tokens, Trinity-RFT and ROLL that of each token. What weight does that leave an incorrect completion, and where "
    "does it end?",
    experiments=("frameworks", "frameworks algo.ratio=geometric optim.lr=1.7e-4"),
    draw=grid(panels, rows=everything, columns=3, width=3.0, height=2.9),
    judge=judge_by(
        for_each(lengths, claims_about),
        for_each(lengths, half_step_is_better),
    ),
    levels=(lengths, ratios, rates),
    full_words=(),
    only_full=True,
    names_models=True,
    note="The paper: `algo=topr`; veRL's: `algo.ratio=geometric`; Trinity-RFT's and ROLL's: `algo.ratio=token`, "
    "Trinity's also `algo.advantage=group_std algo.length_normalize=false optim.reduction=tokens`. The weights are "
    'what `algo=topr` gives a completion of T tokens; "token" where one token has all of Δ: spread evenly it weighs '
    'as "geometric" does. Validation problems; the best rate is chosen by those that it is judged by, which flatters '
    "all. The geometric mean alone was also run half-way between 1e-4 and 3e-4, since at 3e-4 it ends more than 15 "
    "points lower.",
)
