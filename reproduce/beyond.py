"""TokenizedProblems beyond the papers: which ratio, whose log μ, how stale completions may be."""

from __future__ import annotations

from functools import partial
from typing import Any

from reproduce.claims import Claim, above, between, where
from reproduce.draw import INSIDE, PERCENT, Panel, against, all_together, bars, each_seed, grid, panel
from reproduce.figure import Extra, algorithms, name_of
from reproduce.length import last_length, loss_of, paired, shorter, title
from topr_exp.report.selection import Runs, difference
from topr_exp.runs.records import Record

# The algorithms of the staleness figure by what keeps them in place on old completions.
KINDS = {
    "each response weighed": ("topr", "tis", "is", "sft", "naive"),
    "clipped next to ratio 1": ("ppo", "grpo", "rec"),
    "no ratio to μ": ("opmd", "asymre", "agro"),
}
RATE, RATIO, UPDATES, TOP_K = "optim.lr", "algo.ratio", "schedule.updates", "sampler.top_k"
EFFECTIVE, AGAIN = "ess", "updates before sampling again"


# ---- which ratio


def panels_of_ratio(runs: Runs) -> list[Panel]:
    return [panel(against, lambda runs: runs.split(RATIO), RATE, within=where(name),
                  base=True, legend=INSIDE, xlabel="learning rate", title=f"{{model}}, {name_of(name)}")
            for name in algorithms(runs)]  # fmt: skip


draw_ratio = grid(panels_of=panels_of_ratio, width=3.2)


def best_rate(runs: Runs) -> Runs:
    """The runs with the learning rate whose mean pass@1 is highest (on the test problems: see the figure's note)."""
    return max(runs.split(RATE).values(), key=lambda each: float(each.values().mean()), default=Runs([]))


