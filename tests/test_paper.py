"""The papers' figures: the experiments behind them, what is read from runs, and how claims are decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import ROOT, config_of
from tests.sweep_tools import command
from topr_exp.jobs import plan
from topr_exp.paper import records
from topr_exp.paper.__main__ import main
from topr_exp.paper.agro import a_nat
from topr_exp.paper.beyond import holding
from topr_exp.paper.claims import Claim, above, below, between, verdict
from topr_exp.paper.draw import drawing, save
from topr_exp.paper.figure import Figure
from topr_exp.paper.page import numbers, write_page
from topr_exp.paper.registry import FIGURES
from topr_exp.paper.selection import Interval, Runs, difference, interval, t_95
from topr_exp.paper.variance import LIMITS, coefficients, moments
from topr_exp.paper.verifier import balanced
from topr_exp.paper.work import Request, arguments, jobs_of
from topr_exp.resolvers import LEARNING_RATES
from topr_exp.tabular import objectives
from topr_exp.types import ConfigError

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
ALONE = {"smoke", "paper"}  # experiments that no figure of the registry is made of


def request_for(*figures: Figure, full: bool = False, overrides: tuple[str, ...] = ()) -> Request:
    return Request(figures, full, overrides, jobs=2, recorded=False, out=Path("nowhere"))


def named(name: str) -> Figure:
    return next(figure for figure in FIGURES if figure.name == name)


# ---- the experiments


def test_every_experiment_belongs_to_a_figure_and_the_issue_s_all_exist() -> None:
    used = {experiment.split()[0] for figure in FIGURES for experiment in figure.experiments}
    assert used | ALONE >= set(EXPERIMENTS)
    assert used <= set(EXPERIMENTS)
    assert {f"fig{i}" for i in range(1, 10)} | {"table1", "agro_fig1", "agro_kl", "related"} <= used


def test_a_run_that_several_figures_need_is_one_run() -> None:
    folders = {name: {job.config.folder for job in jobs_of(named(name), request_for(named(name)))[0].values()}
               for name in ("fig1", "fig2", "fig3", "fig4", "fig7", "fig9", "table1", "related")}  # fmt: skip
    assert len(folders["fig1"]) == 21
    for name in ("fig2", "fig3", "fig9", "table1"):
        assert folders[name] < folders["fig1"], name
    for name, shared in (("fig4", 6), ("fig7", 6), ("related", 3)):
        assert len(folders[name] & folders["fig1"]) == shared, name


def test_each_seed_has_completions_of_its_own_and_all_algorithms_of_a_seed_share_them() -> None:
    jobs = jobs_of(named("fig1"), request_for(named("fig1")))[0].values()
    assert {(job.config.seed, job.config.sampler.seed) for job in jobs} == {(0, 0), (1, 1), (2, 2)}
    assert {job.config.evaluation.seed for job in jobs} == {0}


def test_the_paper_s_scale_is_the_same_file_with_its_model() -> None:
    def composed(experiment: str, *more: str) -> Any:
        return config_of(f"experiment={experiment}", "model=llama3_8b", "seed=0", *more)

    figure_5 = composed("fig5", "compose.positive_share=0.1", "effective_positive=0.1")
    assert (figure_5.compose.n_examples, figure_5.optim.lr, figure_5.data.source) == (50_000, 5e-7, "hub")
    assert (figure_5.optim.batch_size, figure_5.data.n, figure_5.data.eval_n) == (8, 16, 64)
    figure_8 = composed("fig8", "compose=anna_karenina")
    assert (figure_8.data.n, figure_8.data.train_problems, figure_8.iterations) == (64, None, 5)
    assert composed("fig9", "algo=topr").data.n == 128
    figure_1 = composed("fig1", "algo=dpo")
    assert (figure_1.evaluation.every, figure_1.compose.n_examples) == (500, 50_000)
    with pytest.raises(ConfigError, match=r"learning rate|optim\.lr"):
        config_of("experiment=fig1", "algo=topr", "seed=0", "model.name=another")


def test_figure_7_adds_the_default_runs_and_the_command_line_wins() -> None:
    figure = named("fig7")
    request = request_for(figure, full=True, overrides=("seed=7",))
    texts = arguments(figure.experiments[0], figure, request)
    assert texts[:2] == ["experiment=fig1", "algo=is,topr"]
    assert [text for text in texts if text.startswith("seed=")] == ["seed=7"]
    assert "cluster.threads=1" in texts
    assert not any(text.startswith("cluster.")
                   for text in arguments("fig1", figure, request_for(overrides=("cluster=slurm",))))  # fmt: skip


def test_a_sweep_can_be_narrowed_by_a_setting_that_only_some_algorithms_have() -> None:
    from hydra._internal.utils import get_args_parser

    def jobs(*more: str) -> Any:
        return plan(get_args_parser().parse_args(["experiment=agro_kl", "seed=0", *more])).jobs

    assert [(job.config.algo.name, job.config.algo.beta) for job in jobs("algo.beta=0.3")] == [
        ("agro", 0.3),
        ("kl_pg", 0.3),
    ]
    with pytest.raises(ConfigError, match=r"nothing reads algo\.betta"):
        jobs("algo.betta=0.3")
    with pytest.raises(ConfigError, match=r"nothing reads optim\.rate"):
        jobs("optim.rate=0.3")


def test_every_setting_that_an_experiment_varies_is_in_its_records() -> None:
    from hydra._internal.utils import get_args_parser

    for name in EXPERIMENTS:
        jobs = plan(get_args_parser().parse_args([f"experiment={name}", "seed=0"])).jobs
        assert len({records.identity_of(job.config) for job in jobs}) == len(jobs), name


def test_the_learning_rates_are_those_that_were_chosen() -> None:
    """conf/learning_rates.json names every algorithm; where the choice is recorded it is that choice."""
    from topr_exp.paper.beyond import choose

    rates = json.loads(LEARNING_RATES.read_text())
    algorithms = {path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    assert set(rates["tiny"]) == set(rates["tiny_noise"]) == algorithms
    recorded = ROOT / "docs" / "results" / "learning_rates.json"
    if recorded.exists():
        for model, chosen in choose(Runs(list(records.known(records.read(recorded)).values()))).items():
            assert {name: rates[model][name] for name in chosen} == chosen


def test_table_1_s_limits_are_those_of_the_yamls() -> None:
    for name, limits in LIMITS.items():
        algo = config_of(f"algo={name}").algo
        assert (algo.a_pos, algo.b_pos, algo.a_neg, algo.b_neg) == limits


def test_the_moments_of_gradients_are_those_of_the_whole_matrix() -> None:
    rng = np.random.default_rng(3)
    each = rng.normal(0.1, 1, (70, 11))  # more than two blocks
    factors = {name: rng.normal(size=70) for name in ("one", "other")}
    found = moments([torch.tensor(row) for row in each], factors)
    for name, (trace, signal) in found.items():
        weighed = factors[name][:, None] * each
        assert trace == pytest.approx(np.trace(np.cov(weighed.T)), rel=1e-9)
        pairs = weighed @ weighed.T  # of different examples: unbiased for the squared norm of the mean
        assert signal == pytest.approx((pairs.sum() - np.trace(pairs)) / (70 * 69), rel=1e-6)


def test_at_the_start_only_positives_only_differs_and_later_each_limit_does_what_it_says() -> None:
    positive = np.array([True, True, False, False])
    start = coefficients(np.zeros(4), positive)
    assert start.pop("sft").tolist() == [1, 1, 0, 0]
    assert all(each.tolist() == [1, 1, -1, -1] for each in start.values())
    later = coefficients(np.log([4, 0.5, 4, 0.5]), positive)
    assert later["topr"].tolist() == pytest.approx([1, 1, -1, -0.5])
    assert later["tis"].tolist() == pytest.approx([1, 0.5, -1, -0.5])
    assert later["is"].tolist() == pytest.approx([4, 0.5, -4, -0.5])
    assert later["naive"].tolist() == [1, 1, -1, -1]


# ---- intervals and claims


def made_up(algo: str, seed: int, correct: np.ndarray, **settings: Any) -> dict[str, Any]:
    """A record with so many correct completions of 8 for each problem."""

    def results(correct: np.ndarray, invalid: np.ndarray, maj: np.ndarray) -> dict[str, Any]:
        kinds = {"correct": correct, "invalid": invalid, "maj": maj}
        return {"n": 8, "k": 8, "of_problems": {name: records.packed(each) for name, each in kinds.items()}}

    base = results(*(np.full(len(correct), count) for count in (2, 1, 250)))
    final = results(correct, 8 - correct, 1000 * (correct > 4))
    names = {"algo.name": algo, "data.name": "gsm8k", "model.name": "tiny", "seed": seed, **settings}
    return {"run": f"{algo}{seed}", "settings": names, "environment": {"git_commit": "abc"}, "base": base,
            "final": final, "metrics": {"step": [1]}, "summary": {"n_train": 40}}  # fmt: skip


def test_the_interval_covers_seeds_and_problems() -> None:
    """By simulation: 95 % intervals hold the true mean about that often where both seeds and problems vary."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        values = 0.5 + 0.1 * rng.normal(size=(8, 1)) + 0.3 * rng.normal(size=(1, 50)) + 0.3 * rng.normal(size=(8, 50))
        found = interval(values)
        held += found.low <= 0.5 <= found.high
    assert 88 <= held <= 100


