"""Staleness policies of users: one is trained by, and one that drops all is named."""

import pyarrow as pa

from tests.conftest import config_of, refused, values_of
from tests.extending import POLICY, project
from tests.training.test_asynchronous import LENGTHS, clock_of, schedule_of
from topr_exp.config.staleness import StalenessPolicy, WaitingGroup
from topr_exp.runs.inputs import hash_inputs
from topr_exp.training import clocked

OWN_POLICY = "schedule.when_stale._target_"


def waiting_group(length):
    """A complete group whose longest completion has so many tokens."""
    tokens = pa.array([[1], [1] * length])
    return WaitingGroup(position=0, age=1, complete_at=3.0, table={"tokens": tokens})


class DropAll(StalenessPolicy):
    """Drops every group."""

    def rank(self, group):
        return 0.0

    def drops(self, group):
        return True


def test_a_policy_that_drops_all_is_named(monkeypatch):
    monkeypatch.setattr(clocked, "MAX_DROPS", 3)
    clock = clock_of([1] * 50, schedule_of(DropAll(), concurrency=1, prompts=2))

    with refused(r"^schedule\.when_stale drops all: 7 groups before update 1$"):
        clock.take_batch(0)


def test_a_policy_of_ones_own_trains_on_the_longest_first(tmp_path):
    with project(tmp_path, POLICY):
        words = [f"{OWN_POLICY}=longest_first.LongestFirst", "schedule.when_stale.max_lag=1"]
        config = config_of("schedule=async", *LENGTHS, *words)
        inputs = hash_inputs(config)
    clock = clock_of([4, 8, 1, 1, 30] * 200, config.schedule)

    batches = [clock.take_batch(number) for number in range(20)]

    assert f"{OWN_POLICY} (longest_first.py)" in inputs["files"]
    assert clock.dropped
    for number, batch in enumerate(batches):
        assert number - min(values_of(batch, "born")) <= 1
    rank = config.schedule.staleness_policy.rank
    assert rank(waiting_group(64)) < rank(waiting_group(24))
