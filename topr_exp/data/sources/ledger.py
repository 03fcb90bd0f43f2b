"""Generated stories of a chosen number of turns, for answers of a chosen length (topr_exp/data/embedded_ledger.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from topr_exp.config.data import DataConfig
from topr_exp.config.section import within
from topr_exp.data import embedded_ledger
from topr_exp.types import Problem


@dataclass(frozen=True)
class Ledger(DataConfig):
    """Stories of `turns` turns each, one step of working a turn."""

    turns: Annotated[int, within("[2, 24]")]  # what tiny_long was taught

    @property
    def generated(self) -> bool:
        return True

    def origin(self, split: str) -> str:
        return "embedded generator"

    @property
    def place(self) -> str:
        return "embedded"

    def problems(self, split: str) -> Iterator[Problem]:
        yield from embedded_ledger.generate(split, self.wanted(split), self.seed, self.turns)
