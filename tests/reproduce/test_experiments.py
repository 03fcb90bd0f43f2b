"""The experiments behind the figures, and the command."""

import json
import shutil
import subprocess
from unittest.mock import Mock

import pytest

import reproduce.__main__ as command
from reproduce import records
from reproduce.figures import FIGURES
from reproduce.jobs import FigurePlan, command_words, plan_figure
from tests.conftest import ROOT, config_of, each_row, names_in, read_json, refused, values_of, write_file
from tests.reproduce.worlds import figure_named, request_for

pytestmark = pytest.mark.extended

SMOKE = """
data.train_problems=8 data.test_problems=4 data.n=4 data.eval_n=4 sampler.prompts_per_shard=4
optim.batch_size=16 evaluation.every=1 evaluation.problems=2 seed=0 algo=topr --jobs 1
"""


def test_every_experiment_belongs_to_a_figure():
    used = {experiment.split()[0] for figure in FIGURES for experiment in figure.experiments}

    files = [*ROOT.glob("conf/experiment/*.yaml"), *ROOT.glob("reproduce/conf/experiment/*.yaml")]
    assert set(values_of(files, "stem")) - {"smoke", "paper", "real"} == used


def test_a_run_that_several_figures_need_is_one_run_with_completions_of_its_seed():
    folders = {}
    for name in ("fig1", "fig2", "fig7", "related"):
        figure = figure_named(name)
        folders[name] = set()
        for job in plan_figure(figure, request_for(figure)).jobs.values():
            assert job.config.seed == job.config.sampler.seed
            folders[name].add(job.config.folder)

    assert len(folders["fig1"]) == 21
    assert folders["fig2"] < folders["fig1"]
    assert len(folders["fig7"] & folders["fig1"]) == 6
    assert len(folders["related"] & folders["fig1"]) == 3


def test_the_papers_scale_is_the_same_file_with_its_model():
    words = ["experiment=fig5", "model=llama3_8b", "seed=0", "compose.positive_share=0.1", "effective_positive=0.1"]

    config = config_of(*words)

    assert config.compose.n_examples == 50_000
    assert config.optim.lr == 5e-7
    assert config.optim.batch_size == 8
    assert config.data.source == "hub"
    assert config.data.n == 16
    assert config.data.eval_n == 64


def test_an_experiments_settings_come_before_the_command_lines():
    figure = figure_named("fig7")
    request = request_for(figure, full=True, overrides=("seed=7",))

    words = command_words(figure.experiments[0], figure, request)

    assert words[:2] == ["experiment=fig1", "algo=is,topr"]
    assert [word for word in words if word.startswith("seed=")] == ["seed=7"]
    assert "cluster.threads=1" in words


def test_slurm_has_its_own_settings_of_a_cluster():
    words = command_words("fig1", figure_named("fig7"), request_for(overrides=("cluster=slurm",)))

    assert not any(word.startswith("cluster.") for word in words)


# A command line | figures that it names | figures that it does not, - for any
CHOICES = """
--list model=tiny_noise | fig1 | table2 mu
--full | table2 mu lag | -
--full model=tiny | mu | lag table2
fig2 mu | fig2 mu | fig1
"""


@each_row("words included left_out", CHOICES)
def test_which_figures_a_command_line_names(words, included, left_out):
    options = command.parser().parse_intermixed_args(words.split())

    names = set(values_of(command.choose_figures(options), "name"))

    assert names >= set(included.split())
    assert not names & set(left_out.split())


def test_a_figure_goes_on_where_it_stopped_and_a_check_finds_a_difference(tmp_path, capsys):
    """The real thing at the smallest size: one run for two figures; a second time nothing is run; a check."""
    out = tmp_path / "results"
    checks = tmp_path / "check/paper"

    def reproduce(*words):
        status = command.main(["fig1", "fig9", *SMOKE.split(), f"output_dir={tmp_path}", "--out", str(out), *words])
        return status, capsys.readouterr().out

    status, printed = reproduce()
    assert status == 0
    assert "1 different runs to do" in printed
    assert names_in(out) == {"README.md", "fig1.json", "fig1.png", "fig9.json", "fig9.png"}
    assert "tiny: the numbers (1 run, seeds 0)" in (out / "README.md").read_text()
    assert records.read(out / "fig9.json")["extra"].keys() == {"tiny 0"}

    for path in out.iterdir():  # broken off before anything was written
        path.unlink()
    status, printed = reproduce()
    assert status == 0
    assert "0 different runs to do" in printed
    assert len(list(out.iterdir())) == 5

    status, printed = reproduce("--check")
    assert status == 0
    assert printed.splitlines()[-2:] == [f"{name}: the same to the digit in 1 of 1 run" for name in ("fig1", "fig9")]
    (first_check,) = checks.glob("topr_*/DONE")
    first_time = first_check.stat().st_mtime_ns

    stored = read_json(out / "fig1.json")
    stored["runs"][0]["final"]["pass@1"] += 0.25
    (out / "fig1.json").write_text(json.dumps(stored))
    status, printed = reproduce("--check")
    assert status == 1
    assert "final.pass@1: " in printed
    assert first_check.stat().st_mtime_ns > first_time, "a check computes again"

    _, printed = reproduce(f"output_dir={tmp_path / 'empty'}", "--recorded", "--list")
    assert "0 different runs to do" in printed


def test_records_of_the_repository_are_made_from_committed_code(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    results = tmp_path / "docs/results"
    command.refuse_changed_code(results, tmp_path)

    write_file(tmp_path / "reproduce/new.py")

    with refused(r"^--out .*docs/results: records name the commit .* reproduce/ has uncommitted"):
        command.refuse_changed_code(results, tmp_path)
    command.refuse_changed_code(tmp_path / "elsewhere", tmp_path)

    plan = FigurePlan(Mock(), {"": Mock()})
    plan.jobs[""].config.folder = tmp_path
    write_file(tmp_path / "environment.json", '{"git_dirty": true}')
    command.refuse_runs_of_changed_code([plan], command.RESULTS)
    write_file(tmp_path / "DONE")
    with refused(f"{tmp_path} was begun with uncommitted changes; remove it, or give another --out"):
        command.refuse_runs_of_changed_code([plan], command.RESULTS)
    command.refuse_runs_of_changed_code([plan], results)


def test_a_figure_takes_no_runs_of_other_settings_beside_its_own(tmp_path, capsys):
    shutil.copy(ROOT / command.RESULTS / "fig9.json", tmp_path)

    def status(*words):
        return command.main(["fig9", "--list", "--out", str(tmp_path), *words])

    assert status("seed=0") == 0
    assert status("seed=0", "data.n=4") == 2
    message = f"--out {tmp_path}: the figure would mix runs with seed=0 data.n=4 and others in fig9.json"
    assert message in capsys.readouterr().err
