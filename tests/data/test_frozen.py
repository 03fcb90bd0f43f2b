"""Problems that a program outside draws: drawn once, kept in the store, and read from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from topr_exp.config.data import NoAnswer
from topr_exp.data.problems import problems_of
from topr_exp.store import Store
from topr_exp.types import Problem, TOPRError

PROBLEMS = [
    Problem("a/0", "2 + 2 = \u00bf", "4", 3, "sums", "b", {"hint": "\n{}"}),
    NoAnswer("line 3", "gold"),
    Problem("a/1", "?", "5"),
]


@dataclass
class Drawn:
    """A source as its version draws it."""

    version: str | None = "1.0"
    drawn: list[str] = field(default_factory=list)

    def drawn_by(self, split: str) -> dict[str, Any] | None:
        return None if self.version is None else {"package": "p", "version": self.version, "seed": 0}

    def problems(self, split: str) -> Iterator[Problem | NoAnswer]:
        self.drawn.append(split)
        yield from PROBLEMS if split == "train" else PROBLEMS[:1]


def read(source: Drawn, split: str, store: Store | None) -> list[Problem | NoAnswer]:
    return list(problems_of(source, split, store))  # type: ignore[arg-type]


def test_they_are_drawn_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    source, store, again = Drawn(), Store(tmp_path), Drawn()
    for _ in range(2):
        assert read(source, "train", store) == PROBLEMS
        assert read(source, "test", store) == PROBLEMS[:1]
    assert read(again, "train", Store(tmp_path)) == PROBLEMS
    assert (source.drawn, again.drawn) == (["train", "test"], [])
    other, first = Drawn("1.1"), Drawn()  # another version draws for itself, and changes nothing that is there
    assert read(other, "train", Store(tmp_path)) == read(first, "train", Store(tmp_path)) == PROBLEMS
    assert (other.drawn, first.drawn) == (["train"], [])
    assert len(list(tmp_path.glob("problems/*/shard-*.arrow"))) == 3


def test_without_a_store_and_of_what_is_not_drawn_nothing_is_kept(tmp_path: Path) -> None:
    source, files = Drawn(), Drawn(None)
    assert read(source, "train", None) == read(source, "train", None) == PROBLEMS
    assert read(files, "train", Store(tmp_path)) == PROBLEMS
    assert source.drawn == ["train"] * 2
    assert not list(tmp_path.iterdir())


def test_what_breaks_off_while_drawing_leaves_nothing_half(tmp_path: Path) -> None:
    class Broken(Drawn):
        def problems(self, split: str) -> Iterator[Problem | NoAnswer]:
            yield PROBLEMS[0]
            raise TOPRError("no more")

    with pytest.raises(TOPRError, match="no more"):
        read(Broken(), "train", Store(tmp_path))
    assert not list(tmp_path.glob("problems/*/shard-*.arrow"))
    assert read(Drawn(), "train", Store(tmp_path)) == PROBLEMS
