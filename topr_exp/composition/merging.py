"""Sampled and imported completions as one table."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from topr_exp.sampling.completions import Completions, index_in_group

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
    group_index: dict[tuple[bytes, str], int] = {}  # by prompt and gold answer
    problems = []  # the first of each group, as `prompts`
    prompts = []
    tables = []
    group_of_row = []
    is_imported: list[bool] = []
    for source in sources:
        group_of_problem = []
        for prompt, problem in zip(source.prompts, source.problems, strict=True):
            key = np.asarray(prompt, np.int32).tobytes(), problem.answer
            if key not in group_index:
                group_index[key] = len(group_index)
                problems.append(problem)
                prompts.append(prompt)
            group_of_problem.append(group_index[key])
        columns = list(filter(source.has, MERGED_COLUMNS))
        tables.append(source.table.select(columns))
        group_of_row.append(np.array(group_of_problem, int)[source.problem_index])
        is_imported += [source is not sources[0]] * len(source)
    problem_index = np.concatenate(group_of_row)
    merged = Completions(problems, prompts, pa.concat_tables(tables))
    return merged.with_columns(
        {
            "problem": pa.array(problem_index, pa.int32()),
            "sample": pa.array(index_in_group(problem_index), pa.int32()),
            "imported": pa.array(is_imported),
        }
    )
