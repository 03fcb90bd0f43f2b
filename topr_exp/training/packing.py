"""Tree of token sequences: shared prefixes stand once, and nothing is padded.

The tokens stand in one row: the prefix of all prompts (few-shot examples), the suffix of each prompt, completions.

    common prefix ─┬─ suffix of prompt 1 ─┬─ completion 1
                   │                      └─ completion 2
                   └─ suffix of prompt 2 and completion 3      (a prompt's only completion continues its segment)

A token sees the tokens before it in its segment and all segments above, as causal attention over its whole sequence
would let it. So log-probabilities, and gradients summed where branches meet, are those of single sequences but for
rounding. All but attention, which goes level by level (`tree_attention.py`), takes the row as it is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topr_exp.sampling.completions import TokenSequence

Int64s = NDArray[np.int64]
Ids = NDArray[np.integer[Any]]
Sequences = Sequence[TokenSequence]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that several sequences share, or the tokens of one sequence alone."""

    tokens: Ids
    start: int  # position of the first token in its sequence
    depth: int
    index: int  # among the segments of its level
    parent_index: int  # of the segment above among those of its level; 0 at the root

    @property
    def positions(self) -> Int64s:
        """The position of each token in its sequence."""
        return self.start + np.arange(len(self.tokens))


Levels = list[list[Segment]]  # from the root down; the segments of one depth stand one after the other in the row


@dataclass(frozen=True, slots=True)
class Tree:
    """The levels of segments, and where the B sequences lie in the row."""

    levels: Levels
    prompt_ends: Int64s  # [B] row index of each prompt's last token
    completion_starts: Int64s  # [B] row index of each completion's first token; its others follow

    @property
    def ids(self) -> Ids:
        """The row of tokens."""
        return np.concatenate([segment.tokens for segment in chain.from_iterable(self.levels)])

    @property
    def positions(self) -> Int64s:
        """The position of each token of the row in its sequence."""
        segments = chain.from_iterable(self.levels)
        return np.concatenate([segment.positions for segment in segments])


class TokenPlace(NamedTuple):
    """A token of the tree."""

    segment: Segment
    offset: int  # in the segment


def lengths_of(level: Sequence[Segment]) -> Int64s:
    """Count the tokens of each segment, [R]."""
    return np.array([len(segment.tokens) for segment in level], dtype=np.int64)


def build_tree(sequences: Sequences, *, share_prefix: bool, share_prompts: bool) -> Tree:
    """Lay sequences out as a tree; completions are not empty.

    share_prefix: the common prefix of all prompts is a segment. share_prompts: so is the suffix of a prompt that
    several completions follow. With neither, each sequence is a segment: packed, nothing shared.
    """
    levels: Levels = [[], [], []]
    prompts = [prompt for prompt, _ in sequences]
    prompt_keys = [prompt.tobytes() for prompt in prompts]
    completion_counts = Counter(prompt_keys)
    prefix_length = 0
    root = None
    if share_prefix:
        distinct_prompts = dict(zip(prompt_keys, prompts, strict=True))
        prefix_length = common_prefix_length(list(distinct_prompts.values()))
    if prefix_length:
        root = add_segment(levels, prompts[0][:prefix_length], None)
    shared_suffixes: dict[bytes, Segment] = {}
    prompt_ends: list[TokenPlace] = []
    completion_starts: list[TokenPlace] = []
    for key, (prompt, completion) in zip(prompt_keys, sequences, strict=True):
        suffix = prompt[prefix_length:]
        if not len(suffix):
            prompt_segment = root
        elif share_prompts and completion_counts[key] > 1:
            if key not in shared_suffixes:
                shared_suffixes[key] = add_segment(levels, suffix, root)
            prompt_segment = shared_suffixes[key]
        else:
            prompt_segment = None
        if prompt_segment is None:  # the completion continues the suffix in one segment
            segment = add_segment(levels, np.concatenate([suffix, completion]), root)
            prompt_ends.append(TokenPlace(segment, len(suffix) - 1))
            completion_starts.append(TokenPlace(segment, len(suffix)))
        else:
            segment = add_segment(levels, completion, prompt_segment)
            prompt_ends.append(TokenPlace(prompt_segment, len(prompt_segment.tokens) - 1))
            completion_starts.append(TokenPlace(segment, 0))
    return Tree(
        levels=[level for level in levels if level],
        prompt_ends=row_indices(levels, prompt_ends),
        completion_starts=row_indices(levels, completion_starts),
    )


