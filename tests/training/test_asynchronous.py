"""Asynchronous training: a lag of 0 is on-policy bit for bit, the clock is that of a simulation tick by tick."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.conftest import config_of, overrides
from tests.sweep_tools import records, result
from tests.training.broken_runs import break_off
from topr_exp.composition.draws import random_generator
from topr_exp.config.groups import ScheduleConfig
from topr_exp.pipeline import run
from topr_exp.training.asynchronous import AsyncRounds, Group, Usage, longest
from topr_exp.training.metrics import MetricAccumulator, effective_sample_size
from topr_exp.types import CORRECT, INCORRECT

ROUNDS = ["schedule.rounds=5", "schedule.prompts=4", "data.n=4", "optim.batch_size=16", "optim.lr=1e-3"]
LENGTHS = ["schedule.lag=null", "schedule.concurrency=6", "schedule.tokens_per_update=9"]
DROP = [*LENGTHS, "schedule.max_lag=1", "schedule.when_stale=drop"]
GRADED = [
    "data.grader._target_=tests.reference.closeness.grade",
    "data.reward=graded",
    "data.threshold=2.5",
    "baseline=1",
]
LORA = "model.lora={rank: 4, alpha: 8, targets: all-linear}"
IN_FLIGHT = [*LENGTHS, "schedule.tokens_per_update=4", "schedule.in_flight=true"]


@pytest.mark.parametrize(
    "more", [[], pytest.param([*GRADED, LORA], marks=pytest.mark.extended)], ids=["", "graded, lora"]
)
def test_a_lag_of_0_is_on_policy_bit_for_bit(tmp_path: Path, more: list[str]) -> None:
    fresh = config_of(*overrides(tmp_path, "schedule=on_policy", *ROUNDS, *more))
    none = config_of(*overrides(tmp_path, "schedule=async", "schedule.lag=0", *ROUNDS, *more))
    for config in (fresh, none):
        seconds = run(config)["seconds"]
        assert all(seconds[stage] > 0 for stage in ("sampling", "grading", "scoring")), "timed apart from training"
    logged = records(none.folder)
    assert {line["age_q95"] for line in logged} == {0}
    assert [line.pop("ess_age0") for line in logged] == [line["ess"] for line in logged]
    assert [{key: line[key] for key in line if "age" not in key} for line in logged] == records(fresh.folder)
    assert result(none.folder)["weights"] == result(fresh.folder)["weights"]


def test_a_lag_trains_on_the_answers_of_older_weights_to_the_same_problems(tmp_path, capsys):
    """With steps too small to change an answer, an update sees the answers that it sees on-policy."""
    still = "optim.lr=1e-12"
    fresh = config_of(*overrides(tmp_path, "schedule=on_policy", *ROUNDS, still))
    late = config_of(*overrides(tmp_path, "schedule=async", "schedule.lag=2", *ROUNDS, still))
    moving = config_of(*overrides(tmp_path, "schedule=async", "schedule.lag=2", *ROUNDS))
    for config in (fresh, late, moving):
        run(config)
    assert [line["tokens"] for line in records(late.folder)] == [line["tokens"] for line in records(fresh.folder)]
    assert "nan" not in capsys.readouterr().err
    logged = records(moving.folder)
    assert [line["age"] for line in logged] == [0, 1, 2, 2, 2]
    assert [line["sampled_correct"] is None for line in logged] == [False, False, False, True, True]
    assert [abs(line["log_ratio_q50_neg"]) > 1e-4 for line in logged] == [False, True, True, True, True]


@pytest.mark.parametrize(
    "settings",
    [
        ["schedule.lag=2", "sampler.mismatch.weights=int8"],
        pytest.param(DROP, marks=pytest.mark.extended),
        pytest.param(
            ["schedule.lag=[0.4,0.3,0.3]", "compose.pass_rate=[0,0.9]", "mu=sampler"], marks=pytest.mark.extended
        ),
        [*IN_FLIGHT, "sampler.prompts_per_shard=4"],
        pytest.param([*DROP, "schedule.in_flight=true", "mu=sampler"], marks=pytest.mark.extended),
    ],
    ids=["constant", "lengths", "shares", "in flight", "in flight, drop"],
)
def test_a_run_that_broke_off_goes_on_bit_for_bit(tmp_path: Path, settings: list[str]) -> None:
    given = ["checkpoint.every_seconds=0", "schedule=async", *ROUNDS, *settings]
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *given)) for name in ("a", "b"))
    whole = run(undisturbed)
    break_off(broken, lambda trainer: trainer.step == 3)
    again = run(broken)
    assert (again["tokens"], again["asynchrony"]) == (whole["tokens"], whole["asynchrony"])
    if "drop" in " ".join(settings):
        assert {"age", "virtual_time", "sampler_idle", "dropped_share_correct"} <= whole["asynchrony"].keys()
    assert result(broken.folder) == result(undisturbed.folder)
    assert max(line["age_q95"] for line in records(broken.folder)) > 0


# ---- weights that change within a completion


def test_completions_that_end_within_an_update_are_drawn_by_one_policy(tmp_path: Path) -> None:
    fast = ["schedule=async", *ROUNDS, *LENGTHS, "schedule.tokens_per_update=1000"]
    whole, changed = (
        config_of(*overrides(tmp_path, *fast, f"schedule.in_flight={flag}")) for flag in ("false", "true")
    )
    for config in (whole, changed):
        run(config)
    assert result(whole.folder)["weights"] == result(changed.folder)["weights"]


def test_a_token_has_the_log_mu_of_the_weights_of_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of each update score the completions again; a token is of those that were there when it began."""
    versions: list[Any] = []  # of the weights, by update
    times: list[float] = []  # from which they were there
    found: list[tuple[Group, list[pa.Table]]] = []  # what is trained on, with what each version makes of it
    by_length = AsyncRounds.by_length

    def scores(self: AsyncRounds, columns: pa.Table) -> list[pa.Table]:
        bare = columns.select(["sample", "tokens", "text", "finish", "sampler_logp"])
        bare = bare.add_column(0, "problem", pa.array([0] * self.n, pa.int32()))
        model, scored = self.trainer.policy.model, []
        for version in versions:
            model.load_state_dict(version)
            scored.append(self.collector.grade_and_score(bare, self.trainer.policy, columns["problem"].to_numpy()[:1]))
        return scored

    def recorded(self: AsyncRounds, number: int) -> tuple[list[Group], list[Group]]:
        versions.append({name: weight.clone() for name, weight in self.trainer.policy.model.state_dict().items()})
        times.append(self.now)
        batch, dropped = by_length(self, number)
        found.extend((group, scores(self, group.table)) for group in batch)
        return batch, dropped

    monkeypatch.setattr(AsyncRounds, "by_length", recorded)
    config = config_of(*overrides(tmp_path, "schedule=async", *ROUNDS, *IN_FLIGHT, "schedule.rounds=6"))
    run(config)
    mixed = 0
    for group, by_version in found:
        began = group.due - longest(group.table) / 4
        for row, logp in enumerate(group.table["logp"].to_pylist()):
            assert logp == pytest.approx(group.table["sampler_logp"][row].as_py(), abs=1e-4)
            drew = np.searchsorted(times, [began + token / 4 + 1e-6 for token in range(len(logp))], side="right") - 1
            known = np.array([scored["logp"][row].as_py() for scored in by_version])
            assert logp == pytest.approx(known[drew, np.arange(len(logp))], abs=1e-5)
            mixed += np.abs(known - logp).max(1).min() > 1e-3
    assert mixed > 20
    assert max(line["age_q95"] for line in records(config.folder)) > 1


