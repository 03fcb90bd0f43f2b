"""Before anything starts: mistakes in files are one line; a run goes on with the inputs and threads it began with."""

import importlib
import os
import re
import socket
import sys
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch

from tests.conftest import (
    append_text,
    config_of,
    each_row,
    needs_peft,
    overrides,
    refused,
    run_python,
    small_config,
    sums,
    update_json,
    write_lines,
)
from tests.sweep_tools import answer
from topr_exp import pipeline
from topr_exp.config.model_choice import SHIPPED
from topr_exp.data.problems import load_problems
from topr_exp.grading import check_grader
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import compare_inputs, hash_inputs
from topr_exp.runs.overwrite import move_overwritten_folder
from topr_exp.runs.plan import Job
from topr_exp.session import open_run_folder, open_session
from topr_exp.sweeps.launch import refuse_changed_inputs
from topr_exp.types import ConfigError

GSM8K = "#### {}"  # the end of its answers


@pytest.fixture
def source(tmp_path):
    """A folder of problems."""
    write_lines(tmp_path / "problems/train.jsonl", sums(50, 100, GSM8K))
    return write_lines(tmp_path / "problems/test.jsonl", sums(20, 0, GSM8K)).parent


@pytest.fixture
def error_line(tmp_path):
    """A function: the line of a command, the same when it is dry, both before anything starts or is written."""

    def run_command(*words):
        words = overrides(tmp_path / "out", *words)
        outcome = answer("topr_exp", *words)
        dry_outcome = answer("topr_exp", *words, "dry_run=true")
        assert outcome.returncode == dry_outcome.returncode == 2
        assert outcome.stderr == dry_outcome.stderr
        assert not (tmp_path / "out").exists()
        return outcome.stderr.rstrip("\n")

    return run_command


def test_problems_that_cant_be_read_or_are_too_few_are_one_line(source, error_line):
    rows = sums(50, 100, GSM8K)
    write_lines(source / "train.jsonl", [*rows[:40], "{", *rows[40:]])
    assert f"error: {source}/train.jsonl:41: not valid JSON" in error_line(f"data.source={source}")

    write_lines(source / "train.jsonl", rows[:5])
    rounds = ["schedule=on_policy", "schedule.prompts=6", "schedule.updates=2", "data.train_problems=null"]
    assert "schedule.prompts=6: there are 5 problems" in error_line(f"data.source={source}", *rounds)


def test_a_completion_that_answers_no_problem_is_named(tmp_path, error_line):
    problem = load_problems(config_of("experiment=smoke").data).train[0]
    row = {"problem_id": problem.id, "completion": " The answer is 2."}
    stray_row = row | {"problem_id": "no"}
    log = write_lines(tmp_path / "made.jsonl", [row] * 40 + [stray_row, row])

    line = error_line(f"data.completions={log}")

    assert line.startswith(f"error: data.completions={log}: completion 41 answers problem_id 'no', wh")


def test_a_log_without_the_numbers_that_the_settings_ask_for_is_refused(tmp_path):
    log = write_lines(tmp_path / "made.jsonl", [{"prompt": "?", "completion": " x", "points": 1.0}])
    words = [f"data.completions={log}", "data.reward=given"]

    with refused(r"^data\.reward=given: .* has no column of rewards; .* \(prompt; .*not read: points\)$", ConfigError):
        config_of(*words)
    words.append("data.columns={reward: points}")
    config_of(*words)
    with refused(r"^mu=sampler: .*made\.jsonl has no log-probabilities of its tokens$", ConfigError):
        config_of(*words, "mu=sampler")


def test_a_log_that_takes_minutes_to_read_is_told_with_the_way_to_read_it_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("topr_exp.runs.preflight.LARGE_LOG_BYTES", 10)
    log = write_lines(tmp_path / "made.jsonl", [{"prompt": "?", "completion": " x", "reward": 1.0}])

    config_of(f"data.completions={log}", "data.reward=given")

    assert capsys.readouterr().err.endswith(f"`python -m topr_exp.store import {log}` reads them once\n")


UNMET = """
3000 | data.n=2 | completion 1 and its prompt have 15009 tokens, the model's context is 2048
1 | compose.mix=0.5 compose.n_examples=5 | compose.n_examples must be null or at most 2, the completions that there
1 | optim.warmup_steps=1 optim.epochs=1 | optim.warmup_steps must be below 1, the most updates of an iteration; got 1
1 | mu=a/b | model a/b: not on this machine, and the hub did not give it
1 | algo=agro model.reference=a/b | model a/b: not on this machine, and the hub did not give it
"""


@each_row("words_of_prompt setting line", UNMET)
def test_what_can_not_be_met_is_told_before_anything_is_sampled(words_of_prompt, setting, line, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=OSError))
    log = write_lines(
        tmp_path / "made.jsonl", [{"question": "Why? " * int(words_of_prompt), "gold": "1", "completion": "x"}]
    )
    config = small_config(tmp_path, f"data.completions={log}", *setting.split())

    with refused(line):
        pipeline.run(config)

    assert not list(config.store.glob("rollouts/*"))