@pytest.mark.parametrize(
    ("seeds", "of_seed", "of_problem"), [(3, 0.2, 0.1), (3, 0.02, 0.3), (3, 0.0, 0.3), (5, 0.1, 0)]
)
def test_the_interval_holds_with_few_seeds(seeds: int, of_seed: float, of_problem: float) -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        rest = 0.3 * rng.normal(size=(seeds, 40))
        found = interval(of_seed * rng.normal(size=(seeds, 1)) + of_problem * rng.normal(size=(1, 40)) + rest - 5)
        held += found.low <= -5 <= found.high
    assert 0.91 <= held / 400 <= 0.985


def test_the_interval_of_one_seed_is_over_problems_and_shares_stay_shares() -> None:
    rng = np.random.default_rng(2)
    values = 0.5 + 0.3 * rng.normal(size=(8, 50))
    alone = interval(values[:1])
    assert alone.high - alone.low == pytest.approx(2 * 2.01 * values[0].std(ddof=1) / np.sqrt(50), rel=0.01)
    assert interval(np.zeros((3, 9))) == Interval(0.0, 0.0, 0.0, 3)
    rare = interval((rng.random((2, 30)) < 0.02).astype(float))
    assert rare.low == 0.0
    assert [round(t_95(freedom), 2) for freedom in (1, 2, 10, 1e6)] == [12.71, 4.30, 2.23, 1.96]


