"""Runs that nobody ran, with figures that are all different, for what the report makes of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.run_folders import write_run
from topr_exp.evaluation.statistics import summarise
from topr_exp.report.reader import Run
from topr_exp.store import Store
from topr_exp.types import CORRECT, INCORRECT, INVALID, VERDICTS


def evaluation(correct, maj, invalid, *, ends=None):
    """Shares in percent; ends: the interval over problems of pass@1, and of maj@8 three points higher."""
    results = {
        "pass@1": correct / 100,
        "maj@8": maj / 100,
        "problems": 50,
        "correct": correct / 100,
        "invalid": invalid / 100,
        "incorrect": 1 - (correct + invalid) / 100,
    }
    if ends is not None:
        low, high = ends
        results["pass@k"] = {"1": point(correct, low, high), "8": point(correct + 20, low + 20, high + 20)}
        results["maj@k"] = {"8": point(maj, low + 3, high + 3)}
    return results


def point(value, low, high):
    return {"value": value / 100, "low": low / 100, "high": high / 100}


def bounds_of(figure):
    """The columns of a figure and its interval in a data frame."""
    return [figure, f"{figure}_low", f"{figure}_high"]


def ends_of(frame, group, figure):
    """A group's figure and the ends of its interval."""
    return frame.loc[group, bounds_of(figure)].tolist()


def made_run(name, base, final, curve=None, updates=(), **settings):
    """A finished run. curve: step -> pass@1 and invalid in percent; settings: dots as two underscores."""
    seed = settings.get("seed", 0)  # decides completions and problems too
    config = {"algo": {"name": "topr"}, "seed": seed, "sampler": {"seed": seed}, "data": {"seed": seed}}
    for key, value in settings.items():
        section = config
        *groups, last = key.split("__")
        for group in groups:
            section = section.setdefault(group, {})
        section[last] = value
    points = []
    for step, (correct, invalid) in (curve or {}).items():
        points.append({**position(step), "pass@1": correct / 100, "invalid": invalid / 100})
    logged = [{**position(step), "step": step, **update} for step, update in enumerate(updates, 1)]
    summary = {"base": dict(base), "final": dict(final), "effective_positive": settings.get("effective_positive")}
    return Run(Path(name), name, config, summary, logged, points, status="done")


def position(step):
    return {"optimizer_step": step, "iteration": 1, "samples": 32 * step, "samples_seen": 32 * step}


# ---- finished runs with verdicts in a store

N = 8  # completions of each problem


def write_graded_run(folder, correct, invalid=0, *, base=1, first_gold=0, **settings):
    """A finished run; correct, invalid: how many of each problem's N completions are in the end, [problems].

    Of the incorrect completions all but one agree on an answer. base: how many are correct before.
    """
    golds = [str(first_gold + index) for index in range(len(correct))]
    base_evaluation = write_evaluation(folder, golds, base, invalid=0, iteration=0)
    final_evaluation = write_evaluation(folder, golds, correct, invalid, iteration=1)
    config = {"data": {"eval_n": N}, "sampler": {"seed": settings.get("seed", 0)}, **settings}
    write_run(folder, config, [], [base_evaluation, final_evaluation], {})


def write_evaluation(folder, golds, correct, invalid, *, iteration):
    """The record of an evaluation whose verdicts lie in the store of a run; its counts may be one for all problems."""
    number = np.arange(N)
    correct, invalid = (np.broadcast_to(counts, len(golds))[:, None] for counts in (correct, invalid))
    is_correct = number < correct
    is_invalid = number >= N - invalid
    is_odd_answer = number == correct
    verdicts = np.select([is_correct, is_invalid], [CORRECT, INVALID], INCORRECT)
    classes = np.select([is_correct, is_invalid, is_odd_answer], [0, -1, 2], 1)
    columns = {"verdict": np.array(VERDICTS)[verdicts].ravel(), "class": classes.astype(np.int32).ravel()}
    key = {"golds": golds, "run": str(folder), "step": iteration}
    table = Store(folder / "store").table("verdicts", key, 1)
    table.fill(lambda shard_index: pa.table(columns))
    return {"iteration": iteration, **summarise(verdicts, classes), "verdicts": str(table.folder)}