def test_a_shipped_model_is_not_for_real_problems(source, capsys):
    words = [f"data.source={source}", "data.test_problems=10"]
    config_of(*words, f"model.path={SHIPPED / 'tiny'}")  # as of another model
    assert capsys.readouterr().err == ""

    config_of(*words)
    line = f"model=tiny knows generated problems alone (data.source=embedded), not data.source={source}"
    assert capsys.readouterr().err == f"warning: {line}\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "line",
    [
        "cluster.device=cuda: torch sees no GPU here; allowed: auto, cpu",
        "output_dir=/proc/x: cannot make /proc/x/runs (No such file or directory)",
    ],
)
def test_what_a_machine_lacks_is_one_line(line, error_line):
    assert error_line(line.partition(":")[0]) == f"error: {line}"


def test_compiled_layers_without_pythons_header_are_refused(tmp_path, monkeypatch):
    """The first update would fail, after all was sampled."""
    monkeypatch.setattr("topr_exp.runs.preflight.cxx_compiler", lambda: "g++")
    get_path = "topr_exp.runtime.machine.sysconfig.get_path"
    monkeypatch.setattr(get_path, lambda name, *scheme: str(tmp_path.joinpath(*scheme)))
    words = ["optim.compile=true", "cluster.device=cpu"]

    with refused(rf"^optim\.compile=true: {tmp_path}/Python\.h is missing", ConfigError):
        config_of(*words)
    (tmp_path / "posix_prefix").mkdir()
    (tmp_path / "posix_prefix/Python.h").touch()
    config_of(*words)


@needs_peft
def test_a_layer_that_the_model_does_not_have_is_one_line(error_line):
    line = error_line("model.lora={rank: 4, alpha: 8, targets: [q_proj, up_prj]}")

    assert line.startswith("error: model.lora.targets=up_prj: no linear layer of the model's blocks; did you mean up_p")


PACKAGES = """
model.lora={rank: 4, alpha: 8, targets: all-linear} | model.lora: the package peft | lora
tracking=tensorboard | tracking=tensorboard: the package tensorboard | tensorboard
"""


@each_row("setting beginning extra", PACKAGES)
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it(
    setting, beginning, extra, error_line, stand_in
):
    stand_in(beginning.split()[-1], None)

    command = f"pip install -e '.[{extra}]' -c constraints.txt"
    assert error_line(setting) == f"error: {beginning} is not installed (in the checkout: {command})"


# ---- model folders


def test_a_reference_with_fewer_tokens_is_refused(own_model):
    update_json(own_model / "config.json", vocab_size=412)

    with refused(r"model.reference=\S+: it has 412 tokens, the model of model.path 413", ConfigError):
        config_of("algo=agro", f"model.reference={own_model}")


WEIGHTS = (SHIPPED / "tiny/model.safetensors").read_bytes()
SIZE = len(WEIGHTS)


