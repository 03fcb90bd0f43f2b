"""Asynchronous training: a lag of 0 is on-policy bit for bit, the clock is that of a simulation tick by tick."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import column, each_row, needs_peft, small_config, values_of
from tests.sweep_tools import records, result
from tests.training.broken_runs import run_both, twins
from topr_exp.composition.draws import random_generator
from topr_exp.config.groups import ScheduleConfig
from topr_exp.pipeline import run
from topr_exp.training.clocked import ClockedRounds
from topr_exp.training.dropped_shares import DroppedShares
from topr_exp.training.lagged import LaggedRounds
from topr_exp.training.rounds import Rounds
from topr_exp.types import CORRECT, INCORRECT

ROUNDS = ["schedule.rounds=5", "schedule.prompts=4", "data.n=4", "optim.batch_size=16", "optim.lr=1e-3"]
SHORT = ["data.test_problems=2", "data.eval_n=1"]
LENGTHS = ["schedule.lag=null", "schedule.concurrency=6", "schedule.tokens_per_update=9"]
BY_LENGTH = " ".join(LENGTHS)
DROP = f"{BY_LENGTH} schedule.max_lag=1 schedule.when_stale=drop"
IN_FLIGHT = f"{BY_LENGTH} schedule.tokens_per_update=4 schedule.in_flight=true"
GRADED = "data.grader._target_=tests.reference.closeness.grade data.reward=graded data.threshold=2.5 baseline=1"
LORA = "model.lora={rank:4,alpha:8,targets:all-linear}"
TOKENS_PER_UPDATE = 10  # of the simulations; a tenth has no exact float
extended = pytest.mark.extended


def settings_in_rounds(words):
    return [*SHORT, *ROUNDS, *words.split()]


def config_in_rounds(folder, words):
    return small_config(folder, *settings_in_rounds(words))


@pytest.mark.parametrize(
    "words", ["", pytest.param(f"{GRADED} {LORA}", marks=[extended, needs_peft])], ids=["", "graded, lora"]
)
def test_a_lag_of_0_is_on_policy_bit_for_bit(tmp_path, words):
    on_policy = config_in_rounds(tmp_path, f"schedule=on_policy schedule.rounds=3 {words}")
    asynchronous = config_in_rounds(tmp_path, f"schedule=async schedule.lag=0 schedule.rounds=3 {words}")

    run(on_policy)
    seconds = run(asynchronous)["seconds"]

    lines = records(asynchronous.folder)
    for line in lines:
        assert line.pop("ess_age0") == line["ess"]
        for name in ("age", "age_q05", "age_q50", "age_q95"):
            assert line.pop(name) == 0
        assert line.pop("problems_drawn") == 4
    assert lines == records(on_policy.folder)
    assert result(asynchronous.folder)["weights"] == result(on_policy.folder)["weights"]
    for stage in ("sampling", "grading", "scoring"):
        assert seconds[stage] > 0, "timed apart from training"


def test_a_lag_trains_on_the_answers_of_older_weights(tmp_path, capsys):
    config = config_in_rounds(tmp_path, "schedule=async schedule.lag=2")

    run(config)

    lines = records(config.folder)
    assert column(lines, "age") == [0, 1, 2, 2, 2]
    for number, line in enumerate(lines):
        assert (line["sampled_correct"] is None) == (number > 2)
        assert (abs(line["log_ratio_q50_neg"]) > 1e-4) == (number > 0)
    assert "nan" not in capsys.readouterr().err


def run_broken_and_undisturbed(folder, words):
    """The records of a run that broke off and went on, which are those of an undisturbed one; its summary."""
    settings = settings_in_rounds(f"checkpoint.every_seconds=0 schedule=async {words}")
    undisturbed, broken = twins(folder, *settings)
    expected, summary = run_both(undisturbed, broken, updates=3)
    assert summary["tokens"] == expected["tokens"]
    assert summary["asynchrony"] == expected["asynchrony"]
    return records(broken.folder), summary


@extended
@pytest.mark.parametrize(
    "words",
    [
        "schedule.lag=2 sampler.mismatch.weights=int8",
        DROP,
        "schedule.lag=[0.4,0.3,0.3] compose.pass_rate=[0,0.9] mu=sampler",
        f"{DROP} schedule.in_flight=true mu=sampler",
    ],
    ids=["constant", "lengths", "shares", "in flight, drop"],
)
def test_a_run_that_broke_off_goes_on_bit_for_bit(tmp_path, words):
    lines, summary = run_broken_and_undisturbed(tmp_path, words)

    assert max(column(lines, "age_q95")) > 0
    if "drop" in words:
        assert {"age", "virtual_time", "sampler_idle", "dropped_share_correct"} <= summary["asynchrony"].keys()


# ---- weights that change within a completion


def test_a_token_has_the_log_mu_of_the_weights_of_its_moment_also_where_a_run_broke_off(tmp_path):
    """It is what the sampler gave when it drew the token, by weights that are gone when it is trained on."""
    lines, _ = run_broken_and_undisturbed(tmp_path, f"{IN_FLIGHT} sampler.prompts_per_shard=4 schedule.rounds=6")

    assert max(column(lines, "sampler_gap")) < 1e-5
    assert max(column(lines, "age_q05")) > 0
    assert min(column(lines, "log_ratio_q05_neg")) < -1e-2


# ---- the clock


def without_sampling(rounds_class, schedule):
    """Rounds without a model."""
    collector = SimpleNamespace(
        trainer=None,
        n=2,
        iteration=1,
        sampler=SimpleNamespace(config=SimpleNamespace(prompts_per_shard=8)),
        questions=SimpleNamespace(prompts=range(schedule.prompts), problems=[]),
    )
    selection = SimpleNamespace(pass_rate=[0.1, 0.9])
    return rounds_class(collector, None, schedule, selection, seed=0, mu_is_samplers=False)


class Clock(ClockedRounds):
    """The clock alone: the longest completions of the groups have the given lengths, and nothing is sampled."""

    lengths = ()
    dropped = ()  # all groups so far
    continued = ()  # tokens that each group under way kept when the weights changed

    def continue_with_current_weights(self, number):
        self.continued = list(self.lengths_so_far().values())

    def drop_stale(self, number):
        dropped = super().drop_stale(number)
        self.dropped = [*self.dropped, *dropped]
        return dropped

    def next_group(self):
        self.groups_begun += 1
        tokens = pa.array([[0], [0] * self.lengths[self.groups_begun - 1]], pa.list_(pa.int32()))
        return pa.table({"tokens": tokens, "group": [self.groups_begun - 1] * 2})


def clock_of(lengths, schedule):
    clock = without_sampling(Clock, schedule)
    clock.lengths = lengths
    clock.dropped_shares = SimpleNamespace(add=lambda groups, is_dropped: None)
    return clock


def numbers_of(groups):
    return [group.table["group"][0].as_py() for group in groups]


def schedule_of(when_stale, max_lag=None, **changes):
    settings = {"rounds": 12, "updates": 1, "tokens_per_update": TOKENS_PER_UPDATE, "in_flight": True}
    return ScheduleConfig(when_stale=when_stale, max_lag=max_lag, **settings | changes)


@dataclass
class Tick:
    """A group in the simulation."""

    number: int
    version: int
    length: int
    tokens: int = 0
    end: float = math.inf

    @property
    def is_complete(self):
        return self.tokens >= self.length


@dataclass
class SimulatedUpdate:
    batch: list[Tick]
    kept_tokens: list[int]  # of each group under way when the weights changed
    begun: int  # groups, when the batch is complete
    trainer_idle: int  # ticks
    sampler_idle: float  # ticks by the share of free places


class Simulation:
    """The same, token by token."""

    def __init__(self, lengths, schedule):
        self.lengths = lengths
        self.schedule = schedule
        self.groups = []
        self.begun = 0
        self.now = 0
        self.free = 0.0

    def under_way(self):
        return [group for group in self.groups if not group.is_complete]

    def begin(self, version, room):
        while len(self.under_way()) < self.schedule.concurrency and len(self.groups) < room:
            self.groups.append(Tick(self.begun, version, self.lengths[self.begun]))
            self.begun += 1

    def tick(self):
        self.now += 1
        self.free += 1 - len(self.under_way()) / self.schedule.concurrency
        for group in self.under_way():
            group.tokens += 1
            if group.is_complete:
                group.end = self.now

    def ready_batch(self):
        prompts = self.schedule.prompts
        candidates = self.groups
        if self.schedule.when_stale != "wait":
            complete = [group for group in self.groups if group.is_complete]
            candidates = sorted(complete, key=lambda group: (group.end, group.number))
        if self.schedule.when_stale == "freshest":
            candidates.sort(key=lambda group: -group.version)
        batch = candidates[:prompts]
        is_ready = len(batch) == prompts and all(group.is_complete for group in batch)
        return batch if is_ready else None

    def drop_stale(self, version):
        if self.schedule.when_stale in ("drop", "freshest"):
            oldest = version - self.schedule.max_lag
            self.groups = [group for group in self.groups if not group.is_complete or group.version >= oldest]

    def update(self, version):
        schedule = self.schedule
        start = self.now
        kept_tokens = values_of(self.under_way(), "tokens")
        room = schedule.concurrency + max(schedule.concurrency, schedule.prompts)
        room_meanwhile = room
        if schedule.when_stale == "wait":
            room = schedule.prompts * (schedule.max_lag + 1)
            room_meanwhile = room - schedule.prompts
        self.free = 0.0
        while True:
            self.drop_stale(version)
            self.begin(version, room)
            if batch := self.ready_batch():
                break
            self.tick()
            self.begin(version, room)
        idle = self.now - start
        begun = self.begun
        self.groups = [group for group in self.groups if group not in batch]
        for _ in range(schedule.tokens_per_update):
            self.begin(version, room_meanwhile)
            self.tick()
        self.begin(version, room_meanwhile)
        return SimulatedUpdate(batch, kept_tokens, begun, idle, self.free)


# schedule.when_stale | schedule.max_lag
POLICIES = """
"keep" | None
"drop" | 0
"drop" | 2
"wait" | 0
"wait" | 1
"wait" | 4
"freshest" | 0
"freshest" | 3
"""


@pytest.mark.parametrize("concurrency, prompts", [(1, 1), (3, 2), (8, 3), (2, 4)])
@each_row("policy limit", POLICIES, literals=True)
def test_the_clock_is_that_of_a_simulation_tick_by_tick(policy, limit, concurrency, prompts):
    lengths = np.random.default_rng(concurrency).integers(1, 30, size=2000).tolist()
    schedule = schedule_of(policy, limit, concurrency=concurrency, prompts=prompts)
    clock = clock_of(lengths, schedule)
    simulation = Simulation(lengths, schedule)
    for number in range(schedule.rounds):
        expected = simulation.update(number)
        start = clock.now

        batch = clock.take_batch(number)

        versions = values_of(batch, "born")
        assert numbers_of(batch) == values_of(expected.batch, "number")
        assert versions == values_of(expected.batch, "version")
        assert clock.continued == expected.kept_tokens
        idle_time = expected.trainer_idle / TOKENS_PER_UPDATE
        assert clock.trainer_idle == pytest.approx(idle_time)
        assert clock.now == pytest.approx(start + idle_time + 1)
        if number + 1 < schedule.rounds:
            assert clock.sampler_idle == pytest.approx(expected.sampler_idle / TOKENS_PER_UPDATE)
        else:
            assert clock.groups_begun == expected.begun, "after the last batch nothing more is drawn"
        assert limit is None or number - min(versions) <= limit
        assert policy in ("drop", "freshest") or not clock.dropped


def with_problems(rounds, count):
    """Have rounds draw of these problems; returns (update, problem) of all draws."""
    draws = []

    def collect(indices, due, first_shard):
        draws.extend((due, index) for index in indices)
        return pa.table({"problem": indices})

    rounds.collector.questions = SimpleNamespace(prompts=range(count))
    rounds.collector.collect = collect
    return draws


def test_the_next_group_is_of_the_next_problem_that_the_pass_rate_keeps():
    rounds = without_sampling(ClockedRounds, schedule_of("keep", concurrency=1, prompts=4))
    draws = with_problems(rounds, 9)
    order = random_generator(0, 1, "prompts 0").permutation(9).tolist()
    fourth_problem = order[3]
    rounds.solved_often_enough = lambda table: [table] if table["problem"].to_pylist() == [fourth_problem] else []

    table = rounds.next_group()

    assert table["problem"].to_pylist() == [fourth_problem]
    assert column(draws, 1) == order[:4]


def test_no_problem_is_drawn_twice_for_an_update_whatever_its_lags():
    rounds = without_sampling(LaggedRounds, ScheduleConfig(prompts=6, updates=1, rounds=5, lag=[0.3, 0.3, 0.4]))
    draws = with_problems(rounds, 40)
    rounds.solved_often_enough = lambda table: []

    for number in range(5):
        rounds.take_batch(number)

    assert len(draws) == len({*draws}) > 5 * 6 * 2


def test_what_is_dropped_is_counted_by_verdict_length_and_level():
    tokens = pa.array([[1] * 3, [1] * 8], pa.list_(pa.int32()))
    table = pa.table({"tokens": tokens, "verdict": [CORRECT, INCORRECT], "problem": [0, 0]})
    shares = DroppedShares([SimpleNamespace(level=3)])

    shares.add([table], is_dropped=True)
    shares.add([table.take([0, 0])], is_dropped=False)

    assert shares.metrics() == {
        "dropped_share": 2 / 4,
        "dropped_share_correct": 1 / 3,
        "dropped_share_incorrect": 1,
        "dropped_share_length2": 1 / 3,
        "dropped_share_length8": 1,
        "dropped_share_level3": 2 / 4,
    }


# ---- checkpoints


def restored_copy(rounds, folder):
    """The same rounds as their checkpoint has them."""
    ((name, content),) = rounds.checkpoint_files().items()
    (folder / name).write_bytes(content)
    copy = without_sampling(type(rounds), rounds.schedule)
    copy.trainer = rounds.trainer
    copy.restore(folder)
    return copy


def test_an_empty_queue_is_restored(tmp_path):
    rounds = without_sampling(LaggedRounds, ScheduleConfig(prompts=6, updates=1, rounds=5, lag=0))
    rounds.summary = {"sampled_correct": 0.5}

    restored = restored_copy(rounds, tmp_path)

    assert restored.queue == []
    assert restored.summary == rounds.summary


def test_between_rounds_the_buffer_is_restored_with_the_names_of_figures(tmp_path):
    """A round that replays all it trains on has no completions to measure, and the names of the round before."""
    rounds = without_sampling(Rounds, ScheduleConfig(prompts=2, updates=1, rounds=5, replay=0.5))
    rounds.trainer = SimpleNamespace(step=3)
    for problem in (4, 0, 7):
        rounds.buffer.append(pa.table({"problem": [problem] * rounds.n}))
    rounds.summary = {"sampled_correct": 0.5}

    restored = restored_copy(rounds, tmp_path)

    assert restored.buffer == rounds.buffer
    assert restored.summary == rounds.summary


# ---- what staleness does to the gradient


P_LONG = 0.02


def scores_by_the_clock(policy, max_lag=None, groups=4000):
    """Mean scores of the answers that are trained on, and which groups are dropped, of groups of 2 answers.

    An answer is long with probability p, else short; a long one takes 12 updates. The score, with respect to the
    log-odds of a long answer, is 1 − p of a long one and −p of a short one.
    """
    is_long = np.random.default_rng(0).random((2 * groups, 2)) < P_LONG
    scores = np.where(is_long, 1 - P_LONG, -P_LONG)
    lengths = np.where(is_long.any(1), 12 * TOKENS_PER_UPDATE, 1).tolist()
    clock = clock_of(lengths, schedule_of(policy, max_lag, concurrency=8, prompts=2, rounds=10**9))
    trained = []
    number = 0
    while clock.groups_begun < groups:
        trained += numbers_of(clock.take_batch(number))
        number += 1
    return scores[trained], is_long[numbers_of(clock.dropped)]


def test_keeping_what_is_stale_is_unbiased():
    scores, _ = scores_by_the_clock("keep")

    standard_error = math.sqrt(P_LONG * (1 - P_LONG) / scores.size)
    assert abs(scores.mean()) < 3 * standard_error


def test_dropping_what_is_stale_trains_towards_short_answers():
    """Of all groups (1 − p)² are kept, those without a long answer: the mean score, 0 of all, is −p."""
    scores, dropped = scores_by_the_clock("drop", 10)

    dropped_share = len(dropped) / (len(dropped) + len(scores))
    assert scores.mean() == pytest.approx(-P_LONG)
    assert dropped.any(1).all()
    assert dropped_share == pytest.approx(1 - (1 - P_LONG) ** 2, abs=0.01)