# ---- the clock


class Clock(AsyncRounds):
    """The clock alone: groups have these lengths, and nothing is sampled."""

    def __init__(self, lengths: list[int], schedule: ScheduleConfig) -> None:
        sampler = SimpleNamespace(config=SimpleNamespace(prompts_per_shard=8))
        collector: Any = SimpleNamespace(trainer=None, n=1, iteration=1, sampler=sampler)
        selection: Any = SimpleNamespace(pass_rate=[0.1, 0.9])
        compose: Any = None
        super().__init__(collector, compose, schedule, selection, seed=0, mu_is_samplers=False)
        self.lengths, self.idle = lengths, {"trainer_idle": 0.0, "sampler_idle": 0.0}

    def next_group(self) -> pa.Table:
        self.begun += 1
        tokens = [[0] * self.lengths[self.begun - 1]]
        return pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "group": [self.begun - 1]})


def schedule_of(when_stale: Any, limit: int | None, concurrency: int, prompts: int) -> ScheduleConfig:
    return ScheduleConfig(
        prompts=prompts, updates=1, rounds=12, concurrency=concurrency, tokens_per_update=8, max_lag=limit,
        when_stale=when_stale,
    )  # fmt: skip


def by_ticks(lengths: list[int], schedule: ScheduleConfig) -> Iterator[tuple[list[int], list[int], int, int, float]]:
    """The same, token by token: numbers of a batch, their ages, the tick at which they are ready, idle ticks.

    Idle ticks are the trainer's, and the sampler's up to the end of this update: each tick the share of free places.
    """
    prompts, slots, limit, policy = schedule.prompts, schedule.concurrency, schedule.max_lag, schedule.when_stale
    waits, drops = policy == "wait", policy == "drop"
    groups: list[SimpleNamespace] = []  # begun and not trained on
    begun = now = 0
    free = 0.0

    def begin(version: int, room: int) -> None:
        nonlocal begun
        while sum(group.left > 0 for group in groups) < slots and len(groups) < room:
            groups.append(SimpleNamespace(number=begun, version=version, left=lengths[begun], done=math.inf))
            begun += 1

    def tick() -> None:
        nonlocal now, free
        now += 1
        free += 1 - sum(group.left > 0 for group in groups) / slots
        for group in groups:
            group.left -= 1
            if group.left == 0:
                group.done = now

    for version in range(schedule.rounds):
        room = prompts * (limit + 1) if waits else slots + max(slots, prompts)
        idle, free = 0, 0.0
        while True:
            if drops:
                groups[:] = [g for g in groups if not (g.left <= 0 and version - g.version > limit)]
            begin(version, room)
            order = groups if waits else sorted((g for g in groups if g.left <= 0), key=lambda g: (g.done, g.number))
            batch = order[:prompts]
            if len(batch) == prompts and all(group.left <= 0 for group in batch):
                break
            tick()
            idle += 1
            begin(version, room)
        groups[:] = [group for group in groups if group not in batch]
        ready = now
        for place in range(schedule.tokens_per_update):
            begin(version, room - (prompts if waits else 0))
            tick()
            if place == schedule.tokens_per_update - 1:
                begin(version, room - (prompts if waits else 0))
        yield [group.number for group in batch], [version - group.version for group in batch], ready, idle, free


