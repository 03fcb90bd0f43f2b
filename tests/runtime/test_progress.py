"""The line of progress: time left by the pace of what is made, lines while one unit of work takes long."""

import time

import pytest

from tests.sweep_tools import wait_for
from topr_exp.runtime import progress
from topr_exp.runtime.progress import Progress


@pytest.fixture
def wait(monkeypatch):
    """Move the clock of all progress on."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    def move(seconds):
        clock[0] += seconds

    return move


def sampling(total, **options):
    return Progress("sampling", total, "completions", "sampling", rate_unit="tokens", **options)


def test_the_time_left_goes_by_the_pace_of_this_attempt(wait):
    work = sampling(10, done=6)
    wait(8)
    work.update(2)

    assert work.seconds_left() == 8


def test_what_the_store_has_is_no_part_of_the_pace_and_what_others_make_meanwhile_is(wait):
    work = sampling(60)
    work.update(20, 0, "from the store")
    wait(10)
    assert work.seconds_left() is None

    work.update(10, 500)
    assert work.seconds_left() == 30
    work.update(10, 0, "from the store")
    assert work.seconds_left() == 10


def test_tokens_within_a_shard_move_the_time_left(wait):
    work = sampling(40)
    wait(10)
    work.update(10, 500)
    wait(5)
    work.advance(250)

    assert work.seconds_left() == pytest.approx(25)  # 15 of 40 completions in 15 seconds
    assert "250 tokens under way, 50 tokens/s" in work.line()
    work.update(10, 500)
    assert "under way" not in work.line()


def test_waiting_is_no_part_of_the_pace(wait):
    work = sampling(20)
    with work.paused("the sampler starts"):
        wait(60)
        assert work.line() == "sampling     0/20 completions, the sampler starts"
    wait(10)
    work.update(10, 500)

    assert work.seconds_left() == 10


@pytest.fixture
def lines(capsys, monkeypatch):
    """A function: the lines so far, of which progress writes one every hundredth of a second."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    all_lines = []

    def read():
        all_lines.extend(capsys.readouterr().err.splitlines())
        return all_lines

    return read


def test_lines_come_while_a_unit_takes_long_and_end_with_the_work(lines):
    with sampling(512) as work:
        wait_for(lambda: len(lines()) >= 2)
        work.advance(7)
        wait_for(lambda: "7 tokens under way" in lines()[-1])

    last_line = lines()[-1]
    assert last_line.startswith("sampling     0/512 completions in ")
    time.sleep(0.05)
    assert lines()[-1] == last_line


def test_only_the_innermost_work_is_shown_and_none_ends_that_failed(lines):
    def fail():
        with Progress("training", 4, "updates", "training"):
            wait_for(lines)
            with sampling(512):
                lines().clear()
                wait_for(lambda: len(lines()) >= 3)
                assert not any(line.startswith("training") for line in lines()[1:])  # one may have been on its way
            wait_for(lambda: lines()[-1].startswith("training"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "updates in " not in lines()[-1]
