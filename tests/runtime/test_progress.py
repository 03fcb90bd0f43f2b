"""The line of progress: time left by the pace of what is made, lines while one unit of work takes long."""

import contextlib
import io

import pytest

from tests.sweep_tools import wait_for
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import CLEAR_LINE, Progress


def sampling(total, **options):
    return Progress("sampling", total, "completions", kind="sampling", rate_unit="tokens", **options)


def test_the_time_left_goes_by_the_pace_of_this_attempt(clock):
    work = sampling(10, done=6)
    clock.now += 8
    work.update(2)

    assert work.seconds_left() == 8


def test_what_the_store_has_is_no_part_of_the_pace_and_what_others_make_meanwhile_is(clock, monkeypatch):
    monkeypatch.setattr(distributed, "_world_size", 2)
    work = sampling(60)
    work.update(20, 0, "from the store")
    clock.now += 10
    assert work.seconds_left() is None
    assert work.line().endswith(", from the store")

    work.update(10, 500)
    assert work.seconds_left() == 30
    work.update(10, 0, "from the store")
    assert work.seconds_left() == 10
    assert work.line().endswith(", 50 tokens/s by this process")


def test_tokens_within_a_shard_move_the_time_left(clock):
    work = sampling(40)
    clock.now += 10
    work.update(10, 500)
    clock.now += 5
    work.advance(250)

    assert work.seconds_left() == pytest.approx(25)  # 15 of 40 completions in 15 seconds
    assert "250 tokens under way, 50 tokens/s" in work.line()
    work.update(10, 500)
    assert "under way" not in work.line()


def test_waiting_is_no_part_of_the_pace_and_work_within_none_of_the_rate(clock, capsys):
    with sampling(20) as work:
        with work.paused("the sampler starts"):
            clock.now += 60
            assert work.line() == "sampling     0/20 completions, the sampler starts"
        with sampling(1) as evaluation, evaluation.paused("the sampler starts"):
            clock.now += 30
        clock.now += 10
        work.update(10, 500)
        assert work.seconds_left() == 40

    assert capsys.readouterr().err.endswith("sampling     10/20 completions in 10.0 s, 50 tokens/s\n")


class Terminal(io.StringIO):
    """Standard error on a terminal, where a line is written again twice a second."""

    def isatty(self):
        return True

    def lines(self):
        return self.getvalue().split(CLEAR_LINE)[1:]


on_terminal = contextlib.redirect_stderr


def test_lines_come_while_a_unit_takes_long_and_end_with_the_work():
    with on_terminal(Terminal()) as terminal, sampling(512) as work:
        wait_for(lambda: len(terminal.lines()) >= 2)
        work.advance(7)
        wait_for(lambda: "7 tokens under way" in terminal.lines()[-1])

    assert terminal.lines()[-1].startswith("sampling     0/512 completions in ")


def test_only_the_innermost_work_is_shown_and_none_ends_that_failed():
    def fail():
        with Progress("training", 4, "updates", kind="training"):
            wait_for(terminal.lines)
            with sampling(512):
                count = len(terminal.lines()) + 1  # one of training may be on its way
                wait_for(lambda: len(terminal.lines()) >= count + 2)
                assert all(line.startswith("sampling") for line in terminal.lines()[count:])
            wait_for(lambda: terminal.lines()[-1].startswith("training"))
            raise ZeroDivisionError

    with on_terminal(Terminal()) as terminal, pytest.raises(ZeroDivisionError):
        fail()

    assert "updates in " not in terminal.lines()[-1]
