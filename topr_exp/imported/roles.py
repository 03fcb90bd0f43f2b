"""Roles of a log's columns (prompt, completion, reward, ...): from the settings, or by names that frameworks give."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topr_exp.config.data import Columns
from topr_exp.schema import plain

# Ours first, then those of TRL, veRL, prime-rl, verifiers and OpenAI's messages.
KNOWN_NAMES = {
    "prompt": ("prompt", "input", "messages"),
    "completion": ("completion", "output", "response"),
    "reward": ("reward", "score", "rewards"),
    "logprobs": ("logprobs", "output_logprobs", "completion_logprobs"),
    "tokens": ("tokens", "output_tokens", "completion_ids", "completion_token_ids"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "prompt_ids", "prompt_token_ids"),
    "question": ("question",),
    "gold": ("gold", "answer", "gts", "ground_truth"),
    "problem_id": ("problem_id", "example_id", "prompt_id"),
    "finish": ("finish", "finish_reason", "is_truncated", "truncated"),
}
TRL_ROW = {"step", "advantage"}
VERL_ROW = {"step", "input", "output"}


@dataclass
class ColumnNames:
    """Names of a log's columns, for messages."""

    by_role: dict[str, str] = field(default_factory=dict)  # the column that a role was last read from
    newest_row: tuple[str, ...] = ()  # its columns

    def add_row(self, columns: tuple[str, ...], roles: Mapping[str, str]) -> None:
        """Note the columns of a row, and those from which roles were read."""
        self.newest_row = columns
        self.by_role |= roles

    def label(self, role: str) -> str:
        """Return the column that a role was read from."""
        column_role = "prompt" if role == "messages" else role
        return self.by_role.get(column_role, role)

    def difference(self, role: str, *, has_role: bool) -> str:
        """Say that a row has a value that the rows before lack, or lacks one that they have."""
        label = self.label(role)
        if has_role:
            return f"has {label}, unlike the rows before; all rows or none"
        state = f"lacks {label}"
        if label in self.newest_row or "+" in label:
            state = f"{label} is empty (null, or pandas' NaN)"
        return f"{state}, unlike the rows before; all rows or none (data.skip_malformed=true leaves such rows out)"

    def remedy(self, role: str) -> str:
        """Say why a role has no column in the newest row, and the setting that names one."""
        for name in KNOWN_NAMES[role]:
            if name in self.newest_row:
                return f"{name} is empty (null)"
        if not self.newest_row:
            return "the row has no columns"
        return f"the columns are {', '.join(self.newest_row)}; data.columns={{{role}: NAME}} names one"


@functools.lru_cache
def assign_roles(names: tuple[str, ...], filled: tuple[str, ...], columns: Columns | None) -> dict[str, str]:
    """Map roles to columns: to the one that the settings name, else to the first known name that holds a value.

    names: of a row's columns; filled: the ones that hold a value. ValueError for a column that the settings name and
    that the row doesn't have. A reward may be a sum of columns, as in accuracy+format.
    """
    configured = configured_columns(columns, names)
    free = set(filled).difference(configured.values())
    is_trl_row = set(names) >= TRL_ROW
    is_verl_row = set(names) >= VERL_ROW
    roles = {}
    for role, known_names in KNOWN_NAMES.items():
        matches = [name for name in known_names if name in free]
        if matches:
            roles[role] = matches[0]
    roles |= configured
    if "reward" not in roles and is_trl_row:
        # TRL names a reward after the function that gave it; of several it logs no sum.
        unassigned = set(names).difference(TRL_ROW, roles.values())
        if len(unassigned) == 1:
            roles["reward"] = unassigned.pop()
    # Without columns of the settings, or TRL's, that are empty in this row.
    roles = {role: name for role, name in roles.items() if name in filled or "+" in name}
    if "problem_id" not in roles and (is_trl_row or is_verl_row):
        roles["step"] = "step"  # a prompt of another epoch makes another group
    return roles


def configured_columns(columns: Columns | None, names: tuple[str, ...]) -> dict[str, str]:
    """Return the columns that the settings name, by role; ValueError for one that the row lacks."""
    if columns is None:
        return {}
    configured = {role: name for role, name in plain(columns).items() if name is not None}
    for role, name in configured.items():
        summands = name.split("+") if role == "reward" else [name]
        if name not in names and not set(summands) <= set(names):
            raise ValueError(f"data.columns.{role}={name}: no such column; it has {', '.join(names)}")
    return configured


def sum_rewards(row: Mapping[str, Any], names: str) -> float | None:
    """Add up several columns of rewards; missing values and NaN count nothing, as in TRL."""
    rewards = []
    for name in names.split("+"):
        value = row[name]
        if value is None:
            continue
        if not isinstance(value, (int, float)):
            raise ValueError(f"data.columns.reward={names}: {value!r:.80} is no number")
        if not math.isnan(value):
            rewards.append(value)
    return sum(rewards) if rewards else None
