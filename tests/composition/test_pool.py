"""Sampled and imported completions as one: rows in their order, one group a prompt."""

import numpy as np
import pyarrow as pa

from topr_exp.composition.candidates import concat_rows, merge_sources
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.grading.verdicts import Verdicts
from topr_exp.sampling.rollouts import Completions, Rollouts
from topr_exp.types import VERDICTS, Problem


def part(problem: list[int], golds: list[str], prompts: list[list[int]], made: int) -> Completions:
    """Completions whose tokens say where they are from."""
    columns = pa.table(
        {
            "problem": pa.array(problem, pa.int32()),
            "sample": pa.array(range(len(problem)), pa.int16()),
            "tokens": pa.array([[made, row] for row in range(len(problem))], pa.list_(pa.int32())),
            "text": pa.array([f"{made} {row}" for row in range(len(problem))]),
            "finish": pa.array(["stop", "length"] * (len(problem) // 2)),
        }
    )
    ids = [np.array(prompt, np.int32) for prompt in prompts]
    asked = [Problem(f"{made}/{i}", "?", gold) for i, gold in enumerate(golds)]
    questions = TokenizedProblems(asked, ids, (), 0)
    return Completions(Rollouts(f"r/{made}", columns, ids, [0, len(problem)], 0), questions)


def verdicts(words: list[str]) -> Verdicts:
    rows = {"verdict": words, "answer": words, "path": words, "class": pa.array([0] * len(words), pa.int32())}
    return Verdicts("", pa.table(rows))


def test_completions_of_one_prompt_are_one_group_wherever_they_are_from() -> None:
    sampled = part([0, 0, 1, 1], ["a", "b"], [[1], [1, 2]], 0)
    elsewhere = part([1, 0, 2, 2], ["c", "b", "b"], [[9], [1, 2], [1]], 1)  # the last has another gold
    words = ["correct", "incorrect", "invalid", "correct"]
    pool = merge_sources([sampled, elsewhere], [verdicts(words), verdicts(words[::-1])])
    assert pool.rollouts.problem.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert pool.rollouts.sample.tolist() == [0, 1, 0, 1, 2, 0, 0, 1]
    assert [tokens.tolist() for tokens in pool.rollouts.tokens] == [[made, row] for made in (0, 1) for row in range(4)]
    assert pool.rollouts.prompt_of(4).tolist() == [1, 2]
    assert pool.rollouts.prompt_of(5).tolist() == [9]
    assert [problem.answer for problem in pool.problems] == ["a", "b", "c", "b"]
    assert [VERDICTS[code] for code in pool.verdicts.codes] == [*words, *words[::-1]]
    assert pool.imported is not None
    assert pool.imported.tolist() == [False] * 4 + [True] * 4
    assert pool.rollouts.truncated.tolist() == [False, True] * 4


def test_one_part_stays_as_it_is() -> None:
    sampled = part([0, 0], ["a"], [[1]], 0)
    pool = merge_sources([sampled], [verdicts(["correct", "invalid"])])
    assert pool.rollouts is sampled.rollouts
    assert pool.imported is None
    rows = [np.zeros(1)]
    assert concat_rows([rows]) is rows
    assert concat_rows([["a", "b"], ["c"]]) == ["a", "b", "c"]