def judge_ratio(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        by_ratio = {ratio: best_rate(each) for ratio, each in group.split(RATIO).items()}
        for other in ("token", "geometric"):
            if {"sequence", other} <= set(by_ratio):
                text = f"{name_of(name)}, each at its best rate: the sequence's ratio ends above the {other} one"
                found.append(above(text, difference(by_ratio[other], by_ratio["sequence"])))
    return found


# ---- whose log μ


def settings_mu(runs: Runs) -> dict[str, Runs]:
    return {
        f"{mu}, {f'top-k {k}' if k else 'no top-k'}": each
        for k, group in runs.split(TOP_K).items()
        for mu, each in group.split("mu").items()
    }


def panels_of_mu(runs: Runs) -> list[Panel]:
    return [panel(partial(bars, base=False), settings_mu, within=where(name), title=f"{{model}}, {name_of(name)}")
            for name in algorithms(runs)]  # fmt: skip


draw_mu = grid(panels_of=panels_of_mu, width=3.2)


def judge_mu(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        for k, some in group.split(TOP_K).items():
            sources = some.split("mu")
            if not {"scored", "sampler"} <= set(sources):
                continue
            gained = difference(sources["sampler"], sources["scored"])
            if k:
                text = f"{name_of(name)}, top-k {k}: recomputing log μ ends above taking the sampler's"
                found.append(above(text, gained))
            else:
                text = f"{name_of(name)}, no top-k: whose log μ it is makes no difference (within a point)"
                found.append(between(text, [("difference", gained)], 0.01))
    return found


# ---- how stale


def among(names: tuple[str, ...], runs: Runs) -> dict[str, Runs]:
    found = algorithms(runs)
    return {name: found[name] for name in names if name in found}


draw_staleness = grid(*(
    panel(against, partial(among, names), UPDATES, "pass@1", 0.06, base=True, xlabel=AGAIN, ylim=(0, 90),
          title=f"{{model}}, {kind}", legend={"ncols": 2, "loc": "lower left"}) for kind, names in KINDS.items()
), width=3.6)  # fmt: skip


def judge_staleness(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        fresh, stale = group.where(schedule__updates=1), group.where(schedule__rounds=1)
        text = f"{name_of(name)}: sampling after every update ends above one epoch on old completions"
        found.append(above(text, difference(stale, fresh)))
    return found


# ---- how stale, with long answers

# Losses in which an answer or token too far from where it was sampled has no gradient.
CLIPS = ("PPO", "GRPO", "GSPO", "M2PO")
# TOPR by whether its advantage is the group's and whether its loss is divided by the answer's length.
WAYS = {
    (False, True): "TOPR",
    (False, False): "TOPR, without 1/T",
    (True, True): "TOPR, the group's advantage",
    (True, False): "TOPR, both",
}


def way(record: Record) -> str:
    """The name of the loss that a run was trained with."""
    settings = record["settings"]
    if settings["algo.name"] != "topr":
        return title(loss_of(record))
    return WAYS[settings.get("algo.advantage") == "group", settings.get("algo.length_normalize", True)]


def ways(runs: Runs) -> dict[str, Runs]:
    """The runs by loss, TOPR's ways first."""
    ordered = [record for group in algorithms(runs).values() for record in group]
    names = dict.fromkeys([*WAYS.values(), *map(way, ordered)])
    found = {name: Runs([each for each in ordered if way(each) == name]) for name in names}
    return {name: group for name, group in found.items() if len(group)}


def of_topr(runs: Runs) -> dict[str, Runs]:
    return {name: group for name, group in ways(runs).items() if name in WAYS.values()}


def clips(runs: Runs) -> dict[str, Runs]:
    return {name: group for name, group in ways(runs).items() if name == "TOPR" or name.split(",")[0] in CLIPS}


def weighs(runs: Runs) -> dict[str, Runs]:
    others = {*of_topr(runs), *clips(runs)} - {"TOPR"}
    return {name: group for name, group in ways(runs).items() if name not in others}


def effective(record: Record) -> float:
    """Percent: what the answers of a batch are worth by their ratios, (Σ r)² / (B Σ r²), in the last updates."""
    return PERCENT * float(record["metrics"][EFFECTIVE][-1])


GROUPS = {"TOPR four ways": of_topr, "TOPR and what weighs": weighs, "TOPR and what clips or masks": clips}
AXIS: dict[str, Any] = {"xlabel": AGAIN, "legend": 2}
draw_staleness_long = grid(
    *(panel(against, groups, UPDATES, "pass@1", 0.05, base=True, title=name, **AXIS)
      for name, groups in GROUPS.items()),
    *(panel(each_seed, groups, UPDATES, last_length, 0.05, ylabel="tokens",
            title="mean length of the trained model's answers", **AXIS) for groups in (of_topr, weighs)),
    panel(each_seed, of_topr, UPDATES, effective, 0.05, ylabel="effective sample size (%)",
          title="of the ratios in the last updates", **AXIS),
    rows=all_together, columns=3, width=4.4,
)  # fmt: skip


def judge_staleness_long(runs: Runs, extra: Extra) -> list[Claim]:
    """What staleness costs each loss; at each staleness every other loss against TOPR, and what 1/T does to length."""
    found = []
    by_updates = {updates: ways(group) for updates, group in runs.split(UPDATES).items()}
    fresh, stale = by_updates.get(1, {}), by_updates.get(64, {})
    none = Runs([])
    for name in ways(runs):
        text = f"{name}: sampling after every update ends above sampling after every 64"
        found.append(above(text, difference(stale.get(name, none), fresh.get(name, none))))
    for updates, here in by_updates.items():
        for name, group in here.items():
            if name != "TOPR":
                text = f"{updates_of(updates)}: {name} ends above TOPR"
                found.append(above(text, difference(here.get("TOPR", none), group)))
        pairs = zip(*paired(here.get("TOPR", none), here.get("TOPR, without 1/T", none)), strict=True)
        gaps = [last_length(one) - last_length(two) for one, two in pairs]
        found.append(shorter(f"{updates_of(updates)}: TOPR's answers end shorter with 1/T", gaps))
    return found


def updates_of(updates: int) -> str:
    return f"{updates} update{'' if updates == 1 else 's'}"
