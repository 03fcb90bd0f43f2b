"""The experiments behind the figures, and the command."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reproduce import records
from reproduce.__main__ import choose_figures, main, parser, refuse_changed_code
from reproduce.figures import FIGURES
from reproduce.groups import group_by
from reproduce.jobs import command_words, plan_figure
from reproduce.selection import Runs
from tests.conftest import ROOT, config_of
from tests.reproduce.worlds import named, request_for
from topr_exp.types import ConfigError

pytestmark = pytest.mark.extended

EXPERIMENTS = {path.stem for folder in (ROOT, ROOT / "reproduce") for path in folder.glob("conf/experiment/*.yaml")}
ALONE = {"smoke", "paper"}  # that no figure is made of
SMOKE = (
    "data.train_problems=8", "data.test_problems=4", "data.n=4", "data.eval_n=4", "sampler.prompts_per_shard=4",
    "optim.batch_size=16", "evaluation.every=1", "evaluation.problems=2", "seed=0", "algo=topr", "--jobs", "1",
)  # fmt: skip


def test_every_experiment_belongs_to_a_figure() -> None:
    assert {experiment.split()[0] for figure in FIGURES for experiment in figure.experiments} == EXPERIMENTS - ALONE


@pytest.mark.parametrize("name", ["lag", "mismatch"])
def test_each_run_of_a_study_is_in_one_row_of_its_table(name: str) -> None:
    figure = named(name)
    runs = Runs(
        [{"settings": json.loads(key)} for key in plan_figure(figure, request_for(figure, overrides=("seed=0",))).jobs]
    )
    rows = [run["settings"] for group in group_by(runs, *figure.levels).values() for run in group]
    assert len(rows) == len(runs)
    assert all(run["settings"] in rows for run in runs)


def test_a_run_that_several_figures_need_is_one_run_with_completions_of_its_seed() -> None:
    jobs = {
        name: plan_figure(named(name), request_for(named(name))).jobs.values()
        for name in ("fig1", "fig2", "fig7", "related")
    }
    folders = {name: {job.config.folder for job in jobs_of_figure} for name, jobs_of_figure in jobs.items()}
    assert len(folders["fig1"]) == 21
    assert folders["fig2"] < folders["fig1"]
    assert [len(folders[name] & folders["fig1"]) for name in ("fig7", "related")] == [6, 3]
    assert {(job.config.seed, job.config.sampler.seed) for job in jobs["fig1"]} == {
        (0, 0), (1, 1), (2, 2),
    }  # fmt: skip


def test_the_paper_s_scale_is_the_same_file_with_its_model() -> None:
    def composed(experiment: str, *words: str) -> Any:
        return config_of(f"experiment={experiment}", "model=llama3_8b", "seed=0", *words)

    figure_5 = composed("fig5", "compose.positive_share=0.1", "effective_positive=0.1")
    assert (figure_5.compose.n_examples, figure_5.optim.lr, figure_5.data.source) == (50_000, 5e-7, "hub")
    assert (figure_5.optim.batch_size, figure_5.data.n, figure_5.data.eval_n) == (8, 16, 64)
    figure_8 = composed("fig8", "compose=anna_karenina")
    assert (figure_8.data.n, figure_8.data.train_problems, figure_8.iterations) == (64, None, 5)
    assert composed("fig9", "algo=topr").data.n == 128
    figure_1 = composed("fig1", "algo=dpo")
    assert (figure_1.evaluation.every, figure_1.compose.n_examples) == (500, 50_000)
    with pytest.raises(ConfigError, match=r"^optim\.lr: no learning rate was chosen for topr on mine; set optim\.lr$"):
        config_of("experiment=fig1", "algo=topr", "seed=0", "model.name=mine")


def test_an_experiment_s_own_settings_and_the_command_line_s() -> None:
    figure = named("fig7")
    texts = command_words(figure.experiments[0], figure, request_for(figure, full=True, overrides=("seed=7",)))
    assert texts[:2] == ["experiment=fig1", "algo=is,topr"]
    assert [text for text in texts if text.startswith("seed=")] == ["seed=7"]
    assert "cluster.threads=1" in texts
    slurm = command_words("fig1", figure, request_for(overrides=("cluster=slurm",)))
    assert not any(text.startswith("cluster.") for text in slurm)


@pytest.mark.parametrize(
    ("text", "losses"),
    [("algo=cispo", {"cispo "}), ("algo=topr", {"topr sequence", "topr token", "topr geometric"}),
     ("algo=cispo,topr", {"cispo ", "topr sequence", "topr token", "topr geometric"})],
)  # fmt: skip
def test_one_algorithm_of_a_figure_that_has_settings_of_others(text: str, losses: set[str]) -> None:
    figure = named("nats")
    jobs = plan_figure(figure, request_for(figure, overrides=(text, "seed=0", "optim.lr=3e-4"))).jobs
    algorithms = (job.config.algo for job in jobs.values())
    assert {f"{algo.name} {getattr(algo, 'ratio', '')}" for algo in algorithms} == losses


@pytest.mark.parametrize(
    ("words", "included", "left_out"),
    [("--list model=tiny_noise", "fig1", "table2 mu"), ("--full", "table2 mu lag", ""),
     ("--full model=tiny", "mu", "lag table2"), ("fig2 mu", "fig2 mu", "fig1"), ("", "fig1 table2", "mu")],
)  # fmt: skip
def test_which_figures_are_asked_for(words: str, included: str, left_out: str) -> None:
    names = {figure.name for figure in choose_figures(FIGURES, parser().parse_intermixed_args(words.split()))}
    assert names >= {*included.split()}
    assert not names & {*left_out.split()}


def test_a_figure_from_runs_to_page_and_a_check_that_finds_a_difference(tmp_path, capsys):
    """The real thing at the smallest size: one run for two figures; a second time nothing is run; a check."""
    out = tmp_path / "results"
    command = ["fig1", "fig9", *SMOKE, f"output_dir={tmp_path}", "--out", str(out)]

    def reproduce(*words: str) -> tuple[int, str]:
        code = main([*command, *words])
        return code, capsys.readouterr().out

    code, printed = reproduce()
    assert code == 0
    assert "1 different runs to do" in printed
    assert {path.name for path in out.iterdir()} == {"README.md", "fig1.json", "fig1.png", "fig9.json", "fig9.png"}
    assert "tiny: the numbers (1 run, seeds 0)" in (out / "README.md").read_text()
    assert len(list((tmp_path / "paper").glob("topr_*"))) == 1

    code, printed = reproduce("--check")
    computed = [path.stat().st_mtime_ns for path in (tmp_path / "check" / "paper").glob("topr_*/DONE")]
    assert len(computed) == 1
    agreed = [f"{name}: the same to the digit in 1 of 1 run" for name in ("fig1", "fig9")]
    assert (code, printed.splitlines()[-2:]) == (0, agreed)
    stored = json.loads((out / "fig1.json").read_text())
    stored["runs"][0]["final"]["pass@1"] += 0.25
    (out / "fig1.json").write_text(json.dumps(stored))
    code, printed = reproduce("--check")
    assert code == 1
    assert "final.pass@1: " in printed
    assert [path.stat().st_mtime_ns for path in (tmp_path / "check" / "paper").glob("topr_*/DONE")] > computed
    code, printed = reproduce(f"output_dir={tmp_path / 'empty'}", "--recorded", "--list")
    assert "0 different runs to do" in printed
    assert records.read(out / "fig9.json")["extra"].keys() == {"tiny 0"}


def test_records_of_the_repository_are_made_from_committed_code(tmp_path, monkeypatch) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr("reproduce.__main__.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    refuse_changed_code(Path("docs/results"))
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "reproduce" / "new.py").write_text("")
    with pytest.raises(
        ConfigError, match=r"^--out docs/results: records name the commit .* reproduce/ has uncommitted"
    ):
        refuse_changed_code(Path("docs/results"))
    refuse_changed_code(tmp_path / "elsewhere")
