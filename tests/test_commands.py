"""Commands: mistakes, help, a dry run, `make clean`. (They import nothing heavy: tests/test_architecture.py.)"""

import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT, contents, each_row, run_python, write_file
from tests.sweep_tools import answer

# A command | its exit status | a part of the one line that it says, on standard error
MISTAKES = """
topr_exp basline=-0.3 | 2 | nothing reads basline; did you mean baseline?
topr_exp -m seed=0,1 optim.lr=-1 | 2 | optim.lr must be above 0; got -1
topr_exp --cfg job -m | 2 | leave -m out
topr_exp --cfg job data.id=1 | 2 | data.id is gone: set data.fields.id
topr_exp --cfg all | 2 | --cfg all is not read here; --cfg job shows
topr_exp.evaluate model=nowhere | 2 | model=nowhere: no such choice; allowed:
topr_exp.evaluate model=tiny baseline=0.1 | 2 | baseline=0.1: an evaluation does not read baseline
topr_exp.evaluate model=tiny +optim.lr=1 | 2 | +optim.lr=1: an evaluation does not read optim.lr
topr_exp.evaluate data.eval_n=3 | 2 | model=FOLDER_OR_NAME is missing
topr_exp.evaluate model=tiny sampler.mismatch.weights=int8 | 2 | sampler.mismatch.weights=int8: an evaluation does not r
topr_exp.evaluate model=tiny cluster=slurm | 2 | cluster=slurm: an evaluation does not read cluster
topr_exp.evaluate model=tiny cluster.processes=2 | 2 | cluster.processes=2: an evaluation does not read cluster.proces
topr_exp.evaluate model=tiny model=tiny_noise | 2 | is given twice; give it once
topr_exp.evaluate model=tiny data.eval_n=2 data.eval_n=3 | 2 | is given twice; give it once
topr_exp.evaluate model=tiny data.eval_n=2,4 | 2 | data.eval_n=2,4: several values
topr_exp.evaluate model=tiny experiment=fig4 | 2 | these settings are 12 evaluations
topr_exp.evaluate model=tiny data.evaln=3 | 2 | nothing reads data.evaln; did you mean data.eval_n?
topr_exp.losses torp | 2 | no loss is called torp
topr_exp.losses topr --plot x.foo | 2 | --plot must be a .png, .pdf or .svg file; got x.foo
topr_exp.sweeps status nowhere | 1 | no sweep in nowhere
topr_exp.sweeps resume SWEEP seed=3 | 2 | only cluster settings can change
topr_exp.sweeps resume SWEEP cluster.jobs=x | 2 | cluster.jobs=x: expected a whole number
topr_exp.sweeps cancel SWEEP 77 | 1 | 77: no run of
topr_exp.sweeps logs SWEEP 9 | 1 | 9: no run of
reproduce fig10 | 2 | fig10: no such figure; allowed: fig1, fig2
reproduce table2 model=tiny_noise | 2 | model=tiny_noise: table2 trains another model
reproduce fig2 optim.epochs=2 | 2 | optim.epochs=2: results are told apart by other settings (algo.*,
reproduce fig2 optim=paper --recorded | 2 | optim=paper: results are told apart by other settings (algo.*,
reproduce fig1 seed=-1 | 2 | seed must be 0 or more
reproduce fig1 --out Makefile | 2 | not a folder
reproduce.bench algo=grop --list | 2 | algo=grop: no such choice; did you mean grpo?
reproduce.bench algo.b_neg=2 --list | 2 | algo.b_neg=2: of which loss? give algo=NAME, too
reproduce.bench algo=topr --conditions stale | 2 | --conditions stale: no such condition; allowed: fresh,
reproduce.bench algo=topr cluster=slurm | 2 | cluster=slurm: only cluster=local chooses rates
reproduce.bench algo=topr optim.epochs=2 | 2 | optim.epochs=2: results are told apart by other settings
reproduce.bench algo=topr --small --out docs/results | 2 | --small: its numbers mean nothing, so
reproduce.rates seed=1 | 2 | name the figures whose learning rates are to be chosen
reproduce.rates fig0 | 2 | fig0: no such figure
reproduce.real optim.lr=1e-4 | 2 | optim.lr=1e-4: the study sets it; allowed: data.source, model.path
reproduce.real --plan data.source=nowhere | 2 | data.source=nowhere: no such folder; allowed: embedded, hub or a folder
reproduce.real --plan model.path=nowhere | 2 | model.path=nowhere: no such folder
reproduce.rates fig1 cluster=slurm | 2 | cluster=slurm: only cluster=local chooses rates
topr_exp.grade --format mml | 2 | grader must be one of gsm8k, lenient, math, final, verdict or package.module.name
topr_exp.grade --format math data.grader.cost=1 | 2 | nothing reads data.grader.cost here: math is an answer format
topr_exp.grade --format math cost=1 | 2 | cost=1: expected data.grader.KEY=VALUE, a setting of your own grader
"""


@each_row("words status message", MISTAKES)
def test_a_mistake_is_one_line_and_a_status(words, status, message, request):
    if "SWEEP" in words:
        words = words.replace("SWEEP", str(request.getfixturevalue("sweep_of_two")))

    process = answer(*words.split())

    assert (process.returncode, process.stdout) == (int(status), "")
    assert re.fullmatch(rf"error: .*{re.escape(message)}.*\n", process.stderr)


def test_help_asked_for_halfway_names_groups_and_examples_in_a_process_of_its_own():
    process = run_python("-m", "topr_exp", "--help", "-m", "seed=0,1", "basline=-0.3")

    assert (process.returncode, process.stderr) == (0, "")
    for path in (ROOT / "conf").iterdir():
        assert path.is_file() or f"\n{path.name}: " in process.stdout
    assert process.stdout.count("  python -m topr_exp") == 5


def test_a_dry_run_lists_fifty_runs_and_starts_none(tmp_path):
    sweep = ["-m", "algo=topr,tis,naive,sft,ppo", "seed=range(0,10)", f"output_dir={tmp_path}", "dry_run=true"]

    process = answer("topr_exp", *sweep)

    assert process.returncode == 0
    assert process.stdout.count(" new ") == 50
    assert "nothing started" in process.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_clean_removes_environments_that_make_made_and_no_result(tmp_path):
    results = {"outputs/runs/RUN/model/weights", "outputs/store/imported/HASH/key.json", ".venv/a-users-own"}
    for name in (*results, ".venv-vllm/.made", ".venv-vllm/bin/python", ".mypy_cache/cache"):
        write_file(tmp_path / name)

    output = subprocess.check_output(["make", "-C", tmp_path, "-f", ROOT / "Makefile", "clean"], text=True)

    assert contents(tmp_path).keys() == results
    assert "kept .venv: it was there before make" in output
