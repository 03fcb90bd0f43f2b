"""Completions of language models: one Arrow table, whose columns grow from stage to stage.

    sampled   problem, sample, tokens, text, finish, sampler_logp (log q of the distribution drawn from),
              as far as a sampler notes them top_logp and top_ids, kept and kept_sizes
    graded    verdict, answer, path, class, reward where rewards are numbers
    scored    mu_logp, old_logp, ref_logp, as far as a loss reads them

Lists hold a value for each sampled token; those that a sampler notes, several.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.sampling.top_logprobs import TOP_IDS, TOP_LOGP, TopTokens
from topr_exp.store import Ragged, Store, Table
from topr_exp.store.source import Sharding
from topr_exp.types import CORRECT, Problem

TokenIds = NDArray[np.int32]
Flags = NDArray[np.bool_]  # [M]
ProblemIndex = NDArray[np.integer]  # [M] the problem of each completion
MADE_BY = b"made_by"  # in the metadata of sampled columns
# Columns of a sampler that notes all tokens that could be drawn: their ids, and how many there were for each token.
DRAWABLE_COLUMNS = ("kept", "kept_sizes")
TokenSequence = tuple[NDArray[np.integer], NDArray[np.integer]]  # prompt ids, completion ids


def index_in_group(group_index: NDArray[np.integer]) -> NDArray[np.int32]:
    """Count, for each row, the rows before it in the same group, [M]; group_index: [M] 0 or more."""
    order = np.argsort(group_index, kind="stable")  # group after group
    sizes = np.bincount(group_index)
    group_starts = np.cumsum(sizes) - sizes  # in `order`
    row_count = len(group_index)
    positions = np.empty(row_count, np.int32)
    positions[order] = np.arange(row_count) - np.repeat(group_starts, sizes)
    return positions


@dataclass(frozen=True)
class StoredTables:
    """The tables of a store in which completions lie."""

    rollouts: str  # the table of the sampled columns, by whose name other tables are keyed
    sharding: Sharding  # of it, and of all tables that are made of it
    tokens_sampled: int = 0  # by this process, in this attempt
    verdicts: str | None = None  # the table of the graded columns


@dataclass(frozen=True)
class Completions:
    """M completions of P prompts; usually as many of each prompt, one prompt's in the order of sampling."""

    problems: Sequence[Problem]  # [P]
    prompts: Sequence[TokenIds]  # [P]
    table: pa.Table  # [M]
    stored: StoredTables | None = None  # None: in no store

    def __len__(self) -> int:
        return len(self.table)

    # ---- columns

    def has(self, name: str) -> bool:
        return name in self.table.column_names

    def with_columns(self, columns: Mapping[str, Any]) -> "Completions":
        """Append columns, or replace those of the same name; None removes one."""
        table = self.table.drop_columns(list(filter(self.has, columns)))
        for name, column in columns.items():
            if column is not None:
                table = table.append_column(name, column)
        return replace(self, table=table)

    def lists(self, name: str) -> Ragged:
        """Return a list column, by row."""
        return Ragged(self.table[name])

    def _numbers(self, name: str) -> NDArray[Any]:
        return np.asarray(self.table[name].to_numpy())

    @cached_property
    def problem_index(self) -> NDArray[np.int32]:
        """[M] each row's problem, an index into `problems` and `prompts`."""
        return self._numbers("problem")

    @cached_property
    def sample_index(self) -> NDArray[np.int64]:
        """[M] which one of its problem's completions a row is."""
        return self._numbers("sample").astype(np.int64)

    @cached_property
    def tokens(self) -> Ragged:
        """The sampled token ids, by row."""
        return self.lists("tokens")

    @cached_property
    def is_truncated(self) -> Flags:
        """[M] cut off by the token limit."""
        return self._numbers("finish") == "length"

    @cached_property
    def drawable_tokens(self) -> tuple[Ragged, Ragged] | None:
        """Ids of all tokens that could be drawn, and how many for each sampled token; None: not noted."""
        ids, counts = DRAWABLE_COLUMNS
        if not self.has(ids):
            return None
        return self.lists(ids), self.lists(counts)

    def top_tokens(self, row: int) -> TopTokens:
        """Return what the sampler noted of its distribution at each place of a completion, [T, k]."""
        token_count = len(self.tokens[row])
        logp = self.lists(TOP_LOGP)[row].reshape(token_count, -1)
        ids = None
        if self.has(TOP_IDS):
            ids = self.lists(TOP_IDS)[row].reshape(logp.shape)
        return TopTokens(logp, ids)

    @cached_property
    def verdicts(self) -> NDArray[np.int8]:
        """[M] CORRECT, INCORRECT or INVALID."""
        return self._numbers("verdict")

    @cached_property
    def is_correct(self) -> Flags:
        return self.verdicts == CORRECT

    @cached_property
    def answer_classes(self) -> NDArray[np.int32]:
        """[M] equal for equal answers to a problem (within a shard), -1 without an answer."""
        return self._numbers("class")

    @cached_property
    def reward(self) -> NDArray[np.float64] | None:
        """[M] rewards from a grader or a log; if a grader was cut off, the lowest and 0. None: no numbers."""
        if not self.has("reward"):
            return None
        rewards = np.array(self.table["reward"].to_pylist(), dtype=np.float64)  # null becomes NaN
        lowest = float(np.nanmin(rewards, initial=0.0))
        return np.where(np.isnan(rewards), lowest, rewards)

    @cached_property
    def is_imported(self) -> Flags | None:
        """[M] made elsewhere; None where all completions have one origin."""
        if not self.has("imported"):
            return None
        return self._numbers("imported")

    # ---- rows

    def first_rows(self, count: int) -> "Completions":
        return replace(self, table=self.table.slice(0, count))

    def prompt_of(self, row: int) -> TokenIds:
        return self.prompts[self.problem_index[row]]

    def sequences(self, rows: Collection[int]) -> list[TokenSequence]:
        """Return the prompt and the sampled tokens of some rows."""
        return [(self.prompt_of(row), self.tokens[row]) for row in rows]

    def texts(self, rows: range) -> list[str]:
        """Return consecutive completions as text, without special tokens."""
        return self.table["text"].slice(rows.start, len(rows)).to_pylist()

    # ---- where they are from

    @property
    def made_by(self) -> dict[str, str]:
        """The program that drew the first completions, with versions and device; empty for imported ones."""
        metadata = self.table.schema.metadata or {}
        return json.loads(metadata.get(MADE_BY, b"{}"))

    @property
    def tokens_sampled(self) -> int:
        """Tokens that this process sampled for them in this attempt."""
        if self.stored is not None:
            return self.stored.tokens_sampled
        return 0

    def derived_table(self, store: Store, kind: str, key: Mapping[str, Any]) -> Table:
        """Open the store's table of a kind, made of these completions shard by shard; `prune` leaves it alone."""
        stored = self.stored
        assert stored is not None, "only stored completions have tables made of them"
        sharding = stored.sharding
        table = store.table(kind, {"rollouts": stored.rollouts, **key}, len(sharding.sizes), sharding)
        table.hold()
        return table
