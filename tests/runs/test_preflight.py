"""Before anything starts: mistakes in files are one line; a run goes on with the inputs and threads it began with."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, config_of, needs_peft, overrides, refused, write_lines
from topr_exp import pipeline
from topr_exp.__main__ import main
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.data.problems import load_problems
from topr_exp.grading import check_grader
from topr_exp.models import model_folder
from topr_exp.pipeline import run
from topr_exp.runs import preflight
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import compare_inputs, inputs_of
from topr_exp.runs.overwrite import move_overwritten_folder
from topr_exp.runs.plan import Job, plan
from topr_exp.runs.tasks import Task
from topr_exp.runtime import checksums
from topr_exp.sweeps import local
from topr_exp.sweeps.launch import refuse_changed_inputs
from topr_exp.sweeps.sweep import make_runs
from topr_exp.types import ConfigError, TOPRError

Told = Callable[..., str]


def problem_rows(count: int, start: int) -> list[Any]:
    return [{"question": f"What is {k} plus 1?", "answer": f"#### {k + 1}"} for k in range(start, start + count)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of problems."""
    write_lines(tmp_path / "problems" / "train.jsonl", problem_rows(50, 100))
    return write_lines(tmp_path / "problems" / "test.jsonl", problem_rows(20, 0)).parent


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """What the command says when it is dry and when it is not; both before anything starts or is written."""
    monkeypatch.chdir(tmp_path)

    def tell(*arguments: str) -> str:
        capsys.readouterr()
        for more in (["dry_run=true"], []):
            monkeypatch.setattr("sys.argv", ["topr_exp", *overrides(Path("out"), *arguments, *more)])
            assert main() == 2
        first, second = capsys.readouterr().err.splitlines()
        assert first == second
        assert not Path("out").exists()
        return first

    return tell


def test_problems(source: Path, told: Told) -> None:
    setting, rows = f"data.source={source}", problem_rows(50, 100)
    rounds = ["schedule=on_policy", "schedule.prompts=6", "schedule.updates=2", "data.train_problems=null"]
    for content, message, *more in (
        ([*rows[:40], "{", *rows[40:]], f"error: {source}/train.jsonl:41: not valid JSON"),
        (rows[:5], "schedule.prompts=6: there are 5 problems", *rounds),
    ):
        write_lines(source / "train.jsonl", content)
        assert message in told(setting, *more)


