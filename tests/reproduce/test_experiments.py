"""The papers' figures: the experiments behind them, and the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reproduce import records
from reproduce.__main__ import main
from reproduce.jobs import arguments, jobs_of
from reproduce.learning_rates import choose, key_of, read_rates
from reproduce.rates import TRIED
from reproduce.registry import FIGURES
from tests.conftest import ROOT, config_of
from tests.reproduce.made_up import named, request_for
from topr_exp.config.arguments import parse
from topr_exp.config.schema import plain
from topr_exp.report.selection import Runs
from topr_exp.runs.plan import plan
from topr_exp.types import ConfigError

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
ALONE = {"smoke", "paper"}  # experiments that no figure of the registry is made of


def test_every_experiment_belongs_to_a_figure_and_the_issue_s_all_exist() -> None:
    used = {experiment.split()[0] for figure in FIGURES for experiment in figure.experiments}
    assert used | ALONE >= set(EXPERIMENTS)
    assert used <= set(EXPERIMENTS)
    assert {f"fig{i}" for i in range(1, 10)} | {"table1", "agro_fig1", "agro_kl", "related"} <= used


def test_a_run_that_several_figures_need_is_one_run() -> None:
    folders = {name: {job.config.folder for job in jobs_of(named(name), request_for(named(name)))[0].values()}
               for name in ("fig1", "fig2", "fig3", "fig4", "fig7", "fig9", "table1", "related")}  # fmt: skip
    assert len(folders["fig1"]) == 21
    for name in ("fig2", "fig3", "fig9"):
        assert folders[name] < folders["fig1"], name
    for name, shared in (("fig4", 6), ("fig7", 6), ("related", 3), ("table1", 3)):
        assert len(folders[name] & folders["fig1"]) == shared, name


def test_each_seed_has_completions_of_its_own_and_all_algorithms_of_a_seed_share_them() -> None:
    jobs = jobs_of(named("fig1"), request_for(named("fig1")))[0].values()
    assert {(job.config.seed, job.config.sampler.seed) for job in jobs} == {(0, 0), (1, 1), (2, 2)}
    assert {job.config.evaluation.seed for job in jobs} == {0}
    told = [json.loads(records.identity_of(job.config)) for job in jobs]
    assert {(each["seed"], each["sampler.seed"]) for each in told} == {(0, 0), (1, 1), (2, 2)}


def test_the_paper_s_scale_is_the_same_file_with_its_model() -> None:
    def composed(experiment: str, *more: str) -> Any:
        return config_of(f"experiment={experiment}", "model=llama3_8b", "seed=0", *more)

    figure_5 = composed("fig5", "compose.positive_share=0.1", "effective_positive=0.1")
    assert (figure_5.compose.n_examples, figure_5.optim.lr, figure_5.data.source) == (50_000, 5e-7, "hub")
    assert (figure_5.optim.batch_size, figure_5.data.n, figure_5.data.eval_n) == (8, 16, 64)
    figure_8 = composed("fig8", "compose=anna_karenina")
    assert (figure_8.data.n, figure_8.data.train_problems, figure_8.iterations) == (64, None, 5)
    assert composed("fig9", "algo=topr").data.n == 128
    for model, name, n_examples, lr in (("llama3_8b", "tiny", 50_000, 5e-7), ("tiny", "llama3_8b", 3200, 3e-4)):
        labelled = config_of("experiment=fig5", f"model={model}", f"model.name={name}", "seed=0", "algo=topr",
                             "compose.positive_share=0.1", "effective_positive=0.1")  # fmt: skip
        assert (labelled.compose.n_examples, labelled.optim.lr) == (n_examples, lr)
    figure_1 = composed("fig1", "algo=dpo")
    assert (figure_1.evaluation.every, figure_1.compose.n_examples) == (500, 50_000)
    with pytest.raises(ConfigError, match=r"^optim\.lr: Interpolation key 'learning_rates\.mine\.topr' not found$"):
        config_of("experiment=fig1", "algo=topr", "seed=0", "model.learning_rates=mine")


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
    def jobs(*more: str) -> Any:
        return plan(parse(["experiment=agro_kl", "seed=0", *more])).jobs

    assert [(job.config.algo.name, job.config.algo.beta) for job in jobs("algo.beta=0.3")] == [
        ("agro", 0.3),
        ("kl_pg", 0.3),
    ]
    with pytest.raises(ConfigError, match=r"nothing reads algo\.betta"):
        jobs("algo.betta=0.3")
    with pytest.raises(ConfigError, match=r"nothing reads optim\.rate"):
        jobs("optim.rate=0.3")


def test_one_algorithm_of_a_figure_that_has_settings_of_others() -> None:
    def asked(text: str) -> set[tuple[str, Any]]:
        jobs = jobs_of(named("staleness_long"), request_for(named("staleness_long"), overrides=(text, "seed=0")))[0]
        return {(job.config.algo.name, getattr(job.config.algo, "length_normalize", None)) for job in jobs.values()}

    assert asked("algo=cispo") == {("cispo", False)}
    assert asked("algo=topr") == {("topr", True), ("topr", False)}
    assert asked("algo=cispo,topr") == {("cispo", False), ("topr", True), ("topr", False)}


def test_every_setting_that_an_experiment_varies_is_in_its_records() -> None:
    for name in EXPERIMENTS:
        jobs = plan(parse([f"experiment={name}", "seed=0"])).jobs
        assert len({records.identity_of(job.config) for job in jobs}) == len(jobs), name


def test_the_learning_rates_are_those_that_were_chosen() -> None:
    """conf/learning_rates.yaml names every algorithm; where the choice is recorded it is that choice."""
    rates = read_rates()
    algorithms = {path.stem for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    assert set(rates["tiny"]) == set(rates["tiny_noise"]) == algorithms
    for figure, by_place in TRIED.items():
        stored = records.known(records.read(ROOT / "docs" / "results" / f"{figure}.json"))
        for place, chosen in choose(by_place(Runs(list(stored.values())))).items():
            assert {name: rates[key_of(place)][key_of(name)] for name in chosen} == chosen


def test_runs_on_long_answers_have_the_rate_of_their_length_and_loss() -> None:
    """The loss by its ratio and width, where these are not the YAML's."""
    rates = read_rates()
    names = {("topr", "token"): "topr_token_ratio", ("topr", "geometric"): "topr_geometric_ratio",
             ("gspo", 0.03): "gspo_eps_low_0_03", ("ppo", 0.8): "ppo_eps_low_0_8",
             ("opmd", 0.01): "opmd_tau_0_01", ("cispo", 1.0): "cispo_cap_1",
             ("vespo", 0.5): "vespo_c1_pos_0_5"}  # fmt: skip
    seen = set()
    for job in jobs_of(named("length"), request_for(named("length")))[0].values():
        algo = job.config.algo
        own = [(algo.name, value) for value in map(plain, vars(algo).values()) if (algo.name, value) in names]
        loss = names[own[0]] if own else algo.name
        assert job.config.optim.lr == rates[f"tiny_long_{job.config.data.turns}_turns"][loss]
        seen.add((loss, job.config.data.turns))
    assert {loss for loss, _ in seen} == {
        *names.values(),
        *["topr", "tis", "is", "gspo", "cispo", "vespo", "ppo", "opmd"],
    }
    assert len(seen) == 15 * 4


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fig10"]) == 2
    assert capsys.readouterr().err.startswith("error: fig10: no such figure; allowed: fig1, fig2")
    assert main(["table2", "model=tiny_noise"]) == 2
    assert "model=tiny_noise: table2 trains another model" in capsys.readouterr().err
    assert main(["--list", "model=tiny_noise", "seed=0"]) == 0
    assert not {"table2", "mu"} & {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    for text in ("optim.epochs=2", "optim=paper", "sampler.temperature=0.7", "model.path=x"):
        assert main(["fig2", text, "--recorded"]) == 2
        assert f"{text}: results are told apart by other settings (algo.name," in capsys.readouterr().err
    assert main(["fig2", "dry_run=true"]) == 2
    assert "dry_run=true: --list says" in capsys.readouterr().err
    assert main(["fig1", "seed=-1"]) == 2
    assert "seed must be 0 or more" in capsys.readouterr().err
