"""Staleness policies: which waiting group is trained on next, which are dropped, and a policy of one's own."""

import pyarrow as pa
import pytest

from tests.conftest import config_of, refused, values_of
from tests.extending import POLICY, project
from tests.training.test_asynchronous import LENGTHS, clock_of
from topr_exp.config.groups import ScheduleConfig
from topr_exp.config.staleness import Drop, FreshestFirst, Keep, StalenessPolicy, Wait, WaitingGroup
from topr_exp.runs.inputs import inputs_of


def waiting(position, age, complete_at, *lengths):
    tokens = pa.array([[1] * length for length in lengths])
    return WaitingGroup(position=position, age=age, complete_at=complete_at, table={"tokens": tokens})


WAITING = [waiting(0, 5, 3.0, 24, 1), waiting(1, 1, 9.0, 64), waiting(2, 1, 4.0, 32), waiting(3, 0, 9.5, 16)]
SCHEDULE = {"prompts": 1, "updates": 1, "rounds": 2, "concurrency": 1, "tokens_per_update": 8}


class DropAll(StalenessPolicy):
    """Drops every group."""

    def rank(self, group):
        return 0.0

    def drops(self, group):
        return True


@pytest.mark.parametrize(
    "policy, positions",
    [(Keep(), [0, 2, 1, 3]), (Drop(4), [2, 1, 3]), (Wait(4), [0, 1, 2, 3]), (FreshestFirst(4), [3, 2, 1])],
)
def test_the_order_of_training(policy, positions):
    remaining = [group for group in WAITING if not policy.drops(group)]

    assert values_of(sorted(remaining, key=policy.rank), "position") == positions


@pytest.mark.parametrize(
    "settings, policy",
    [
        ({}, Keep()),
        ({"when_stale": "drop", "max_lag": 3}, Drop(3)),
        ({"when_stale": "wait", "max_lag": 3}, Wait(3)),
        ({"when_stale": "freshest", "max_lag": 3}, FreshestFirst(3)),
        ({"when_stale": Drop(7)}, Drop(7)),
    ],
)
def test_a_word_names_a_policy(settings, policy):
    assert ScheduleConfig(**SCHEDULE, **settings).policy == policy


def test_a_policy_that_drops_all_is_named():
    clock = clock_of([1] * 5000, ScheduleConfig(**SCHEDULE, when_stale=DropAll()))

    with refused(r"^schedule\.when_stale drops all: 1001 groups before update 1$"):
        clock.take_batch(0)


OWN_POLICY = "schedule.when_stale._target_"


def test_a_policy_of_ones_own_trains_on_the_longest_first(tmp_path):
    with project(tmp_path, POLICY):
        words = [f"{OWN_POLICY}=longest_first.LongestFirst", "schedule.when_stale.max_lag=1"]
        config = config_of("schedule=async", *LENGTHS, *words)
        inputs = inputs_of(config)
    clock = clock_of([4, 8, 1, 1, 30] * 200, config.schedule)

    batches = [clock.take_batch(number) for number in range(20)]

    assert f"{OWN_POLICY} (longest_first.py)" in inputs["files"]
    assert clock.dropped
    for number, batch in enumerate(batches):
        assert number - min(values_of(batch, "born")) <= 1
    assert config.schedule.policy.rank(WAITING[1]) < config.schedule.policy.rank(WAITING[0])