@pytest.mark.parametrize(("concurrency", "prompts"), [(1, 1), (3, 2), (8, 3), (2, 4)])
@pytest.mark.parametrize(
    ("policy", "limit"), [("keep", None), ("drop", 0), ("drop", 2), ("wait", 0), ("wait", 1), ("wait", 4)]
)
@pytest.mark.parametrize("seed", range(3))
def test_the_clock_is_that_of_a_simulation_tick_by_tick(policy, limit, concurrency, prompts, seed):
    lengths = np.random.default_rng(seed).integers(1, 30, size=2000).tolist()
    schedule = schedule_of(policy, limit, concurrency, prompts)
    clock, taken = Clock(lengths, schedule), []
    for number, (groups, ages, now, idle, free) in enumerate(by_ticks(lengths, schedule)):
        before, clock.idle = clock.now, {"trainer_idle": 0.0, "sampler_idle": 0.0}
        batch, dropped = clock.by_length(number)
        found = [group.table["group"][0].as_py() for group in batch]
        assert (found, [number - group.born for group in batch]) == (groups, ages), number
        assert clock.idle["trainer_idle"] * 8 == pytest.approx(idle)
        if number + 1 < schedule.rounds:  # after the last batch nothing more is drawn
            assert clock.idle["sampler_idle"] * 8 == pytest.approx(free)
        assert clock.now == pytest.approx(before + clock.idle["trainer_idle"] + 1)
        assert now / 8 == pytest.approx(before + clock.idle["trainer_idle"])
        assert limit is None or max(ages) <= limit
        assert bool(dropped) <= (policy == "drop")
        taken += found
    if policy == "wait":
        assert taken == [*range(len(taken))]


def test_a_group_waits_for_its_longest_completion() -> None:
    clock = Clock([5], schedule_of("keep", None, 1, 1))
    tokens = pa.table({"tokens": pa.array([[1] * 3, [1] * 12, [1]], pa.list_(pa.int32()))})
    clock.next_group = lambda: tokens  # type: ignore[method-assign]
    clock.begin(0, 1)
    assert [group.due for group in clock.queue] == [12 / 8]


def test_the_next_group_is_of_the_next_problem_that_the_pass_rate_keeps() -> None:
    clock = Clock([], schedule_of("keep", None, 1, 4))
    order = random_generator(0, 1, "prompts 0").permutation(9)
    clock.collector.questions = SimpleNamespace(prompts=range(9))
    clock.collector.collect = lambda indices, *_: pa.table({"problem": indices})
    clock.solved_often_enough = lambda table: [table] if table["problem"][0].as_py() == order[3] else []  # type: ignore[method-assign]
    assert AsyncRounds.next_group(clock)["problem"].to_pylist() == [order[3]]
    assert [table["problem"].to_pylist() for table in clock.drawn] == [[index] for index in order[:4]]


