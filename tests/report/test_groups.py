"""Groups of runs by what differs."""

import functools
import json
import math
from ast import literal_eval
from pathlib import Path

from tests.conftest import config_of, parted
from tests.report.made_up import made_run
from topr_exp.report.grouping import group_runs
from topr_exp.report.page import list_facts
from topr_exp.report.reader import Run
from topr_exp.report.tables import groups_frame, runs_frame
from topr_exp.schema import flatten, plain


def test_settings_that_follow_from_others_do_not_name_groups():
    """Seeds make repetitions; memory and folders make no difference."""
    runs = []
    for seed in (2, 0, 1):
        for algo, limit in (("topr", 1.0), ("is", math.inf)):
            for lr in (1e-3, 1e-4):
                settings = {"algo__name": algo, "algo__b_pos": limit, "lr": lr, "seed": seed}
                ignored = {"output_dir": str(seed), "optim__micro_batch_size": seed}
                runs.append(made_run(f"{algo}{lr}{seed}", {}, {}, **settings, **ignored))

    comparison = group_runs(runs)

    assert comparison.keys == ["algo.name", "lr"]
    assert comparison.differing == ["algo.name", "algo.b_pos", "lr"]
    assert list(comparison.groups) == ["is, lr=0.0001", "is, lr=0.001", "topr, lr=0.0001", "topr, lr=0.001"]
    for members in comparison.groups.values():
        assert [run.config["seed"] for run in members] == [2, 0, 1]


def test_runs_of_unknown_settings_are_groups_of_their_own():
    comparison = group_runs([made_run("a", {}, {}), Run(Path("c"), "c"), Run(Path("d"), "d")])
    assert list(comparison.groups) == ["topr", "c (settings unknown)", "d (settings unknown)"]


def test_each_setting_that_makes_another_run_makes_another_group_but_seeds_do_not():
    config = config_of("model=tiny")
    settings = plain(config)
    base = Run(Path("base"), "base", config=settings)
    algo_without_kl_coef = {key: value for key, value in settings["algo"].items() if key != "kl_coef"}
    run_before_kl_coef = Run(Path("old"), "old", config=settings | {"algo": algo_without_kl_coef})
    changed_runs = []
    for key, value in flatten(settings):
        changed_settings = json.loads(json.dumps(settings))
        *groups, last = key.split(".")
        section = functools.reduce(dict.__getitem__, groups, changed_settings)
        section[last] = f"not {value}"
        changed_runs.append(Run(Path(key), key, config=changed_settings))

    base, run_before_kl_coef, *changed_runs = group_runs([base, run_before_kl_coef, *changed_runs]).runs

    assert run_before_kl_coef.group == base.group, "a setting that a run's version lacked is at its default"
    pooled = {run.name for run in changed_runs if run.group == base.group}
    identity = dict(flatten(config.identity))
    assert pooled & identity.keys() - {"evaluation.every"} == {"seed", "sampler.seed", "data.seed"}
    assert {"cluster.jobs", "output_dir", "optim.micro_batch_size"} <= pooled


# A setting | values that make runs of which no two are repetitions
CHANGES = """
lora | [{"rank": 16, "alpha": 32}, {"rank": 17, "alpha": 32}, {"rank": None}]
options | [{}, {"digits": 3}, {"digits": "3"}]
template | ["not set", None, "a"]
lr | [0.12345678, 0.12345679]
new | [1]
"""


def test_runs_of_different_settings_are_never_averaged():
    """Each has another seed: as many groups, no two with one name."""
    runs = []
    for key, values in parted(CHANGES):
        for value in literal_eval(values):
            runs.append(made_run(f"r{len(runs)}", {}, {}, seed=len(runs), **{f"x__{key}": value}))

    comparison = group_runs(runs)

    groups = groups_frame(comparison)
    assert len(groups) == len(runs) - 1, "a template that is not set is none"
    assert groups.index.is_unique
    assert groups.columns.is_unique
    assert runs_frame(comparison.runs).columns.is_unique


def test_what_differs_is_told_unless_the_name_of_the_algorithm_data_or_model_says_it():
    def differing(*changes):
        return group_runs([made_run(f"r{index}", {}, {}, **change) for index, change in enumerate(changes)]).confounded

    all_of_it = {"compose__name": "uniform", "compose__n_examples": None}
    some_of_it = {"compose__name": "anna_karenina", "compose__n_examples": 1600, "compose__order": "first"}
    assert differing(all_of_it, some_of_it) == "compose.n_examples (1600, not set)"

    few = {"algo__name": "topr", "data__name": "gsm8k", "data__n": 16}
    many = {"algo__name": "is", "data__name": "gsm8k", "data__n": 32}
    math_like = {"algo__name": "is", "data__name": "math", "data__n": 32}
    assert differing(few, math_like | {"algo__name": "topr"}) == ""
    assert differing(few, many, math_like) == "data.n (16, 32)"
    assert differing({"algo__name": "topr", "algo__b": 1}, {"algo__name": "is", "algo__b": 2}) == ""


def test_tests_and_commits_of_all_runs_are_listed():
    runs = [made_run("a", {}, {}), made_run("b", {}, {}, seed=1)]
    for run, problems in zip(runs, (50, 200), strict=True):
        run.environment = {"git_commit": "0123456789abcdef", "git_dirty": problems == 50}
        run.evaluations = [{"problems": problems, "samples": 8}]

    assert list_facts(group_runs(runs)) == {
        "tested on": "200 problems, 8 completions each; 50 problems, 8 completions each",
        "commit": "0123456789, 0123456789 with uncommitted changes",
    }
