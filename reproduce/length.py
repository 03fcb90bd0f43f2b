"""Beyond the papers: which ratio at which length of answers, and what a loss does to their length (model tiny_long)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from reproduce import draw
from reproduce.claims import Claim, above, below, by_seeds
from reproduce.draw import PERCENT, against, all_together, each_seed, grid, over_updates, panel
from reproduce.figure import Extra, algorithms, by_model, name_of
from reproduce.learning_rates import RATE, best_are_used, rates_panel
from reproduce.tabular import log_ratios
from topr_exp.report.selection import Runs, difference, over_seeds
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TURNS, RATIO, NORMALIZED = "data.turns", "algo.ratio", "algo.length_normalize"
OTHERS = ("token", "geometric")  # ratios than the sequence's
WIDTHS = ("eps_low", "tau", "cap", "c1_pos")  # what is changed for another width of a loss, one key of each
WEIGHED, SPENT = ("topr", "tis", "is"), "spent_share_neg"
LENGTHS = ("length", "length_correct", "length_incorrect")


# ---- which ratio at which length


def losses(runs: Runs) -> dict[str, Runs]:
    """The runs by loss, as conf/learning_rates.yaml calls it ("topr, token ratio", "gspo, eps_low 0.03")."""
    return {
        loss: Runs([record for record in group if loss_of(record) == loss])
        for group in algorithms(runs).values()
        for loss in sorted({loss_of(record) for record in group})
    }


def loss_of(record: Record) -> str:
    """The name of the loss that a run was trained with: the algorithm, and what of ratio and width is unusual."""
    settings = record["settings"]
    ratio = [f"{settings[RATIO]} ratio"] if settings.get(RATIO) in OTHERS else []
    widths = [f"{key} {settings[f'algo.{key}']:g}" for key in WIDTHS if f"algo.{key}" in settings]
    return ", ".join([settings["algo.name"], *ratio, *widths])


def title(loss: str) -> str:
    name, *ratio = loss.split(", ")
    return ", ".join([name_of(name), *ratio])


def relatives(runs: Runs) -> dict[str, Runs]:
    """TOPR and its relatives."""
    weighed = tuple(map(name_of, WEIGHED))
    return {name: group for name, group in titled(runs).items() if name.split(",")[0] in weighed}


def rivals(runs: Runs, *, wider: bool) -> dict[str, Runs]:
    """TOPR and the losses that others have proposed, as these are or at other widths."""
    found, known = titled(runs), relatives(runs)
    others = {name: group for name, group in found.items() if name not in known and ("," in name) == wider}
    return {name: group for name, group in found.items() if name == "TOPR"} | others


def titled(runs: Runs) -> dict[str, Runs]:
    return {title(loss): group for loss, group in losses(runs).items()}


GROUPS: dict[str, Callable[[Runs], dict[str, Runs]]] = {
    "TOPR and its relatives": relatives,
    "rivals": partial(rivals, wider=False),
    "rivals at other widths": partial(rivals, wider=True),
}


def places(runs: Runs) -> dict[str, Runs]:
    """The runs by model with the turns of the story."""
    return {f"{model}, {turns} turns": group
            for model, members in by_model(runs).items() for turns, group in members.split(TURNS).items()}  # fmt: skip


def tried_at_lengths(runs: Runs) -> dict[str, dict[str, Runs]]:
    """The runs of the grid of learning rates by place and loss."""
    return {place: losses(group) for place, group in places(runs).items()}


draw_length_rates = grid(
    *(rates_panel(i, groups, 3) for i, groups in enumerate(GROUPS.values())), rows=places, width=3.5
)


def judge_length_rates(runs: Runs, extra: Extra) -> list[Claim]:
    """One claim for each length."""
    text = "{}: the best of the grid is used (conf/learning_rates.yaml)"
    tried = tried_at_lengths(runs).items()
    return [one for at, groups in tried for one in best_are_used({at: groups}, text.format(at.split(", ")[1]))]


def log_ratio_bars(ax: Axes, runs: Runs) -> None:
    """Where Δ = log π(y|x) − log μ(y|x) of the last updates' batches lies, by length and sign."""
    for i, sign in enumerate(("positive", "negative")):
        style = draw.series_style(i)
        for turns, each in runs.where(algo__name="topr").split(TURNS).items():
            low, middle, high = log_ratios(losses(each)["topr"], sign)
            x, label = turns * (1 + 0.08 * i), sign if turns == min(runs.split(TURNS)) else None
            ax.plot([x, x], [low, high], color=style["color"], lw=3, alpha=0.5)
            ax.plot([x], [middle], "o", ms=4, color=style["color"], label=label)
    draw.log_ticks(ax, runs.split(TURNS))


