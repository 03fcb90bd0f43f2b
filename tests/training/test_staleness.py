"""Staleness policies: which waiting group is trained on next, which are dropped, and a policy of one's own."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import config_of, overrides
from tests.extending import POLICY, project
from tests.sweep_tools import records
from tests.training.test_asynchronous import LENGTHS, ROUNDS, Clock
from topr_exp.config.groups import ScheduleConfig
from topr_exp.config.staleness import Drop, FreshestFirst, Keep, StalenessPolicy, Wait, WaitingGroup
from topr_exp.pipeline import run
from topr_exp.types import ConfigError, TOPRError

WAITING = [
    WaitingGroup(position=0, age=5, complete_at=3.0, table={"tokens": pa.array([[1] * 24, [1]])}),
    WaitingGroup(position=1, age=1, complete_at=9.0, table={"tokens": pa.array([[1] * 64])}),
    WaitingGroup(position=2, age=1, complete_at=4.0, table={"tokens": pa.array([[1] * 32])}),
    WaitingGroup(position=3, age=0, complete_at=9.5, table={"tokens": pa.array([[1] * 16])}),
]


class DropAll(StalenessPolicy):
    """Drops every group."""

    def rank(self, group: WaitingGroup) -> float:
        return 0.0

    def drops(self, group: WaitingGroup) -> bool:
        return True


def trained_on(policy: StalenessPolicy) -> list[int]:
    """Positions of the groups that a policy keeps, in the order in which it trains on them."""
    remaining = [group for group in WAITING if not policy.drops(group)]
    return [group.position for group in sorted(remaining, key=policy.rank)]


@pytest.mark.parametrize(
    ("policy", "positions"),
    [(Keep(), [0, 2, 1, 3]), (Drop(4), [2, 1, 3]), (Wait(4), [0, 1, 2, 3]), (FreshestFirst(4), [3, 2, 1])],
)  # fmt: skip
def test_the_order_of_training(policy: StalenessPolicy, positions: list[int]) -> None:
    assert trained_on(policy) == positions


@pytest.mark.parametrize(
    ("settings", "policy"),
    [({}, Keep()), ({"when_stale": "drop", "max_lag": 3}, Drop(3)), ({"when_stale": "wait", "max_lag": 3}, Wait(3)),
     ({"when_stale": "freshest", "max_lag": 3}, FreshestFirst(3)), ({"when_stale": Drop(7)}, Drop(7))],
)  # fmt: skip
def test_a_word_names_a_policy(settings: dict[str, Any], policy: StalenessPolicy) -> None:
    schedule = ScheduleConfig(prompts=2, updates=1, rounds=1, concurrency=4, tokens_per_update=8, **settings)

    assert schedule.policy == policy


def test_a_policy_that_drops_all_is_named() -> None:
    schedule = ScheduleConfig(
        prompts=1, updates=1, rounds=2, concurrency=1, tokens_per_update=8, when_stale=DropAll()
    )  # fmt: skip
    clock = Clock([1] * 5000, schedule)

    with pytest.raises(TOPRError, match=r"^schedule\.when_stale drops all: 1001 groups before update 1$"):
        clock.by_length(0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["schedule.when_stale=oldest"], "when_stale=oldest: expected one of keep, drop, wait, freshest or {_target_:"),
        (["schedule.when_stale._target_=topr_exp.types.Batch"], "Batch: not a staleness policy"),
        (["schedule.when_stale._target_=topr_exp.config.staleness.Drop"], "schedule.when_stale.max_lag is not set"),
        (["schedule.when_stale._target_=topr_exp.config.staleness.Drop", "schedule.when_stale.max_lag=-1"],
         "schedule.when_stale.max_lag must be 0 or more; got -1"),
        (["schedule.when_stale._target_=topr_exp.config.staleness.Keep",
          "schedule.max_lag=3"], "schedule.max_lag must be set where when_stale is one of drop, wait, freshest"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of("schedule=async", *LENGTHS, *words)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_of_ones_own_trains_on_the_longest_first(tmp_path: Path) -> None:
    with project(tmp_path, POLICY):
        words = ["schedule.when_stale._target_=longest_first.LongestFirst", "schedule.when_stale.max_lag=1"]
        config = config_of(*overrides(tmp_path / "out", "schedule=async", *ROUNDS, *LENGTHS, *words))
        summary = run(config)

    inputs = json.loads((config.folder / "inputs.json").read_text())
    assert [key for key in inputs["files"] if "when_stale" in key] == [
        "schedule.when_stale._target_ (longest_first.py)"
    ]  # fmt: skip
    assert max(line["age_q95"] for line in records(config.folder)) <= 1
    assert "dropped_share" in summary["asynchrony"]
    assert config.schedule.policy.rank(WAITING[1]) < config.schedule.policy.rank(WAITING[0])