def test_a_difference_is_paired_by_seed_and_problem() -> None:
    rng = np.random.default_rng(1)
    correct = rng.integers(0, 7, (3, 40))
    lower = Runs([made_up("a", seed, row) for seed, row in enumerate(correct)])
    higher = Runs([made_up("b", seed, row + 1) for seed, row in enumerate(correct)][1:])
    found = difference(lower, higher)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1 / 8,) * 3)  # of every problem and seed
    assert found.seeds == 2  # those that both have
    assert difference(lower, Runs([])) is None


def test_claims_are_decided_by_the_whole_interval() -> None:
    assert above("", Interval(0.1, 0.05, 0.2, 3)).holds is True
    assert above("", Interval(0.1, -0.05, 0.2, 3)).holds is None
    assert above("", Interval(-0.1, -0.2, -0.05, 3)).holds is False
    assert below("", Interval(-0.1, -0.2, -0.05, 3)).holds is True
    assert above("", Interval(-0.01, -0.02, 0.0, 3), -0.03).holds is True
    assert above("", None).word == "undecided"
    within, wide, apart = Interval(0.0, -0.02, 0.02, 3), Interval(0.02, -0.03, 0.07, 3), Interval(0.1, 0.04, 0.2, 3)
    assert between("", [("a", within), ("b", within)], 0.03).holds is True
    assert between("", [("a", within), ("b", wide)], 0.03).holds is None
    assert between("", [("a", wide), ("b", apart)], 0.03).holds is False
    assert between("", [("a", None)], 0.03).evidence == "no runs"
    shown, not_shown, open_ = (Claim("", holds, "") for holds in (True, False, None))
    assert verdict([shown, shown]) == "shown"
    assert verdict([shown, not_shown]) == verdict([open_, shown]) == "partly"
    assert verdict([not_shown, open_]) == "undecided"
    assert verdict([not_shown, not_shown]) == "not shown"