def spent_share(record: Record) -> float:
    """The share of the last updates' negatives whose π/μ is below 0.01: those that TOPR hardly pushes any more."""
    return float(record["metrics"][SPENT][-1])


def spent_percent(record: Record) -> float:
    return PERCENT * spent_share(record)


STORY = "turns of the story"
# Above who ends where; below why: how far Δ spreads, and how many negatives no longer push.
draw_length = grid(
    *(panel(against, groups, TURNS, base=TURNS, title=name, ylim=(0, 103), xlabel=STORY, legend=2)
      for name, groups in GROUPS.items()),
    panel(log_ratio_bars, lambda runs: runs, ylabel="Δ of an answer", title="TOPR: median and 90 % of Δ, last updates",
          xlabel=STORY, legend=2),
    *(panel(each_seed, GROUPS[name], TURNS, spent_percent, ylabel="% with π/μ < 0.01",
            title=f"negatives of {name}, last updates", xlabel=STORY, legend=3)
      for name in ("TOPR and its relatives", "rivals")),
    rows=all_together, columns=3, width=4.4,
)  # fmt: skip


def judge_length(runs: Runs, extra: Extra) -> list[Claim]:
    """Every other loss against TOPR, at each length."""
    found = []
    by_turns = {turns: losses(group) for turns, group in runs.split(TURNS).items()}
    none = Runs([])
    for turns, here in by_turns.items():
        for loss, group in here.items():
            if loss != "topr":
                text = f"{turns} turns: {title(loss)} ends above TOPR"
                found.append(above(text, difference(here.get("topr", none), group)))
    if len(by_turns) > 1:
        ends = min(by_turns), max(by_turns)
        short, long = (by_turns[turns].get("topr", none) for turns in ends)
        more = [spent_share(b) - spent_share(a) for a, b in zip(*paired(short, long), strict=True)]
        text = f"TOPR: more of the negatives no longer push with {ends[1]} turns than with {ends[0]}"
        found.append(above(text, over_seeds(more)))
    return found


LEVELS = ((losses, title), (TURNS, "{} turns".format), (RATE, "lr {:g}".format))


# ---- what a loss does to the length of answers


def with_and_without(runs: Runs) -> dict[str, Runs]:
    """The runs by algorithm, and by whether the loss is divided by the answer's length T."""
    return {
        f"{name_of(name)}, {label} 1/T": each
        for name, group in algorithms(runs).items()
        for label, each in (("with", divided(group, True)), ("without", divided(group, False)))
        if len(each)
    }


def divided(runs: Runs, by_length: bool) -> Runs:
    """Those whose loss is divided by T, or not; the tapered family's is, unless a record says otherwise."""
    return Runs([each for each in runs if each["settings"].get(NORMALIZED, True) == by_length])


def last_length(record: Record, name: str = LENGTHS[0]) -> float:
    return float(record["lengths"][name][-1])


draw_length_bias = grid(
    *(panel(over_updates, with_and_without, "lengths", name, title=title, ylabel="tokens", legend=legend)
      for name, title, legend in zip(LENGTHS, ("all sampled answers", "correct ones", "incorrect ones"),
                                     (None, 3, None), strict=True)),
    rows=all_together, width=3.8,
)  # fmt: skip


def judge_length_bias(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        pairs = list(zip(*paired(divided(group, True), divided(group, False)), strict=True))
        for key, what in zip(LENGTHS, ("answers", "correct answers", "incorrect answers"), strict=True):
            differences = [last_length(one, key) - last_length(two, key) for one, two in pairs]
            text = f"{name_of(name)}: {what} end shorter with 1/T than without"
            found.append(shorter(text, differences))
        gained = [one["lengths"]["length"][-1] - one["lengths"]["length"][0] for one in divided(group, True)]
        text = f"{name_of(name)} with 1/T: answers end shorter than the base's"
        found.append(shorter(text, gained))
    return found


def paired(first: Runs, second: Runs) -> tuple[list[Record], list[Record]]:
    """The runs of the seeds that both have, by seed."""
    shared = sorted({*first.seeds} & {*second.seeds})
    one, two = ([group[group.seeds.index(seed)] for seed in shared] for group in (first, second))
    return one, two


def shorter(text: str, differences: list[float]) -> Claim:
    """A claim that answers are shorter, by the difference of each seed in tokens."""
    shown = " ".join(f"{value:+.1f}" for value in differences)
    return by_seeds(text, differences, f"tokens of each seed: {shown}", below)