def test_a_shipped_model_is_not_for_real_problems(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"data.source={source}", "data.test_problems=10"]
    config_of(*settings)
    line = f"model=tiny knows generated problems alone (data.source=embedded), not data.source={source}"
    assert capsys.readouterr().err == f"warning: {line}\n"
    config_of(*settings, f"model.path={model_folder.SHIPPED / 'tiny'}")  # as of another model
    config_of()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.device=cuda", "cluster.device=cuda: torch sees no GPU here; allowed: auto, cpu"),
        ("output_dir=/proc/x", "output_dir=/proc/x: cannot make /proc/x/runs (No such file or directory)"),
    ],
    ids=["device", "folder"],
)
def test_a_machine_that_can_t_run_it(setting: str, message: str, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert told(setting) == f"error: {message}"


ID = load_problems(config_of("experiment=smoke").data).train[0].id


def test_completions(tmp_path: Path, told: Told) -> None:
    good = {"problem_id": ID, "completion": " The answer is 2."}
    file = write_lines(tmp_path / "made.jsonl", [good] * 40)
    config_of(*overrides(tmp_path / "out"), f"data.completions={file}")
    write_lines(file, [*[good] * 40, {"problem_id": "no", "completion": "x"}, good])
    message = f"error: data.completions={file}: completion 41 answers problem_id 'no', wh"
    assert told(f"data.completions={file}").startswith(message)


def test_each_file_of_a_saved_log_is_an_input(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / "log" / split).mkdir(parents=True)
        (tmp_path / "log" / split / "data.arrow").write_text(split)
    (tmp_path / "log" / "dataset_dict.json").write_text("{}")
    config = config_of(*overrides(tmp_path))
    found = inputs_of(dataclasses.replace(config, data=dataclasses.replace(config.data, completions=f"{tmp_path}/log")))
    assert len({name: found["files"][name] for name in found["files"] if "data.arrow" in name}) == 2


def test_a_module_that_changed_in_a_living_process_is_not_used(tmp_path, monkeypatch):
    text = "from topr_exp.algorithms.topr import Tapered\n\n\nclass Mine(Tapered):\n    pass\n\n\ndef grade(*_): ...\n"
    (tmp_path / "own_notebook.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    words = overrides(tmp_path, "algo._target_=own_notebook.Mine")
    assert config_of(*words).algo == config_of(*words).algo
    (tmp_path / "own_notebook.py").write_text(f"{text}\n# another\n")
    with refused(r"own_notebook.py has changed since this process imported it; start a new one", ConfigError):
        config_of(*words)
    check_grader("own_notebook.grade", {})  # workers import anew
    importlib.reload(sys.modules["own_notebook"])
    assert config_of(*words)


def test_what_needs_the_tokenizer_is_told_before_anything_is_sampled(tmp_path, monkeypatch):
    rows = [{"question": "Why? " * 3000, "gold": "1", "completion": "x"}]
    config = config_of(*overrides(tmp_path), f"data.completions={write_lines(tmp_path / 'made.jsonl', rows)}")
    monkeypatch.setattr(Task, "evaluate", lambda *given: pytest.fail("the base was evaluated first"))
    with pytest.raises(TOPRError, match="no prompt fits"):
        run(config)


def test_a_sweep_reads_a_file_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(preflight, "load_problems", lambda data: read.append(data) or load_problems(data))
    arguments = ["-m", "seed=range(0,5)", f"data.source={source}"]
    plan(parse_arguments(arguments))
    assert len(read) == 1
    changed = source / "train.jsonl"
    changed.write_text(changed.read_text() + changed.read_text().splitlines()[0].replace("?", "??") + "\n")
    plan(parse_arguments(arguments))
    assert len(read) == 2, "what was read of another file of this name is forgotten"


# ---- model folders


def test_a_reference_with_fewer_tokens(own_model: Path) -> None:
    settings = json.loads((own_model / "config.json").read_text()) | {"vocab_size": 412}
    (own_model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"model.reference=\S+: it has 412 tokens, the model of model.path 413"):
        config_of("algo=agro", f"model.reference={own_model}")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model.safetensors", lambda whole: whole[:-1], "model.safetensors is damaged: {less} bytes instead of {size}"),
        ("model.safetensors", lambda _: b"version https://git-lfs.github.com/spec/v1\n", "is no safetensors file"),
        ("model.safetensors.index.json", lambda _: b'{"weight_map": {"a": "model-2.safetensors"}}',
         "model-2.safetensors, which model.safetensors.index.json names, is not there"),
        ("config.json", lambda _: b"{", "config.json holds no settings of a model"),
    ],
)  # fmt: skip
def test_damaged_models(own_model: Path, file: str, change: Callable[[bytes], bytes], message: str) -> None:
    path = own_model / file
    whole = path.read_bytes() if path.exists() else b""
    path.write_bytes(change(whole))
    with pytest.raises(ConfigError, match=message.format(size=len(whole), less=len(whole) - 1)):
        config_of(f"model.path={own_model}")


LORA = "model.lora={rank: 4, alpha: 8, targets: [q_proj, up_prj]}"


@needs_peft
def test_a_layer_that_the_model_does_not_have(told: Told) -> None:
    said = told(LORA)
    assert said.startswith("error: model.lora.targets=up_prj: no linear layer of the model's blocks; did you mean up_p")


def test_lora_without_peft(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else find(name, *more))
    assert told(LORA) == "error: model.lora: the package peft is not installed (pip install 'topr-exp[lora]')"


# ---- inputs


@pytest.mark.extended
def test_a_changed_grader_grades_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module beside the command, which its workers find too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_grader", raising=False)
    grader = "def grade(completion, gold):\n    return {}\n"
    (tmp_path / "our_grader.py").write_text(grader.format('"correct"'))
    settings = overrides(tmp_path, "data.grader._target_=our_grader.grade")
    assert run(config_of(*settings))["base"]["correct"] == 1.0
    (tmp_path / "our_grader.py").write_text(grader.format('"correct" if "7" in completion else "incorrect"'))
    with pytest.raises(
        TOPRError, match=r"data.grader._target_ \(our_grader.py\) has changed since .*; overwrite=true "
    ):
        run(config_of(*settings))
    assert run(config_of(*settings, "name=again"))["base"]["correct"] < 1.0
    again = move_overwritten_folder(config_of(*settings, "overwrite=true"))
    assert run(again)["base"]["correct"] < 1.0, "the way out that the line names"


def test_changed_problems_are_refused_and_a_copy_of_them_is_not(tmp_path: Path, source: Path) -> None:
    config = config_of(*overrides(tmp_path), f"data.source={source}")
    begin(config)
    (source / "test.jsonl").write_text((source / "test.jsonl").read_text())
    begin(config)
    write_lines(source / "train.jsonl", problem_rows(51, 100))
    with pytest.raises(TOPRError, match=r"data.source \(train.jsonl\) has changed since"):
        run(config)