INDEX = b'{"weight_map": {"a": "model-2.safetensors"}}'
DAMAGE = {
    "cut": ("model.safetensors", WEIGHTS[:-1], f"is damaged: {SIZE - 1} bytes instead of {SIZE}"),
    "index": ("model.safetensors.index.json", INDEX, "model-2.safetensors, which model.safetensors.index.json names"),
    "config": ("config.json", b"{", "config.json holds no settings of a model"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_model_is_refused_with_its_damage(kind, own_model):
    file, content, message = DAMAGE[kind]
    (own_model / file).write_bytes(content)

    with refused(message, ConfigError):
        config_of(f"model.path={own_model}")


# ---- inputs: a run goes on with those that it began with


def begin(config):
    """Note its inputs, as a run does before anything else."""
    with RunFolder(config) as folder:
        compare_inputs(folder, hash_inputs(config), adds_kinds=True)


@pytest.mark.extended
def test_a_changed_grader_grades_again(working_folder):
    """A user's module beside the command, which its workers find too."""
    grader = working_folder / "our_grader.py"
    words = overrides(working_folder, "data.grader._target_=our_grader.grade")
    grader.write_text("def grade(completion, gold):\n    return 'correct'\n")
    assert pipeline.run(config_of(*words))["base"]["correct"] == 1.0

    grader.write_text("def grade(completion, gold):\n    return 'correct' if '7' in completion else 'incorrect'\n")

    with refused(r"data.grader._target_ \(our_grader.py\) has changed since .*; overwrite=true "):
        pipeline.run(config_of(*words))
    config = move_overwritten_folder(config_of(*words, "overwrite=true"))
    assert pipeline.run(config)["base"]["correct"] < 1.0, "the way out that the line names"


def test_changed_problems_are_refused_and_a_copy_of_them_is_not(tmp_path, source):
    config = small_config(tmp_path, f"data.source={source}")
    begin(config)
    (source / "test.jsonl").write_text((source / "test.jsonl").read_text())
    begin(config)

    write_lines(source / "train.jsonl", sums(51, 100, GSM8K))

    with refused(r"data.source \(train.jsonl\) has changed since"):
        pipeline.run(config)


@pytest.mark.parametrize("key, algo", [("model.path", "topr"), ("model.reference", "agro")])
def test_a_run_whose_model_has_changed_is_refused(key, algo, tmp_path, own_model):
    config = small_config(tmp_path, f"algo={algo}", f"{key}={own_model}")
    begin(config)
    path = own_model / "generation_config.json"
    path.write_text(re.sub(r"\n}", "}", path.read_text().replace("{", "{ ", 1)))  # of the same length

    line = f"^{key} has changed since .*; overwrite=true begins it again .*, name=OTHER"
    with refused(line):
        pipeline.run(config)
    with refused(line):
        refuse_changed_inputs([Job([], config)])  # by dry_run and a sweep's launch


def test_an_own_module_that_changed_is_used_neither_by_a_living_process_nor_by_a_run_that_was_begun(working_folder):
    module = working_folder / "own_notebook.py"
    module.write_text("from topr_exp.algorithms.topr import Tapered\nclass Mine(Tapered): ...\ndef grade(*_): ...\n")
    words = overrides(working_folder, "algo._target_=own_notebook.Mine")
    config = config_of(*words)
    assert config.algo == config_of(*words).algo
    begin(config)

    append_text(module, "# another\n")

    with refused(r"own_notebook.py has changed since this process imported it; start a new one", ConfigError):
        config_of(*words)
    check_grader("own_notebook.grade", {})  # workers import anew
    importlib.reload(sys.modules["own_notebook"])
    with refused(r"algo\._target_ \(own_notebook.py\) has changed since .*; overwrite=true "):
        refuse_changed_inputs([Job([], config_of(*words))])


# ---- CPU threads: a run goes on with as many as it was begun with


PREPARE = """
import os, sys
before = dict(os.environ), [*sys.path]
import topr_exp
print(before == (dict(os.environ), sys.path))
topr_exp.prepare_command()
print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""


VARIABLES = """
{} | "PASSIVE 1000"
{"OMP_WAIT_POLICY": "ACTIVE"} | "ACTIVE None"
"""


@each_row("user_variables variables", VARIABLES, literals=True)
def test_commands_alone_change_variables_before_torch_is_loaded_unless_the_user_did(user_variables, variables):
    environment = {name: value for name, value in os.environ.items() if "OMP_" not in name}

    process = run_python("-c", PREPARE, env=environment | user_variables)

    assert process.stdout == f"True\nFalse {variables}\n", process.stderr


def threads_of(config):
    """Those that a run computes with."""
    with open_run_folder(config) as folder, open_session(config, folder):
        return torch.get_num_threads()


def test_a_run_goes_on_with_the_threads_that_it_was_begun_with(tmp_path, capsys):
    """Whatever the machine's default is meanwhile; what is asked for is followed, with a warning."""
    words = ["experiment=smoke", f"output_dir={tmp_path}"]
    threads_of_tests = torch.get_num_threads()
    try:
        for count in (3, 2):
            torch.set_num_threads(count)
            assert threads_of(config_of(*words)) == 3
        assert capsys.readouterr().err == ""

        assert threads_of(config_of(*words, "cluster.threads=1")) == 1
    finally:
        torch.set_num_threads(threads_of_tests)

    warning = "warning: the run was begun with cluster.threads=3; with 1 its last digits may differ"
    assert warning in capsys.readouterr().err


@pytest.mark.parametrize("count", [-1, 0, 10**9])
def test_a_number_of_threads_that_no_machine_has_is_told_and_not_taken(count, tmp_path, capsys):
    config = config_of("experiment=smoke", f"output_dir={tmp_path}")
    threads = threads_of(config)
    update_json(config.folder / "environment.json", threads=count)

    assert threads_of(config) == threads
    assert f"environment.json is damaged: a run of {count} threads" in capsys.readouterr().err


# ---- GPUs of a job


GPUS = """
null | auto | none
1 | cpu | none
1 | auto | cluster.gpus_per_node asks for a GPU, but torch sees none on {}; exclude this node
"""


@each_row("gpus device refusal", GPUS)
def test_a_job_computes_on_no_cpu_in_place_of_a_gpu_that_failed(gpus, device, refusal, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = ("cluster=slurm", f"cluster.gpus_per_node={gpus}", f"cluster.device={device}")
    config = small_config(tmp_path, *settings)

    with open_run_folder(config) as folder:
        if refusal == "none":
            with open_session(config, folder):
                return
        with refused(refusal.format(socket.gethostname())), open_session(config, folder):
            pass