def test_no_problem_is_drawn_twice_for_an_update_whatever_its_lags() -> None:
    clock = Clock([], ScheduleConfig(prompts=6, updates=1, rounds=5, lag=[0.3, 0.3, 0.4]))
    drawn: list[tuple[int, int]] = []

    def collect(indices: Any, due: int, first_shard: int) -> pa.Table:
        drawn.extend((due, index) for index in indices)
        return pa.table({"problem": indices})

    clock.collector.questions = SimpleNamespace(prompts=range(40))
    clock.collector.collect = collect
    clock.solved_often_enough = lambda table: []  # type: ignore[method-assign]
    for number in range(5):
        AsyncRounds.by_lag(clock, number)
    assert len(drawn) == len({*drawn}) > 5 * 6 * 2


def test_what_is_dropped_is_counted_by_verdict_length_and_level() -> None:
    tokens = pa.array([[1] * 3, [1] * 8], pa.list_(pa.int32()))
    table = pa.table({"tokens": tokens, "verdict": [CORRECT, INCORRECT], "problem": [1, 1]})
    clock = Clock([], schedule_of("drop", 1, 1, 1))
    clock.collector.questions = SimpleNamespace(problems=[SimpleNamespace(level=5), SimpleNamespace(level=3)])
    clock.n = 2
    clock.count_usage([Group(table, 0, 0.0)], is_dropped=True)
    clock.count_usage([Group(table.take([0, 0]), 0, 0.0)], is_dropped=False)
    by_kind = {"": (2, 4), "_correct": (1, 3), "_incorrect": (1, 1), "_length2": (1, 3), "_length8": (1, 1)}
    expected = {kind: Usage(*counts) for kind, counts in {**by_kind, "_level3": (2, 4)}.items()}
    assert clock.usage == expected


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_dropping_what_is_stale_trains_towards_short_answers(policy: str) -> None:
    """The bias in closed form, and by the clock, of groups of 2 answers, short or long with probability p, all right.

    With respect to the log-odds of a long answer the score is 1 − p of a long one, −p of a short one, 0 in the mean:
    both are worth the same. A long one takes 12 updates, so that of all groups (1 − p)² are kept, those without one:
    the mean gradient is −p, towards short answers.
    """
    p, rate, n, groups = 0.02, 8, 2, 4000
    schedule = ScheduleConfig(
        prompts=2, updates=1, rounds=10**9, concurrency=8, tokens_per_update=rate, when_stale=policy,
        max_lag=10 if policy == "drop" else None,
    )  # fmt: skip
    is_long = np.random.default_rng(0).random((2 * groups, n)) < p
    clock = Clock([], schedule)
    begun: list[int] = []

    def next_group() -> pa.Table:
        begun.append(len(begun))
        tokens = [[0] * (12 * rate if slow else 1) for slow in is_long[begun[-1]]]
        return pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "group": [begun[-1]] * n})

    clock.next_group = next_group  # type: ignore[method-assign]
    taken, dropped, number = [], [], 0
    while len(begun) < groups:
        batch, stale = clock.by_length(number)
        number += 1
        taken += [group.table["group"][0].as_py() for group in batch]
        dropped += [group.table["group"][0].as_py() for group in stale]
    score = np.where(is_long, 1 - p, -p)  # ∇ log π of an answer with respect to the log-odds of a long one
    error = math.sqrt(p * (1 - p) / (n * len(taken)))
    if policy == "keep":
        assert abs(score[taken].mean()) < 3 * error
        return
    assert score[taken].mean() == pytest.approx(-p)
    assert is_long[dropped].any(1).all()
    share = len(dropped) / (len(dropped) + len(taken))
    assert share == pytest.approx(1 - (1 - p) ** n, abs=0.01)


def test_the_effective_sample_size_by_age() -> None:
    delta, ages = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, 0.1], dtype=torch.float64), np.array([0, 3, 2, 5])
    group = torch.tensor([0, 1, 2, 3, 1, 0])
    metrics: Any = MetricAccumulator([delta], [torch.ones(6, dtype=torch.bool)], group=[group], tokens=6)
    found = {key: value for key, value in metrics.record(6, ages).items() if key.startswith("ess_age")}
    classes = {"ess_age0": [0, 5], "ess_age2": [1, 2, 4], "ess_age4": [3]}
    assert found == {key: effective_sample_size(delta[rows]) for key, rows in classes.items()}
