"""Beyond the papers: learning rate and lag of completions; what to do where lengths decide the age."""

from functools import partial

import numpy as np

from reproduce.claims import (
    Claim,
    Decision,
    Extra,
    above,
    below,
    claim_by_seeds,
    combined_interval,
    ends_above,
    for_each,
    judge_by,
    others_end_above,
    paired_records,
)
from reproduce.figure import Figure
from reproduce.groups import algorithms, by_choice, name_of, rates
from reproduce.numbers import last_metric
from reproduce.panels import PERCENT, Panel, bars, cells, grid
from reproduce.selection import Record, Runs, pick

KEEP, DROP = "schedule.concurrency=8 schedule.when_stale=null", "schedule.when_stale=drop"
WHEN_STALE = {"keep": [KEEP], "drop": [DROP], "wait": ["schedule.when_stale=wait"]}
LAGS = {
    "lag 0": ["schedule.lag=0"],
    "lag 1": ["schedule.lag=1"],
    "lag 4": ["schedule.lag=4"],
    "lag 16": ["schedule.lag=16"],
    "lag 64": ["schedule.lag=64"],
}
when_stale = by_choice(WHEN_STALE)
lags = by_choice(LAGS | WHEN_STALE)
RIVALS = {"GRPO": "grpo", "PPO": "ppo", "DPPO": "dppo_tv", "VESPO": "vespo", "TIS": "tis"}


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    labels = {"xlabel": "lag of completions (updates)"}
    drawn_panels = []
    for name, members in algorithms(runs).items():
        draw_cells = partial(cells, runs=members, key="schedule.lag")
        drawn_panels.append(Panel(draw_cells, f"{name_of(name)}: pass@1 (%)", labels=labels))
    by_lengths = pick(runs, "data.name=math")
    draw_bars = partial(bars, groups=when_stale(by_lengths))
    drawn_panels.append(Panel(draw_bars, "TOPR, MATH-like, ages by lengths", base=by_lengths))
    return drawn_panels


def fresh_is_best(algorithm: str) -> list[Decision]:
    def claims_at(rate: str) -> list[Decision]:
        return [ends_above(f"{algorithm}, {rate}: lag 0 ends above 64", "schedule.lag=0", "schedule.lag=64")]

    return [for_each(rates, claims_at)]


def topr_above(name: str, rival: str) -> Decision:
    cell = "optim.lr=0.0003 schedule.lag=64"
    return ends_above(f"at 3e-4, lag 64: TOPR ends above {name}", f"topr {cell}", f"{rival} {cell}")


def costs_more_by_lag(algorithm: str) -> list[Decision]:
    """Of two cells with similar products of rate and mean age, the older one's completions cost more."""

    def difference_of_costs(
        slow_new: np.ndarray, slow_old: np.ndarray, fast_new: np.ndarray, fast_old: np.ndarray, base: np.ndarray
    ) -> np.ndarray:
        return (slow_new - slow_old) - (fast_new - fast_old)

    def judge(runs: Runs, extra: Extra) -> Claim:
        interval = combined_interval(
            runs,
            difference_of_costs,
            "optim.lr=0.0001 schedule.lag=0",
            "optim.lr=0.0001 schedule.lag=64",
            "optim.lr=0.0003 schedule.lag=0",
            "optim.lr=0.0003 schedule.lag=16",
        )
        return above(f"{algorithm}: lag 64 at 1e-4 costs more than lag 16 at 3e-4, each against lag 0", interval)

    return [judge]


def dropped_completions(runs: Runs, extra: Extra) -> list[Claim]:
    """Which completions are dropped more often for their age, and if what is trained on is shorter than all."""
    dropping, keeping = pick(runs, f"schedule.concurrency=8 {DROP}"), pick(runs, KEEP)
    differences = []
    for drop_record, keep_record in paired_records(dropping, keeping):
        differences.append(trained_length(drop_record) - trained_length(keep_record))
    tokens = [f"{difference:+.1f}" for difference in differences]
    return [
        dropped_more_often(dropping, "length32", "length16", "completions of 32 to 63 tokens", "those of 16 to 31"),
        dropped_more_often(dropping, "level5", "level1", "completions to problems of level 5", "of level 1"),
        dropped_more_often(dropping, "incorrect", "correct", "incorrect completions", "correct ones"),
        claim_by_seeds(
            "the completions that drop trains on are shorter than keep's",
            differences,
            f"tokens of each seed: {' '.join(tokens)}",
            below,
        ),
    ]


def dropped_more_often(runs: Runs, kind: str, other_kind: str, name: str, other_name: str) -> Claim:
    """That a share of dropped completions is above another's, in the last updates."""
    leads, texts = [], []
    for record in runs:
        share = PERCENT * last_metric(record, f"dropped_share_{kind}")
        other_share = PERCENT * last_metric(record, f"dropped_share_{other_kind}")
        leads.append(share - other_share)
        texts.append(f"{share:.1f} against {other_share:.1f}")
    text = f"drop: {name} are dropped more often than {other_name}"
    return claim_by_seeds(text, leads, f"% of each seed: {', '.join(texts)}")


def trained_length(record: Record) -> float:
    """Mean tokens of the completions that a run trained on."""
    return float(np.mean(record["metrics"]["sampled_length"]))


FIGURE = Figure(
    name="lag",
    title="Beyond the papers: learning rate and age",
    claim="The same 64 updates on completions that wait for 0 to 64 updates: does learning rate times age decide? And "
    "where lengths decide the age, is it better to keep, drop or wait for what is older than 4 updates?",
    experiments=(
        "lag",
        "lag algo=topr data=math optim.lr=3e-4 schedule.lag=null schedule.concurrency=8 schedule.tokens_per_update=8",
        "lag algo=topr data=math optim.lr=3e-4 schedule.lag=null schedule.concurrency=8 schedule.tokens_per_update=8 "
        "schedule.max_lag=4 schedule.when_stale=drop,wait",
    ),
    draw=grid(panels, columns=4),
    judge=judge_by(
        for_each(algorithms, fresh_is_best),
        for_each(algorithms, costs_more_by_lag),
        *(topr_above(name, rival) for name, rival in RIVALS.items()),
        others_end_above(lambda choice: f"ages by lengths: {choice} ends above keep", when_stale, "keep"),
        dropped_completions,
    ),
    levels=(algorithms, lags, rates),
    full_words=(),
    only_full=True,
    names_models=True,
    metrics=(
        "ess",
        "age",
        "sampled_length",
        "dropped_share",
        "dropped_share_length8",
        "dropped_share_length16",
        "dropped_share_length32",
        "dropped_share_length64",
        "dropped_share_length128",
        "dropped_share_level1",
        "dropped_share_level2",
        "dropped_share_level3",
        "dropped_share_level4",
        "dropped_share_level5",
        "dropped_share_correct",
        "dropped_share_incorrect",
        "dropped_share_invalid",
        "trainer_idle",
    ),
    note="Completions are as old as the lag, but in as many first updates only as old as the run: with lag 16 on "
    "average 13.9 updates, with lag 64, where all are drawn at the start, 31.5. All rates of the grid are shown, none "
    "is chosen. Ages by lengths: MATH-like problems, 8 under way at once, 8 tokens an update.",
)