def test_figure_1_s_verdict_follows_the_numbers() -> None:
    """The paper's ordering is shown where it is there, and not where two algorithms change places."""

    def runs(**levels: int) -> Runs:
        rng = np.random.default_rng(0)
        return Runs([made_up(algo, seed, np.clip(level + rng.integers(-1, 2, 60), 0, 8))
                     for algo, level in levels.items() for seed in range(3)])  # fmt: skip

    judge = named("fig1").judge
    assert verdict(judge(runs(naive=0, ppo=3, dpo=5, topr=7), {})) == "shown"
    claims = {claim.text: claim.holds for claim in judge(runs(naive=0, ppo=5, dpo=3, topr=7), {})}
    assert claims["DPO ends above PPO"] is False
    assert claims["naive REINFORCE collapses: it ends below the base"] is True


def claimed(claims: list[Claim], text: str) -> Claim:
    return next(claim for claim in claims if text in claim.text)


def test_figure_6_says_where_topr_fails_too() -> None:
    rng = np.random.default_rng(0)

    def runs(algo: str, p: float, level: int) -> list[dict[str, Any]]:
        return [made_up(algo, seed, np.clip(level + rng.integers(-1, 2, 60), 0, 8), effective_positive=p)
                for seed in range(3)]  # fmt: skip

    found = Runs(runs("topr", 0.02, 1) + runs("tis", 0.02, 0) + runs("topr", 0.5, 6) + runs("tis", 0.5, 7))
    claims = named("fig6").judge(found, {})
    assert claimed(claims, "TIS below TOPR at p̃ = 2 %").holds is True
    assert claimed(claims, "TOPR does not fail at p̃ = 2 %").holds is False  # it ends below the base, 2 of 8
    assert claimed(claims, "TIS peaks higher").holds is True


def test_a_gain_a_nat_is_compared_by_seed() -> None:
    def runs(beta: float, level: int) -> Runs:
        return Runs([made_up("agro", seed, np.full(20, level), **{"algo.beta": beta}) for seed in range(3)])

    weak, strong = runs(0.05, 6), runs(0.5, 4)  # the base: 2 of 8
    distances = {json.dumps(each["settings"], sort_keys=True): distance + 0.01 * each["settings"]["seed"]
                 for group, distance in ((weak, 2.0), (strong, 0.5)) for each in group}  # fmt: skip
    assert a_nat(weak, distances) == pytest.approx({0: 0.25, 1: 0.5 / 2.01, 2: 0.5 / 2.02})
    claims = named("agro_kl").judge(Runs([*weak, *strong]), distances)
    assert claimed(claims, "the largest β gains more a nat").holds is True
    assert claimed(claims, "a strong β slows learning").holds is True


def test_balanced_accuracy_is_not_the_share_of_the_commoner_verdict() -> None:
    """A verifier that calls everything wrong: right in 9 of 10, and in half of what counts."""
    counts = {"right_on_correct": [0, 0], "verified_correct": [2, 2],
              "right_on_incorrect": [18, 18], "verified_incorrect": [18, 18]}  # fmt: skip
    assert balanced(counts) == 0.5


def test_the_grid_that_an_algorithm_bears() -> None:
    def runs(algo: str, *levels: int) -> list[dict[str, Any]]:
        return [made_up(algo, 0, np.full(20, level), **{"optim.lr": rate})
                for rate, level in zip((1e-5, 1e-4, 1e-3), levels, strict=True)]  # fmt: skip

    others = [each for algo in ("ppo", "dpo", "is") for each in runs(algo, 5, 5, 0)]
    claim = holding(Runs([*runs("topr", 4, 7, 6), *runs("naive", 4, 0, 0), *others]))
    assert claim.holds is True
    assert "TOPR 3 of 3, naive REINFORCE 1 of 3, PPO 2 of 3" in claim.evidence
    assert holding(Runs([*runs("topr", 4, 7, 1), *runs("naive", 4, 0, 0), *others])).holds is False
    assert holding(Runs(runs("topr", 4, 7, 6))).holds is None


