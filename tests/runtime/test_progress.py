"""The line of progress: time left by the pace of what is made, lines while one unit of work takes long."""

import time
from typing import Any

import pytest

from tests.sweep_tools import wait_for
from topr_exp.runtime import progress
from topr_exp.runtime.progress import Progress, duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all progress, which the test moves."""
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made)
    return made


def sampling(total: int = 512, **more: Any) -> Progress:
    return Progress("sampling", total, "completions", "sampling", rate_unit="tokens", **more)


def test_the_time_left_goes_by_the_pace_of_this_attempt(clock: Clock) -> None:
    resumed = sampling(10, done=6)
    clock.now += 8
    resumed.update(2)
    assert resumed.seconds_left() == 8


def test_what_the_store_has_is_no_part_of_the_pace(clock: Clock) -> None:
    shared = sampling(40)
    shared.update(20, 0, "from the store")
    clock.now += 10
    assert shared.seconds_left() is None
    shared.update(10, 500)
    assert shared.seconds_left() == 10


def test_what_other_processes_make_meanwhile_is_part_of_the_pace(clock: Clock) -> None:
    shared = sampling(40)
    clock.now += 10
    shared.update(10, 500)
    shared.update(10, 0, "from the store")
    assert shared.seconds_left() == 10


def test_tokens_within_a_shard_move_the_time_left(clock: Clock) -> None:
    shards = sampling(40)
    clock.now += 10
    shards.update(10, 500)
    clock.now += 5
    shards.advance(250)
    assert shards.seconds_left() == pytest.approx(25)  # 15 of 40 completions in 15 seconds
    assert "250 tokens under way, 50 tokens/s" in shards.line()
    shards.update(10, 500)
    assert "under way" not in shards.line()


def test_waiting_is_no_part_of_the_pace(clock: Clock) -> None:
    shards = sampling(20)
    with shards.paused("the sampler starts"):
        clock.now += 60
        assert shards.line() == "sampling     0/20 completions, the sampler starts"
    clock.now += 10
    shards.update(10, 500)
    assert shards.seconds_left() == 10


def test_a_rate_of_prompts_and_completions_names_both(clock: Clock) -> None:
    training = Progress("training", 4, "updates", "training", rate_unit="tokens")
    clock.now += 10
    training.update(1, 1000, "loss 0.5", of_completions=200)
    line = "training     1/4 updates, 30 s left, 100 tokens/s with prompts, 20 of completions, loss 0.5"
    assert training.line() == line
    training.advance(500)
    assert "150 tokens/s with prompts, 30 of completions" in training.line()


def test_tokens_of_other_work_are_named_until_the_update_is_done(clock: Clock) -> None:
    rounds = Progress("training", 4, "updates", "training", rate_unit="tokens")
    rounds.count("sampled", 1000)
    rounds.count("scored", 200)
    rounds.count("sampled", 500)
    clock.now += 10
    assert rounds.line() == "training     0/4 updates, 10 s so far, 1,500 tokens sampled, 200 tokens scored"
    rounds.update(1, 100)
    assert "sampled" not in rounds.line()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7100, "118 min"), (7200, "2 h"), (1e6, "278 h")]
)
def test_a_duration_is_a_number_of_two_or_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Output:
    """Lines written to standard error so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.lines = capsys, list[str]()

    def read(self) -> list[str]:
        self.lines += self.capsys.readouterr().err.splitlines()
        return self.lines


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Output:
    """Standard error, to which progress writes every hundredth of a second."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    return Output(capsys)


def test_lines_come_while_a_unit_takes_long_and_end_with_the_work(output: Output) -> None:
    with sampling() as work:
        wait_for(lambda: len(output.read()) >= 2)
        work.advance(7)
        wait_for(lambda: "7 tokens under way" in output.read()[-1])
    last = output.read()[-1]
    assert last.startswith("sampling     0/512 completions in ")
    time.sleep(0.05)
    assert output.read()[-1] == last


def test_only_the_innermost_work_is_shown(output: Output) -> None:
    with Progress("training", 4, "updates", "training"):
        wait_for(lambda: output.read())
        with sampling():
            output.lines.clear()
            wait_for(lambda: len(output.read()) >= 3)
            assert not any(line.startswith("training") for line in output.lines[1:])  # one may have been on its way
        wait_for(lambda: output.read()[-1].startswith("training"))


def test_work_that_fails_writes_no_last_line(output: Output) -> None:
    def fail() -> None:
        with sampling():
            wait_for(lambda: output.read())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert " in " not in output.read()[-1]
