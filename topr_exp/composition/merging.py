"""Sampled and imported completions as one table."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from topr_exp.sampling.completions import Completions, index_in_group

# What composition and training read of each completion, whatever its origin.
MERGED_COLUMNS = ("tokens", "text", "finish", "verdict", "answer", "path", "class", "reward")
SCORED_COLUMNS = ("mu_logp", "old_logp", "ref_logp")


def merge_sources(sources: Sequence[Completions]) -> Completions:
    """Concatenate graded and scored completions, sampled ones first, with the column `imported`; a single source stays.

    Completions of one prompt form one group, whatever their source. A problem is identified by its prompt's tokens and
    its gold answer: two data sets may ask the same question with other answers.
    """
    if len(sources) == 1:
        return sources[0]
    import pandas as pd

    group_keys = []
    problems = []
    prompts = []
    for source in sources:
        for prompt, problem in zip(source.prompts, source.problems, strict=True):
            group_keys.append((np.asarray(prompt, np.int32).tobytes(), problem.answer))
            problems.append(problem)
            prompts.append(prompt)
    group_of_problem, _ = pd.factorize(pd.Series(group_keys))  # over the problems of all sources, one after the other
    _, first_problems = np.unique(group_of_problem, return_index=True)  # of each group

    tables = []
    group_of_row = []
    is_imported = []
    problem_offset = 0  # number of problems in the sources before
    for source_index, source in enumerate(sources):
        columns = [name for name in (*MERGED_COLUMNS, *SCORED_COLUMNS) if source.has(name)]
        tables.append(source.table.select(columns))
        group_of_row.append(group_of_problem[problem_offset + source.problem_index])
        is_imported.append(np.full(len(source), source_index > 0))
        problem_offset += len(source.problems)
    problem_index = np.concatenate(group_of_row)
    merged = Completions(
        [problems[index] for index in first_problems],
        [prompts[index] for index in first_problems],
        pa.concat_tables(tables),
    )
    return merged.with_columns(
        {
            "problem": pa.array(problem_index, pa.int32()),
            "sample": pa.array(index_in_group(problem_index), pa.int32()),
            "imported": pa.array(np.concatenate(is_imported)),
        }
    )
