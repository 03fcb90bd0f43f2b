"""Grade again, in a store, the completions on which a grader was cut off."""

from __future__ import annotations

import numpy as np

from topr_exp.config.data import GRADERS
from topr_exp.grading.grader import Grader, check_name, version
from topr_exp.grading.pool import CUT_OFF
from topr_exp.grading.verdicts import Verdicts, grade
from topr_exp.sampling.imported import match_problems
from topr_exp.store import Store
from topr_exp.store.table import Table
from topr_exp.types import Problem, TOPRError


def regrade_table(table: Table, store: Store, own: str | None = None) -> tuple[int, int]:
    """Grade again what was cut off in a table of verdicts; returns the number of such rows before and after.

    own: the user's grader that may run; a key names one, but a store is not trusted with code. Raises TOPRError
    for any other grader, one that has changed, and completions that are not in the store.
    """
    if table.error:
        raise TOPRError(table.error)
    cut_off = [Verdicts("", table.shard(index)).cut_off for index in range(table.shards)]
    if not sum(cut_off):
        return 0, 0
    key, name = table.key, table.key["grader"]
    if name not in {*GRADERS, own}:
        raise TOPRError(f"its grader is code of your own; add --grader {name} to run it")
    check_name(name)
    if key["version"] != version(name):
        raise TOPRError(f"its grader {name} is not found as it was then; a run that needs the verdicts makes new ones")
    with Grader(name, graded=key.get("graded", False), threshold=key.get("threshold", 1.0)) as grader:
        left = regrade_shards(table, cut_off, grader, store)
    return sum(cut_off), left


def regrade_shards(table: Table, cut_off: list[int], grader: Grader, store: Store) -> int:
    """Grade again the problems of a shard's cut-off rows; a shard is written where fewer are left."""
    import pyarrow as pa

    made = store.open(store.place(table.key["rollouts"].partition(" ")[0]))
    completions = made.read()
    if "problem" in completions.column_names:
        problem = completions["problem"].to_numpy()
    else:  # imported: numbered in the order in which they are answered
        named = {name for name in completions["problem_id"].to_pylist() if name is not None}
        _, problem = match_problems(completions, [Problem(name, "", "") for name in named], made.name)
    problems = [Problem(str(index), "", gold) for index, gold in enumerate(table.key["golds"])]
    starts = table.bounds()
    left = 0
    for shard, before in enumerate(cut_off):
        if before:
            old, asked = table.shard(shard), problem[starts[shard] : starts[shard + 1]]
            again = np.isin(asked, asked[np.isin(old["path"].to_pylist(), CUT_OFF)])
            (rows,) = np.nonzero(again)
            new = grade(grader, completions["text"].take(starts[shard] + rows).to_pylist(), asked[rows], problems)
            order = np.arange(len(old))
            order[rows] = len(old) + np.arange(len(rows))
            if (after := Verdicts("", new).cut_off) < before:
                table.replace(shard, pa.concat_tables([old, new]).take(order))
            left += min(before, after)
    return left
