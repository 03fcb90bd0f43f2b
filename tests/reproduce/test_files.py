"""The papers' figures: records, drawings and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduce import records
from reproduce.draw import drawing, save
from reproduce.figure import Figure
from reproduce.jobs import jobs_of
from reproduce.page import numbers, write_page
from reproduce.registry import FIGURES
from reproduce.tabular import objectives
from reproduce.variance import LIMITS
from tests.reproduce.made_up import made_up, named, request_for
from tests.reproduce.test_registry import NEVER_SHOWN, WORLDS
from tests.reproduce.worlds import paired
from tests.sweep_tools import command
from topr_exp.report.selection import Runs

TALLIED = (
    "right", "unparsable", "right_on_correct", "right_on_incorrect", "weighted_sc", "maj", "oracle", "solved",
)  # fmt: skip

SMOKE = (
    "data.train_problems=8", "data.test_problems=4", "data.n=4", "data.eval_n=4", "sampler.prompts_per_shard=4",
    "optim.batch_size=16", "evaluation.every=1", "evaluation.problems=2", "seed=0", "algo=topr", "--jobs", "1",
)  # fmt: skip


def as_if_run(settings: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A record of a run with these settings, its numbers made up."""
    record = made_up(settings["algo.name"], settings["seed"], rng.integers(0, 9, 12))
    record["settings"] = settings
    record["metrics"] = {"step": [1, 2, 3], **{name: rng.uniform(0.1, 1, 3).tolist() for name in records.METRICS}}
    if "evaluation.every" in settings:
        shares = rng.dirichlet(np.ones(3), 4).T.tolist()
        names = ("correct", "incorrect", "invalid")
        record["curve"] = {"step": [0, 1, 2, 3], "pass@1": shares[0], **dict(zip(names, shares, strict=True))}
    record["lengths"] = {"step": [0, 1], **{name: rng.uniform(50, 200, 2).tolist() for name in records.LENGTHS}}
    if settings["iterations"] > 1:
        record["iterations"] = [record["base"], *[record["final"]] * settings["iterations"]]
    return record


