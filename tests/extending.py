"""The files and the commands that the pages on losses, sources and rewards print."""

import re
import sys
from contextlib import contextmanager

from tests.conftest import at_work_in, document, write_file
from topr_exp.runs import problem_checks


def section(page, title):
    """The text of a page between this heading and the next of its level."""
    return document(page).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def list_items(text):
    """Each item of a text's lists, in one line."""
    return [re.sub(r"\n +", " ", item) for item in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)]


LOSS = section("losses.md", "Your own loss")
PACKAGE = section("losses.md", "A package")
SOURCE = section("problems.md", "A source of problems")
REWARD = section("graders.md", "A graded reward")
SAMPLER = section("rollouts.md", "A sampler")
POLICY = section("running.md", "A staleness policy")
MODULES = ("soft_topr", "test_soft_topr", "coins", "closeness", "first_words", "longest_first")


@contextmanager
def project(folder, *parts):
    """A folder with the files of these parts, and nothing else; the working folder, as for the reader."""
    for part in parts:
        for name, code in re.findall(r"`([\w/]+\.(?:py|yaml|toml))`:\n\n```\w+\n(.*?)```", part, re.DOTALL):
            write_file(folder / name, code)
    with at_work_in(folder):
        forget()
        yield folder
        forget()


def forget():
    """Have the project's files read anew."""
    problem_checks._problem_sets.clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def commands(part):
    """The words of each run that a part starts, after `python -m topr_exp`."""
    return [line.split()[3:] for line in part.splitlines() if line.startswith("python -m topr_exp ")]
