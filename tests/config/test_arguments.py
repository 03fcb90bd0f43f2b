"""The words of a command line are read as Hydra reads them, which answers some of them itself."""

from __future__ import annotations

import contextlib
import io
from argparse import Namespace
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from topr_exp import __version__
from topr_exp.config.arguments import parse

FLAGS = ["-h", "--help", "--hydra-help", "-m", "--multirun", "-r", "--run", "--resolve", "-sc", "--shell-completion"]
TAKING = ["-c", "--cfg", "-i", "--info", "-p", "--package", "-cd", "--config-dir", "-cn", "--config-name", "-cp"]
TAKING += ["--config-path", "--experimental-rerun", "--package=x", "--multi", "--nope", "--"]
WORDS = [*FLAGS, *TAKING, "job", "all", "plugins", "conf", "seed=1", "+seed=-3", "~baseline", "a.b='x y'", "-5"]


def outcome(read: Callable[[], Namespace]) -> object:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            return vars(read())
        except SystemExit as stop:
            return stop.code, said.getvalue().rpartition("error:")[2]


@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_words_are_read_as_hydra_reads_them(words: list[str]) -> None:
    from hydra._internal.utils import get_args_parser

    assert outcome(lambda: parse(words)) == outcome(lambda: get_args_parser().parse_intermixed_args(words))


def test_the_version_is_this_programs() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        parse(["--version"])
    assert said.getvalue() == f"topr_exp {__version__}\n"