def made_up_extra(figure: Figure, found: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    if figure.name == "fig2":
        return objectives()
    if figure.name == "fig9":
        keys = {f"{one['settings']['model.name']} {one['settings']['seed']}" for one in found}
        per_problem = [[1.0, None, *row] for row in rng.uniform(0.5, 2, (6, 8)).tolist()]
        return {key: {"share": rng.dirichlet(np.ones(10), 6).tolist(), "per_problem": per_problem} for key in keys}
    if figure.name == "table1":
        keys = {f"{one['settings']['model.name']} {one['settings']['seed']}" for one in found}
        return {key: {name: rng.uniform(1, 2, 2).tolist() for name in LIMITS} for key in keys}
    if figure.name == "agro_fig1":
        lines = {name: rng.uniform(1e-6, 1, (2, 5)).tolist() for name in ("agro", "kl_pg")}
        final = {name: [line[-1] for line in each] for name, each in lines.items()}
        return {"step": 10, "curves": lines, "final": final, "actions": 10}
    if figure.name in ("agro_kl", "agro_replay"):
        return {json.dumps(one["settings"], sort_keys=True): float(rng.uniform(0, 2)) for one in found}
    if figure.name == "table2":
        counts = {name: rng.integers(0, 4, 12).tolist() for name in TALLIED}
        counts |= {name: [4] * 12 for name in ("verified", "verified_correct", "verified_incorrect")}
        noted = {"problems": [f"p{i}" for i in range(12)], "solutions": 4, "verifications": 2}
        return {
            json.dumps(one["settings"], sort_keys=True): {**noted, "before": counts, "after": counts} for one in found
        }
    return {}


def test_records_come_back_and_differences_are_named(tmp_path: Path) -> None:
    one, other = (made_up("topr", seed, np.arange(9)) for seed in (0, 1))
    other = {**other, "environment": {"git_commit": "def"}}
    records.write(tmp_path / "x.json", [other, one], {"number": 1.5})
    stored = records.read(tmp_path / "x.json")
    assert stored["extra"] == {"number": 1.5}
    known = records.known(stored)
    assert {record["environment"]["git_commit"] for record in known.values()} == {"abc", "def"}
    again = known[json.dumps(one["settings"], sort_keys=True)]
    assert records.differences(again, one) == []
    changed = made_up("topr", 0, np.arange(9)[::-1])
    assert records.differences(again, changed)[0].startswith("final.of_problems.correct: ")
    assert records.read(tmp_path / "absent.json")["runs"] == []


def test_the_page_has_a_section_for_every_figure_whatever_is_computed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    found = [made_up(algo, seed, rng.integers(0, 9, 20)) for algo in ("naive", "topr") for seed in range(3)]
    records.write(tmp_path / "fig1.json", found, {})
    text = write_page(FIGURES, tmp_path).read_text()
    for figure in FIGURES:
        assert f"## {figure.title}\n" in text
        assert figure.claim in text
    assert text.count("Not computed yet: `python -m reproduce") == len(FIGURES) - 1
    assert "commit abc" in text
    assert "6 runs, seeds 0 1 2" in text
    assert "- DPO ends above PPO: *undecided* (no runs)" in text
    lines = numbers(named("fig1"), Runs(found))
    assert len(lines) == 2 + 1 + 2


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.name)
def test_every_figure_is_drawn_and_judged_from_records_alone(figure: Figure, tmp_path: Path) -> None:
    """With the settings of its own runs, both models where it is for both; and with half of the runs, as when a sweep
    was stopped."""
    jobs, _ = jobs_of(figure, request_for(figure, overrides=("seed=0,1",)))
    rng = np.random.default_rng(0)
    settings = [json.loads(key) for key in jobs]
    if not figure.own_model:
        settings += [{**each, "model.name": "tiny_noise"} for each in settings]
    for name, some in (("all", settings), ("half", settings[: len(settings) // 2 : 2])):
        found = [records.trimmed(as_if_run(each, rng), figure.metrics) for each in some]
        extra = made_up_extra(figure, found, rng)
        for model, group in Runs(found).split("model.name").items():
            claims = figure.judge(group, extra)
            assert all(claim.evidence for claim in claims), model
            assert len(numbers(figure, group)) > 3 or name == "half"
            if name == "all":
                assert claims
                told = paired(WORLDS[figure.name]()) | NEVER_SHOWN
                assert {(figure.name, claim.text) for claim in claims} <= told, (
                    "a claim without worlds: test_registry.py"
                )
                assert sum(len(each) for each in figure.table(group).values()) >= len(group) // 2
        with drawing():
            save(figure.draw(Runs(found), extra), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size < 400_000


def test_a_figure_from_runs_to_page_and_a_check_that_finds_a_difference(tmp_path: Path) -> None:
    """The real thing at the smallest size: one run for two figures; a second time nothing is run; a check."""
    out = tmp_path / "results"
    given = ["fig1", "fig9", *SMOKE, f"output_dir={tmp_path}", "--out", out]
    first = command("reproduce", *given)
    assert first.returncode == 0, first.stderr
    assert "1 different runs to do" in first.stdout
    assert {path.name for path in out.iterdir()} == {"README.md", "fig1.json", "fig1.png", "fig9.json", "fig9.png"}
    text = (out / "README.md").read_text()
    assert "![Figure 1](fig1.png)" in text
    assert "tiny: the numbers (1 run, seeds 0)" in text
    assert len(list((tmp_path / "paper").glob("topr_*"))) == 1

    again = command("reproduce", *given, "--check")
    computed = [path.stat().st_mtime_ns for path in (tmp_path / "check" / "paper").glob("topr_*/DONE")]
    assert len(computed) == 1
    agreed = [f"{name}: the same to the digit in 1 of 1 run" for name in ("fig1", "fig9")]
    assert (again.returncode, again.stdout.splitlines()[-2:]) == (0, agreed)
    stored = json.loads((out / "fig1.json").read_text())
    stored["runs"][0]["final"]["pass@1"] += 0.25
    (out / "fig1.json").write_text(json.dumps(stored))
    changed = command("reproduce", *given, "--check")
    assert changed.returncode == 1
    assert "final.pass@1: " in changed.stdout
    assert [path.stat().st_mtime_ns for path in (tmp_path / "check" / "paper").glob("topr_*/DONE")] > computed
    recorded = command("reproduce", *given[:-1], out, f"output_dir={tmp_path / 'empty'}", "--recorded", "--list")
    assert "0 different runs to do" in recorded.stdout
