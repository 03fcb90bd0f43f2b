"""Sequences as one tree of tokens, so that what they share is computed once and nothing is padded.

The tokens stand in one row: the prefix of all prompts (few-shot examples), the rest of each distinct one, completions.

    common prefix ─┬─ rest of prompt 1 ─┬─ completion 1
                   │                    └─ completion 2
                   └─ rest of prompt 2 and completion 3        (one completion alone goes on in its prompt's segment)

A token sees the tokens before it in its segment and all segments above, as causal attention over its whole sequence
would let it. So log-probabilities, and gradients summed where branches meet, are those of single sequences but for
rounding. All but attention, which goes level by level (`tree_attention.py`), takes the row as it is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer[Any]]
Sequences = Sequence[tuple[Ids, Ids]]  # (prompt ids, completion ids)


@dataclass(slots=True)
class Segment:
    """Tokens that one or several sequences have in common, or one alone."""

    tokens: Ids
    start: int  # position in its sequence of the first token
    depth: int
    parent: int  # number of the segment above within its level
    number: int  # of this one within its level
    place: int = 0  # of the first token in the row


@dataclass(frozen=True, slots=True)
class Tree:
    """The levels from the root down, and where the B sequences lie in the row."""

    levels: list[list[Segment]]  # the segments of one depth stand one after the other in the row
    prompt_ends: NDArray[np.int64]  # [B] place of each prompt's last token
    completion_starts: NDArray[np.int64]  # [B] place of each completion's first token; its others follow

    @property
    def ids(self) -> Ids:
        """The row of tokens."""
        return np.concatenate([segment.tokens for segment in chain.from_iterable(self.levels)])

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each token of the row in its sequence."""
        segments = chain.from_iterable(self.levels)
        return np.concatenate([segment.start + np.arange(len(segment.tokens)) for segment in segments])


def lengths_of(level: list[Segment]) -> NDArray[np.int64]:
    """[R] tokens of each segment."""
    return np.array([len(segment.tokens) for segment in level], dtype=np.int64)


def build_tree(sequences: Sequences, *, share_prefix: bool, share_prompts: bool) -> Tree:
    """Lay sequences out as a tree; completions are not empty.

    share_prefix: what all prompts begin with is a separate segment. share_prompts: so is the rest of a prompt that
    several completions follow. With neither, each sequence is a segment: packed, nothing shared.
    """
    levels: list[list[Segment]] = [[], [], []]

    def add(tokens: Ids, above: Segment | None) -> Segment:
        depth, parent, start = 0, 0, 0
        if above is not None:
            depth, parent, start = above.depth + 1, above.number, above.start + len(above.tokens)
        levels[depth].append(Segment(tokens, start, depth, parent, len(levels[depth])))
        return levels[depth][-1]

    names = [prompt.tobytes() for prompt, _ in sequences]
    distinct = {name: prompt for name, (prompt, _) in zip(names, sequences, strict=True)}
    followers = Counter(names)
    prefix = common_prefix(list(distinct.values())) if share_prefix else 0
    root = add(sequences[0][0][:prefix], None) if prefix else None
    shared: dict[bytes, Segment] = {}
    ends, starts = [], []
    for name, (prompt, completion) in zip(names, sequences, strict=True):
        rest = prompt[prefix:]
        if share_prompts and followers[name] > 1 and len(rest):
            if name not in shared:
                shared[name] = add(rest, root)
            ends.append((shared[name], len(rest) - 1))
            starts.append((add(completion, shared[name]), 0))
        else:
            segment = add(np.concatenate([rest, completion]), root)
            assert root is not None or len(rest), "a prompt is empty"
            ends.append((segment, len(rest) - 1) if root is None or len(rest) else (root, prefix - 1))
            starts.append((segment, len(rest)))
    place = 0
    for segment in chain.from_iterable(levels):
        segment.place = place
        place += len(segment.tokens)
    places = [np.array([each.place + offset for each, offset in spots], dtype=np.int64) for spots in (ends, starts)]
    return Tree([level for level in levels if level], *places)


def common_prefix(rows: Sequence[Ids]) -> int:
    """Count the tokens that all rows begin with; of a single row, all of them."""
    length = min(map(len, rows))
    for row in rows[1:]:
        length = min(length, int(np.argmin(np.append(row[:length] == rows[0][:length], False))))
    return length


# ---- costs in operations of one layer, by its number of weights and (attention) its query heads times their size


FLOPS_OF_A_COPY = 16  # operations that take as long as moving one number, roughly
FLOPS_OF_A_LEVEL = 10_000_000  # starting its dozen operations on a CPU


def tree_cost(tree: Tree, weights: int, attention: int) -> float:
    """About how many operations a forward pass over a tree takes."""
    total, above = 2.0 * weights * len(tree.ids), 0
    for level in tree.levels:
        width = int(lengths_of(level).max())
        pairs = len(level) * width * (above + width if above else width / 2)
        moved = len(level) * (2 * above + 4 * width)
        total += 4 * attention * pairs + FLOPS_OF_A_COPY * attention * moved + FLOPS_OF_A_LEVEL
        above += width
    return total


def padded_cost(sequences: Sequences, weights: int, attention: int) -> float:
    """The same for sequences padded to the longest."""
    width = max(len(prompt) + len(completion) for prompt, completion in sequences)
    return (2.0 * weights + 4 * attention * width / 2) * width * len(sequences)


def cheapest_layout(sequences: Sequences, weights: int, attention: int) -> tuple[float, Tree | None]:
    """About how many operations the cheapest layout takes, and its tree, None where sequences are padded.

    A function of the sequences and the model's shape alone.
    """
    trees = [
        build_tree(sequences, share_prefix=prefix, share_prompts=prompts)
        for prefix in (True, False)
        for prompts in (True, False)
    ]
    padded = padded_cost(sequences, weights, attention), None
    layouts = [padded, *((tree_cost(tree, weights, attention), tree) for tree in trees)]
    return min(layouts, key=lambda layout: layout[0])
