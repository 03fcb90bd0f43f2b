"""What reading files tells is told before anything starts, by dry_run as by a run: one line, exit status 2."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, needs_peft, overrides
from topr_exp.__main__ import main
from topr_exp.data.problems import load_problems
from topr_exp.models import files, loading
from topr_exp.pipeline import run
from topr_exp.runs import reading
from topr_exp.runs.task_set import TaskSet
from topr_exp.types import ConfigError, TOPRError


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def problem_rows(count: int, start: int) -> list[Any]:
    return [{"question": f"What is {k} plus 1?", "answer": f"#### {k + 1}"} for k in range(start, start + count)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of problems."""
    lines(tmp_path / "problems" / "train.jsonl", problem_rows(50, 100))
    return lines(tmp_path / "problems" / "test.jsonl", problem_rows(20, 0)).parent


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says when it is dry and when it is not; both before anything starts."""
    capsys.readouterr()
    for more in (["dry_run=true"], []):
        monkeypatch.setattr("sys.argv", ["topr_exp", *arguments, *more])
        assert main() == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    return first


def test_problems(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*overrides(tmp_path / "out"), f"data.source={source}"]
    config_of(*settings)
    rows = problem_rows(50, 100)
    for bad, message in (
        ("{", f"{source}/train.jsonl:41: not valid JSON"),
        ({"question": "?"}, f"{source}/train.jsonl:41: the field answer is missing"),
    ):
        lines(source / "train.jsonl", [*rows[:40], bad, *rows[40:]])
        assert told(monkeypatch, capsys, *settings).startswith(f"error: {message}")
    lines(source / "train.jsonl", [*rows, *[{"question": "Why?", "answer": "many"}] * 10])
    message = f"error: {source}/train.jsonl: 10 of 60 problems have no gsm8k answer that can be read"
    assert told(monkeypatch, capsys, *settings).startswith(message)
    lines(source / "train.jsonl", problem_rows(20, 0))
    assert "no problem is left; every training question is also a test question" in told(monkeypatch, capsys, *settings)
    lines(source / "train.jsonl", rows[:5])
    rounds = ["schedule=on_policy", "schedule.prompts=6", "schedule.updates=2", "data.train_problems=null"]
    assert "schedule.prompts=6: there are 5 problems" in told(monkeypatch, capsys, *settings, *rounds)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.device=cuda", "cluster.device=cuda: torch sees no GPU here; allowed: auto, cpu"),
        ("output_dir=/proc/x", "output_dir=/proc/x: cannot make /proc/x/runs (No such file or directory)"),
    ],
    ids=["device", "folder"],
)
def test_a_machine_that_can_t_run_it(
    setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert told(monkeypatch, capsys, *overrides(Path("out")), setting) == f"error: {message}"
    assert not [*tmp_path.iterdir()]


ID = load_problems(config_of("experiment=smoke").data).train[0].id


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "{file}:41: not valid JSON ("),
        ({"problem_id": ID}, "{file}:41: completion is missing"),
        ({"problem_id": ID, "completion": "x", "tokens": [3]}, "{file}:41: has tokens, unlike the lines before"),
        ({"problem_id": "no", "completion": "x"}, "data.completions={file}: completion 41 answers problem_id 'no', wh"),
        ({"problem_id": ID, "completion": "", "finish": "length"}, "data.completions={file}: completion 41 is empty"),
    ],
)
def test_completions(
    row: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"problem_id": ID, "completion": " The answer is 2."}
    file = lines(tmp_path / "made.jsonl", [good] * 40)
    settings = [*overrides(tmp_path / "out"), f"data.completions={file}"]
    config_of(*settings)
    lines(file, [*[good] * 40, row, good])
    assert told(monkeypatch, capsys, *settings).startswith("error: " + message.format(file=file))
    assert not (tmp_path / "out").exists()


def test_tokens_that_the_model_does_not_have(tmp_path: Path) -> None:
    rows = [{"problem_id": ID, "completion": "x", "tokens": [token]} for token in (412, 413)]
    settings = [*overrides(tmp_path), f"data.completions={lines(tmp_path / 'made.jsonl', rows)}"]
    with pytest.raises(ConfigError, match=r"completion 2 has token id 413, the model has 413; leave out `tokens`"):
        config_of(*settings)


def test_a_table_of_the_store(tmp_path: Path) -> None:
    from topr_exp.store import Store
    from topr_exp.store.completions import import_file

    rows = [{"problem_id": name, "completion": "x"} for name in (ID, "elsewhere")]
    table, _, _ = import_file(Store(tmp_path / "store"), lines(tmp_path / "made.jsonl", rows))
    with pytest.raises(ConfigError, match="completion 2 answers problem_id 'elsewhere', which is not among"):
        config_of(*overrides(tmp_path), f"data.completions={table.name}")


def test_what_needs_the_tokenizer_is_told_before_anything_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": "Why? " * 3000, "gold": "1", "completion": "x"}]
    config = config_of(*overrides(tmp_path), f"data.completions={lines(tmp_path / 'made.jsonl', rows)}")
    monkeypatch.setattr(TaskSet, "evaluate", lambda *given: pytest.fail("the base was evaluated first"))
    with pytest.raises(TOPRError, match="no prompt fits"):
        run(config)


def test_a_sweep_reads_a_file_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra._internal.utils import get_args_parser

    from topr_exp.runs.plan import plan

    read = []
    monkeypatch.setattr(reading, "load_problems", lambda data: read.append(data) or load_problems(data))
    arguments = ["-m", "seed=range(0,5)", f"data.source={source}"]
    plan(get_args_parser().parse_args(arguments))
    assert len(read) == 1
    changed = source / "train.jsonl"
    changed.write_text(changed.read_text() + changed.read_text().splitlines()[0].replace("?", "??") + "\n")
    plan(get_args_parser().parse_args(arguments))
    assert len(read) == 2, "what was read of another file of this name is forgotten"


# ---- model folders


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return Path(shutil.copytree(loading.SHIPPED / "tiny", tmp_path / "own"))


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


ADDED = [
    {},
    {"pad_token": "<new>"},
    {"unk_token": {"__type": "AddedToken", "content": "<unk>", "lstrip": False, "rstrip": False, "normalized": False,
                   "single_word": False}},
    {"extra_special_tokens": {"image_token": "<im>"}},
    {"extra_special_tokens": ["<q>", "<r>"]},
    {"added_tokens_decoder": {"500": {"content": "<x>", "special": True, "lstrip": False, "rstrip": False,
                                      "normalized": False, "single_word": False}}},
]  # fmt: skip


@pytest.mark.parametrize("changes", ADDED, ids=str)
def test_a_tokenizer_larger_than_the_model(own: Path, changes: dict[str, Any]) -> None:
    """Told from the files as it is told once the model is loaded, and counted as transformers counts."""
    from transformers import AutoTokenizer

    configure(own, **changes)
    tokens = len(AutoTokenizer.from_pretrained(own))
    assert files.tokenizer_size(own) == tokens
    if tokens == 413:
        config_of(f"model.path={own}")
        return
    message = rf"model folder {own}: the tokenizer has {tokens} tokens, the model only 413"
    with pytest.raises(TOPRError, match=message):
        loading.load_model(str(own))
    for key, more in (("model.path", []), ("model.reference", ["algo=agro"]), ("task.solver", ["model=tiny_verifier"])):
        with pytest.raises(ConfigError, match=f"^{key}: {message}"):
            config_of(*more, f"{key}={own}")


def test_a_reference_with_fewer_tokens(own: Path) -> None:
    path = own / "tokenizer.json"
    stored = json.loads(path.read_text())
    (last,) = [name for name, number in stored["model"]["vocab"].items() if number == 412]
    del stored["model"]["vocab"][last]
    path.write_text(json.dumps(stored))
    settings = json.loads((own / "config.json").read_text()) | {"vocab_size": 412}
    (own / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"model.reference=\S+: it has 412 tokens, the tokenizer of model.path 413"):
        config_of("algo=agro", f"model.reference={own}")


def test_damaged_weights(own: Path) -> None:
    path = own / "model.safetensors"
    whole = path.read_bytes()
    assert files.damage(own) is None
    path.write_bytes(whole[:-1])
    with pytest.raises(
        ConfigError, match=f"model.safetensors is damaged: {len(whole) - 1} bytes instead of {len(whole)}"
    ):
        config_of(f"model.path={own}")
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match=r"model\.safetensors is no safetensors file"):
        config_of(f"model.path={own}")
    path.write_bytes(whole)
    (own / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    with pytest.raises(
        ConfigError, match=r"model-2.safetensors, which model.safetensors.index.json names, is not ther"
    ):
        config_of(f"model.path={own}")
    (own / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json holds no settings of a model"):
        config_of(f"model.path={own}")


LORA = "model.lora={rank: 4, alpha: 8, targets: [q_proj, up_prj]}"


@needs_peft
def test_a_layer_that_the_model_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(monkeypatch, capsys, *overrides(tmp_path), LORA).startswith(
        "error: model.lora.targets=up_prj: no linear layer of the model's blocks; did you mean up_proj? (allowed: "
    )


def test_lora_without_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else find(name, *more))
    assert told(monkeypatch, capsys, *overrides(tmp_path), LORA) == (
        "error: model.lora: the package peft is not installed (pip install 'topr-exp[lora]')"
    )