def test_ratios_are_compared_at_the_best_rate_of_each() -> None:
    def runs(ratio: str, *levels: int) -> list[dict[str, Any]]:
        return [made_up("tis", seed, np.full(20, level), **{"algo.ratio": ratio, "optim.lr": rate})
                for rate, level in zip((1e-4, 3e-4), levels, strict=True) for seed in range(3)]  # fmt: skip

    claims = named("ratio").judge(Runs([*runs("sequence", 3, 5), *runs("token", 6, 0)]), {})
    assert claimed(claims, "above the token one").holds is False  # 6 of 8 against 5, not 0


# ---- files


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
    assert text.count("Not computed yet: `python -m topr_exp.paper") == len(FIGURES) - 1
    assert "commit abc" in text
    assert "6 runs, seeds 0 1 2" in text
    assert "- DPO ends above PPO: *undecided* (no runs)" in text
    lines = numbers(named("fig1"), Runs(found))
    assert len(lines) == 2 + 1 + 2


def as_if_run(settings: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A record of a run with these settings, its numbers made up."""
    record = made_up(settings["algo.name"], settings["seed"], rng.integers(0, 9, 12))
    record["settings"] = settings
    record["metrics"] = {"step": [1, 2, 3], **{name: rng.uniform(0.1, 1, 3).tolist() for name in records.METRICS}}
    if "evaluation.every" in settings:
        shares = rng.dirichlet(np.ones(3), 4).T.tolist()
        names = ("correct", "incorrect", "invalid")
        record["curve"] = {"step": [0, 1, 2, 3], "pass@1": shares[0], **dict(zip(names, shares, strict=True))}
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


TALLIED = (
    "right", "unparsable", "right_on_correct", "right_on_incorrect", "weighted_sc", "maj", "oracle", "solved",
)  # fmt: skip


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.name)
def test_every_figure_is_drawn_and_judged_from_records_alone(figure: Figure, tmp_path: Path) -> None:
    """With the settings of its own runs, both models; and with half of the runs, as when a sweep was stopped."""
    jobs, _ = jobs_of(figure, request_for(figure, overrides=("seed=0,1",)))
    rng = np.random.default_rng(0)
    settings = [json.loads(key) for key in jobs]
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
                assert sum(len(each) for each in figure.table(group).values()) >= len(group) // 2
        with drawing():
            save(figure.draw(Runs(found), extra), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size < 400_000


SMOKE = (
    "data.train_problems=8", "data.test_problems=4", "data.n=4", "data.eval_n=4", "sampler.prompts_per_shard=4",
    "optim.batch_size=16", "evaluation.every=1", "evaluation.problems=2", "seed=0", "algo=topr", "--jobs", "1",
)  # fmt: skip


def test_a_figure_from_runs_to_page_and_a_check_that_finds_a_difference(tmp_path: Path) -> None:
    """The real thing at the smallest size: one run for two figures; a second time nothing is run; a check."""
    out = tmp_path / "results"
    given = ["fig1", "fig9", *SMOKE, f"output_dir={tmp_path}", "--out", out]
    first = command("topr_exp.paper", *given)
    assert first.returncode == 0, first.stderr
    assert "1 different runs to do" in first.stdout
    assert {path.name for path in out.iterdir()} == {"README.md", "fig1.json", "fig1.png", "fig9.json", "fig9.png"}
    text = (out / "README.md").read_text()
    assert "![Figure 1](fig1.png)" in text
    assert "tiny: the numbers (1 run, seeds 0)" in text
    assert len(list((tmp_path / "paper").glob("topr_*"))) == 1

    again = command("topr_exp.paper", *given, "--check")
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "every number of every run is the recorded one")
    stored = json.loads((out / "fig1.json").read_text())
    stored["runs"][0]["final"]["pass@1"] += 0.25
    (out / "fig1.json").write_text(json.dumps(stored))
    changed = command("topr_exp.paper", *given, "--check")
    assert changed.returncode == 1
    assert "final.pass@1: " in changed.stdout
    recorded = command("topr_exp.paper", *given[:-1], out, f"output_dir={tmp_path / 'empty'}", "--recorded", "--list")
    assert "0 different runs to do" in recorded.stdout


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fig10"]) == 2
    assert capsys.readouterr().err.startswith("error: fig10: no such figure; allowed: fig1, fig2")
    assert main(["fig1", "seed=-1"]) == 2
    assert "seed must be 0 or more" in capsys.readouterr().err