def change(model: Path) -> None:
    """Another tokenizer file of the same length, so that only the content tells."""
    path = model / "generation_config.json"
    path.write_text(path.read_text().replace("{", "{ ", 1).replace("\n}", "}", 1))


def begin(config: Any) -> None:
    """Note its inputs, as a run does before anything else."""
    with RunFolder(config) as folder:
        compare_inputs(folder, inputs_of(config), note=True)


@pytest.mark.parametrize(("key", "finished"), [("model.path", True), ("model.reference", False)])
def test_a_run_whose_model_has_changed_is_refused(tmp_path: Path, own_model: Path, key: str, finished: bool) -> None:
    algo = "algo=agro" if key == "model.reference" else "algo=topr"
    config = config_of(*overrides(tmp_path), algo, f"{key}={own_model}")
    begin(config)
    if finished:
        (config.folder / "summary.json").write_text('{"final": {}}')
        (config.folder / "DONE").touch()
    begin(config)
    change(own_model)
    for answer in (
        run,
        lambda config: refuse_changed_inputs(Job([], config)),
    ):  # the second: dry_run and a sweep's launch
        with pytest.raises(
            TOPRError, match=rf"^{key} has changed since .*; overwrite=true begins it again .*, name=OTHER"
        ):
            answer(config)


def test_a_model_that_looks_as_it_did_is_read_once(tmp_path, own_model, monkeypatch):
    """Hashing a large model takes many seconds; a copy of the same files is the same model all the same."""
    config = config_of(*overrides(tmp_path), f"model.path={own_model}")
    begin(config)
    read: list[str] = []
    digest = checksums.file_digest
    monkeypatch.setattr(checksums, "file_digest", lambda path: read.append(path.name) or digest(path))
    compare_inputs(RunFolder(config), inputs_of(config))
    assert not read
    os.utime(own_model / "model.safetensors")
    compare_inputs(RunFolder(config), inputs_of(config))
    assert read == ["model.safetensors"]


# ---- CPU threads: a run goes on with as many as it was begun with


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_commands_alone_say_so_before_torch_is_loaded_unless_the_user_did(
    given: dict[str, str],
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = "import os, sys; before = dict(os.environ), [*sys.path]; import topr_exp; "
    code += "print(before == (dict(os.environ), sys.path)); topr_exp.prepare_command(); "
    code += f"print('torch' in sys.modules, [os.environ.get(name) for name in {names}])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=kept | given, check=True)
    expected = [given.get(name) for name in names] if given else ["PASSIVE", "1000"]
    assert done.stdout.splitlines() == ["True", f"False {expected}"]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Those that each run computed with; the runs end where their work would begin."""
    seen, before = list[int](), torch.get_num_threads()
    monkeypatch.setattr(pipeline, "run_stages", lambda session: seen.append(torch.get_num_threads()) or {})
    yield seen
    torch.set_num_threads(before)


def test_a_run_goes_on_with_the_threads_that_it_was_begun_with(tmp_path, threads, capsys):
    """Whatever the machine's default is meanwhile; what is asked for is followed, with a warning."""
    config = config_of(*(smoke := ["experiment=smoke", f"output_dir={tmp_path}"]))
    for number in (3, 2):
        torch.set_num_threads(number)
        pipeline.run(config)
        assert json.loads((config.folder / "environment.json").read_text())["threads"] == 3
    assert capsys.readouterr().err == ""
    pipeline.run(config_of(*smoke, "cluster.threads=1"))
    warning = "warning: the run was begun with cluster.threads=3; with 1 its last digits may differ"
    assert warning in capsys.readouterr().err
    assert threads == [3, 3, 1]


def test_the_share_of_a_sweeps_run_is_a_default(tmp_path, threads, monkeypatch):
    """A run that was begun alone with more threads keeps them when a sweep with several jobs goes on with it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv(local.distributed.RUNS_PER_GPU, "1")  # a sweep's run sets it, for itself alone
    monkeypatch.chdir(tmp_path)
    configs = [config_of("experiment=smoke", f"output_dir={tmp_path}", f"seed={seed}") for seed in (0, 1)]
    torch.set_num_threads(5)
    pipeline.run(configs[0])
    begun, new = make_runs([Job([], config) for config in configs], [], [])
    for part, asked in ((begun, None), (new, None), (new, 1)):
        part.settings["cluster"]["threads"] = asked
        local.run_one(part, tmp_path / "log.txt", 2, 0)
    assert threads == [5, 5, 2, 1]
