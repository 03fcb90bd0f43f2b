"""Sampled and imported completions as one table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.sampling.completions import Completions, TokenIds, index_in_group
from topr_exp.types import Problem

# What composition and training read of each completion, whatever its origin.
MERGED_COLUMNS = (
    *("tokens", "text", "finish", "verdict", "answer", "path", "class", "reward"),
    *("mu_logp", "old_logp", "ref_logp"),
)


def merge_sources(sources: Sequence[Completions]) -> Completions:
    """Concatenate graded and scored completions, sampled ones first, with the column `imported`; a single source stays.

    Completions of one prompt form one group, whatever their source. A problem is identified by its prompt's tokens and
    its gold answer: two data sets may ask the same question with other answers.
    """
    if len(sources) == 1:
        return sources[0]
    groups = PromptGroups()
    tables = []
    group_of_row = []
    is_imported: list[bool] = []
    for source in sources:
        group_of_problem = groups.indices_of(source)
        group_of_row.append(group_of_problem[source.problem_index])
        columns = list(filter(source.has, MERGED_COLUMNS))
        tables.append(source.table.select(columns))
        is_imported += [source is not sources[0]] * len(source)
    problem_index = np.concatenate(group_of_row)
    merged = Completions(groups.problems, groups.prompts, pa.concat_tables(tables))
    return merged.with_columns(
        {
            "problem": pa.array(problem_index, pa.int32()),
            "sample": pa.array(index_in_group(problem_index), pa.int32()),
            "imported": pa.array(is_imported),
        }
    )


@dataclass
class PromptGroups:
    """Numbers problems by prompt and gold answer, in order of appearance."""

    problems: list[Problem] = field(default_factory=list)  # the first of each group
    prompts: list[TokenIds] = field(default_factory=list)
    index_by_key: dict[tuple[bytes, str], int] = field(default_factory=dict)

    def indices_of(self, source: Completions) -> NDArray[np.int64]:
        """Return the group of each problem of a source; new ones are added."""
        indices = []
        for prompt, problem in zip(source.prompts, source.problems, strict=True):
            indices.append(self.index_of(prompt, problem))
        return np.array(indices, int)

    def index_of(self, prompt: TokenIds, problem: Problem) -> int:
        """Return the group of a problem, a new one for a new prompt or gold answer."""
        key = np.asarray(prompt, np.int32).tobytes(), problem.answer
        if key not in self.index_by_key:
            self.index_by_key[key] = len(self.problems)
            self.problems.append(problem)
            self.prompts.append(prompt)
        return self.index_by_key[key]
