"""Shares of completions that a staleness policy dropped, by kind: what dropping favours."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from topr_exp.store import Ragged
from topr_exp.types import VERDICTS, Problem


@dataclass
class DroppedShares:
    """Counts completions that were trained on or dropped: all, by verdict, by length and by difficulty."""

    problems: Sequence[Problem]
    # Dropped completions and all, by kind: "", _VERDICT, _lengthN from N tokens to twice as many, _levelN.
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, groups: Iterable[pa.Table], *, is_dropped: bool) -> None:
        for table in groups:
            count_by_kind = Counter(self.kinds_of(table))
            for kind, count in count_by_kind.items():
                dropped, total = self.counts.get(kind, (0, 0))
                if is_dropped:
                    dropped += count
                self.counts[kind] = (dropped, total + count)

    def kinds_of(self, table: pa.Table) -> list[str]:
        """List the kinds of each completion of a problem, one after the other."""
        kinds = [""] * len(table)
        kinds += [f"_{VERDICTS[code]}" for code in table["verdict"].to_pylist()]
        for length in Ragged(table["tokens"]).lengths().tolist():
            power_of_two = 1 << (length.bit_length() - 1)  # the largest that is no larger
            kinds.append(f"_length{power_of_two}")
        level = self.problems[table["problem"][0].as_py()].level
        if level is not None:
            kinds += [f"_level{level}"] * len(table)
        return kinds

    def metrics(self) -> dict[str, float]:
        """Return the share of dropped completions of each kind."""
        metrics = {}
        for kind, (dropped, total) in sorted(self.counts.items()):
            metrics[f"dropped_share{kind}"] = dropped / total
        return metrics
