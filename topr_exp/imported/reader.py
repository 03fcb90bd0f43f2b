"""Completions of a log, checked row by row.

Rows become one form, a completion each: a prompt (text), messages (JSON), prompt_tokens or the run's own question or
problem_id; completion, tokens, logprobs, reward, gold and finish where they are there. Columns: docs/rollouts.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from topr_exp.config.data import Columns, DataConfig
from topr_exp.data.user_lines import strict_object
from topr_exp.imported.roles import ColumnNames, assign_roles, sum_rewards
from topr_exp.imported.rows import Row, as_completion, completions_of, prompt_text
from topr_exp.imported.sources import RawRow, read_raw_rows
from topr_exp.imported.traces import trace_rows
from topr_exp.store.completions import LISTS
from topr_exp.types import TOPRError

MASKS = ("completion_mask", "response_mask")  # of the tokens that were sampled
ALL_OR_NONE = frozenset((*LISTS, "reward"))  # roles that either all rows have or none has


@dataclass
class RolloutReader:
    """Iterates over the completions of a file, a folder or a data set of the hub.

    Raises TOPRError "FILE:LINE: COLUMN ...", or "FILE: row N: ..." where it has no lines.
    """

    source: str
    columns: Columns | None = None
    skip_malformed: bool = False
    names: ColumnNames = field(default_factory=ColumnNames)
    unread: set[str] = field(default_factory=set)  # columns without a role
    skipped: list[str] = field(default_factory=list)  # faults of rows that were left out

    def __iter__(self) -> Iterator[Row]:
        agreement = Agreement(self.names)
        for where, raw_row in read_raw_rows(self.source):
            try:
                rows = self.parse(where, raw_row)
                agreement.check(rows)
            except (ValueError, TOPRError) as error:
                fault = str(error) if isinstance(error, TOPRError) else f"{where}: {error}"
                if not self.skip_malformed:
                    raise TOPRError(fault) from None
                self.skipped.append(fault)
            else:
                yield from rows
        if agreement.shared_roles is None:
            raise TOPRError(self.skipped[0] if self.skipped else f"{self.source} holds no completions")

    def parse(self, where: str, raw_row: RawRow) -> list[Row]:
        """Read the completions of a line of JSON, or of a table's row; ValueError or TOPRError for a bad one."""
        row = strict_object(where, raw_row) if isinstance(raw_row, bytes) else raw_row
        logged_rows = [row]
        is_trace = "nodes" in row or "traces" in row
        if is_trace:
            logged_rows = list(trace_rows(row))
        completions = []
        for logged_row in logged_rows:
            for values in self.values_by_role(logged_row):
                completions.append(as_completion(values, self.names))
        return completions

    def values_by_role(self, row: Row) -> list[Row]:
        """Split a row into its completions, each with its values by role."""
        column_names = tuple(row)
        filled_names = tuple(name for name, value in row.items() if value is not None)
        roles = self._roles_of(column_names, filled_names)
        self.names.add_row(column_names, roles)
        values = {}
        for role, name in roles.items():
            if name in row:
                values[role] = row[name]
            else:  # columns to add up, as in accuracy+format
                values[role] = sum_rewards(row, name)
        refuse_masked_tokens(row, values)
        reward_names = roles.get("reward", "").split("+")
        self.unread |= row.keys() - {*roles.values(), *reward_names}
        return completions_of(values, roles)

    def _roles_of(self, column_names: tuple[str, ...], filled_names: tuple[str, ...]) -> dict[str, str]:
        """Map roles to columns of a row; an optional one stays with the column that it had in the rows before."""
        roles = dict(assign_roles(column_names, filled_names, self.columns))
        for role in ALL_OR_NONE & self.names.by_role.keys():
            column = self.names.by_role[role]
            if column in filled_names:
                roles[role] = column
            elif column in column_names:  # empty, though another known one may be filled
                roles.pop(role, None)
        return roles


@dataclass
class Agreement:
    """Agreement between a log's rows: optional columns are in all or in none, an id has one prompt."""

    names: ColumnNames
    shared_roles: frozenset[str] | None = None  # of ALL_OR_NONE; None before the first good row
    _prompt_by_id: dict[str, str] = field(default_factory=dict)

    def check(self, rows: Sequence[Row]) -> None:
        """Raise ValueError for a row that differs from those before it, of `rows` or of earlier calls."""
        shared_roles = self.shared_roles  # stored at the end, as the prompts: rows that are left out decide nothing
        new_prompt_by_id: dict[str, str] = {}
        for row in rows:
            roles = ALL_OR_NONE & row.keys()
            if shared_roles is None:
                shared_roles = roles
            differing_roles = sorted(roles ^ shared_roles)
            if differing_roles:
                role = differing_roles[0]
                raise ValueError(self.names.difference(role, has_role=role in roles))
            self._check_prompt(row, new_prompt_by_id)
        self.shared_roles = shared_roles
        self._prompt_by_id |= new_prompt_by_id

    def _check_prompt(self, row: Row, new_prompt_by_id: dict[str, str]) -> None:
        """Raise ValueError for another prompt than the id had; note an id's first prompt in `new_prompt_by_id`."""
        problem_id = row.get("problem_id")
        prompt = prompt_text(row)
        if problem_id is None or prompt is None:
            return
        noted_prompt = self._prompt_by_id.get(problem_id)
        if noted_prompt is None:
            noted_prompt = new_prompt_by_id.setdefault(problem_id, prompt)
        if noted_prompt != prompt:
            raise ValueError(f"{self.names.label('problem_id')} {problem_id} has another prompt before")


def refuse_masked_tokens(row: Row, values: Row) -> None:
    """Raise ValueError for a completion with tokens that are not the model's, as a user's turn between two of its own.

    values: of the row, by role.
    """
    tokens = values.get("tokens", values.get("completion"))
    for name in MASKS:
        mask = row.get(name)
        if not (isinstance(mask, list) and isinstance(tokens, list)):
            continue
        masks = [mask]
        completions = [tokens]
        has_several = all(isinstance(entry, list) for entry in mask)
        if has_several:
            masks = mask
            completions = tokens
        for flags, ids in zip(masks, completions, strict=False):
            is_of_completion = isinstance(ids, list) and len(flags) == len(ids)  # else of the prompt or padding, too
            if is_of_completion and not all(flags):
                raise ValueError(f"{name} leaves out tokens of the completion; such rows are not trained on")


# ---- in words


def without_rewards(data: DataConfig, description: str) -> TOPRError:
    """Make the error for a log without the rewards that the settings ask for; description: of its columns."""
    hint = "" if data.columns else "; data.columns={reward: NAME} names one, {reward: NAME+NAME} adds up several"
    return TOPRError(f"data.reward=given: {data.completions} has no column of rewards{hint} ({description})")


def without_logprobs(data: DataConfig) -> TOPRError:
    """Make the error for a log without the log-probabilities that mu=sampler asks for."""
    return TOPRError(f"mu=sampler: {data.completions} has no log-probabilities of its tokens")


def describe_columns(reader: RolloutReader) -> str:
    """Say which columns were read in which role, and what was not read."""
    parts = []
    for role, name in reader.names.by_role.items():
        if role == name:
            parts.append(role)
        else:
            parts.append(f"{role} from {name}")
    if reader.unread:
        parts.append(f"not read: {', '.join(sorted(reader.unread))}")
    if reader.skipped:
        parts.append(f"{len(reader.skipped)} malformed rows left out: {reader.skipped[0]}")
    return "; ".join(parts)