def add_segment(levels: Levels, tokens: Ids, parent: Segment | None) -> Segment:
    """Append a segment to the level below its parent's; None: to the first."""
    depth = parent_index = start = 0
    if parent is not None:
        depth = parent.depth + 1
        parent_index = parent.index
        start = parent.start + len(parent.tokens)
    level = levels[depth]
    segment = Segment(tokens, start, depth, index=len(level), parent_index=parent_index)
    level.append(segment)
    return segment


def row_indices(levels: Levels, places: Sequence[TokenPlace]) -> Int64s:
    """Return the index of each token in the row of all segments, level after level."""
    segment_starts_by_level = []  # in the row
    level_start = 0
    for level in levels:
        lengths = lengths_of(level)
        starts_in_level = np.cumsum(lengths) - lengths
        segment_starts_by_level.append(level_start + starts_in_level)
        level_start += int(lengths.sum())
    indices = []
    for segment, offset in places:
        segment_start = segment_starts_by_level[segment.depth][segment.index]
        indices.append(segment_start + offset)
    return np.array(indices, np.int64)


def common_prefix_length(rows: Sequence[Ids]) -> int:
    """Count the tokens that all rows begin with; of a single row, all of them."""
    length = min(map(len, rows))
    for row in rows[1:]:
        is_equal = row[:length] == rows[0][:length]
        if not is_equal.all():
            length = int(is_equal.argmin())  # the first that is not
    return length


# ---- costs in operations of one layer


FLOPS_OF_A_COPY = 16  # operations that take as long as moving one number, roughly
FLOPS_OF_A_LEVEL = 10_000_000  # starting its dozen operations on a CPU


class ModelShape(NamedTuple):
    """What the costs of layouts depend on."""

    layer_weights: int  # of a layer
    attention_size: int  # query heads times their size


class Layout(NamedTuple):
    """How sequences are laid out for a forward pass."""

    cost: float  # operations of a layer, roughly
    tree: Tree | None  # None: sequences are padded


def tree_cost(tree: Tree, shape: ModelShape) -> float:
    """Estimate the operations of a forward pass over a tree."""
    total = 2.0 * shape.layer_weights * len(tree.ids)
    width_above = 0
    for level in tree.levels:
        width = int(lengths_of(level).max())
        keys_per_query: float = width_above + width
        if width_above == 0:  # plainly causal
            keys_per_query = width / 2
        pair_count = len(level) * width * keys_per_query
        # Keys and values of the levels above; of its own, queries and outputs too.
        copied_count = len(level) * (2 * width_above + 4 * width)
        attention = 4 * shape.attention_size * pair_count
        copies = FLOPS_OF_A_COPY * shape.attention_size * copied_count
        total += attention + copies + FLOPS_OF_A_LEVEL
        width_above += width
    return total


def padded_cost(sequences: Sequences, shape: ModelShape) -> float:
    """Estimate the operations of a forward pass over sequences padded to the longest."""
    width = max(len(prompt) + len(completion) for prompt, completion in sequences)
    operations_per_token = 2.0 * shape.layer_weights + 4 * shape.attention_size * width / 2
    return operations_per_token * width * len(sequences)


def cheapest_layout(sequences: Sequences, shape: ModelShape) -> Layout:
    """Choose the cheapest layout, a function of the sequences and the model's shape alone."""
    cheapest = Layout(padded_cost(sequences, shape), None)
    for share_prefix in (True, False):
        for share_prompts in (True, False):
            tree = build_tree(sequences, share_prefix=share_prefix, share_prompts=share_prompts)
            layout = Layout(tree_cost(tree, shape), tree)
            if layout.cost < cheapest.cost:
                cheapest = layout
    return cheapest
