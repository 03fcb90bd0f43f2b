"""The engine's process with a stand-in for vLLM: several shards at once, weights through memory, errors."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import config_of, make_model
from tests.sampling.test_weights import Tokenizer
from topr_exp.models.policy import Policy, save_policy
from topr_exp.sampling import vllm as vllm_module
from topr_exp.sampling.engine import Engine
from topr_exp.sampling.rollouts import open_sampler
from topr_exp.sampling.vllm import VLLM, bit_sum
from topr_exp.types import TOPRError

# A vLLM whose engine does a token of every request a step and notes how many requests it had; a completion is as long
# as the first token of its prompt says, and its tokens are the prompt's second.
VLLM_MODULE = """
import json, os
from types import SimpleNamespace as N

__version__ = "stand-in"
NOTES = os.environ["VLLM_NOTES"]


class SamplingParams:
    def __init__(self, **values):
        self.__dict__.update(values)


def note(**values):
    with open(NOTES, "a") as file:
        file.write(json.dumps(values) + "\\n")


class LLM:
    def __init__(self, **options):
        self.llm_engine, self.requests, self.count, self.model = self, {}, 0, {}
        note(start=options["model"])
        note(trust=options["trust_remote_code"])

    def reset_prefix_cache(self):
        note(reset=len(self.requests))

    def enqueue(self, prompts, params, use_tqdm):
        names = []
        for prompt, one in zip(prompts, params):
            length, token = prompt["prompt_token_ids"]
            if length < 0:
                raise ValueError("no such prompt\\nand more lines")
            self.count += 1
            names.append(f"{self.count}-0af1")
            if length:
                self.requests[str(self.count)] = [length, token, one.n]
        return names

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        note(step=len(self.requests))
        done = []
        for name, request in list(self.requests.items()):
            request[0] -= 1
            if request[0] == 0:
                del self.requests[name]
                one = N(token_ids=[request[1]], logprobs=[{request[1]: N(logprob=-1.0)}],
                        finish_reason="stop", stop_reason=None)
                done.append(N(request_id=name, finished=True, outputs=[one] * request[2]))
        return done

    def collective_rpc(self, do, kwargs):
        if "weights_path" in kwargs:
            return note(path=kwargs["weights_path"])
        for name, weight in kwargs["weights_iterator"]:
            if "refuse" in os.environ.get("VLLM_REFUSES", "") and len(self.model) == 2:
                raise RuntimeError("out of room")
            self.model[name] = weight
        note(names=sorted(self.model))

    def apply_model(self, function):
        class Model:
            named_parameters = self.model.items
        return [function(Model)]
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM to import, and what it notes."""
    package = tmp_path / "stand_in" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(VLLM_MODULE)
    (package / "platforms.py").write_text("class current_platform:\n    device_type = 'cpu'\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("VLLM_NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(vllm_module, "check_python", lambda python: sys.executable)
    monkeypatch.setattr(vllm_module, "check_log_probabilities", lambda *given: None)
    return tmp_path / "notes"


def read(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()]


@pytest.fixture
def policy() -> Policy:
    return Policy(make_model(11), Tokenizer(), "first", torch.float32)


@pytest.fixture
def sampler(notes: Path, tmp_path: Path) -> Iterator[Any]:
    made: list[VLLM] = []

    def make(*settings: str) -> VLLM:
        config: Any = config_of("sampler=vllm", *settings).sampler
        made.append(VLLM(config, tmp_path / "sampler", False))
        return made[-1]

    yield make
    for each in made:
        each.close()


def generate(engine: Engine, *prompts: tuple[int, int], n: int = 2) -> Any:
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 8, "stop": [], "eos": [1]}
    return engine.submit("generate", prompts=prompts, seeds=[0] * len(prompts), n=n, **plain)


@pytest.fixture
def engine(
    notes: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    monkeypatch.setenv("VLLM_REFUSES", getattr(request, "param", ""))
    made = Engine(sys.executable, tmp_path / "engine.log", threads=1, gpus=[], minutes=5)
    options = {"sleep": False, "model": "m", "dtype": "float32", "trust_remote_code": False, "length": 8}
    made.ask("start", tensor_parallel=1, eager=True, cpu_cache_gib=1.0, **options)
    yield made
    made.close()


def test_two_shards_are_in_the_engine_at_once_and_each_gets_its_own(engine: Engine, notes: Path) -> None:
    long, short = generate(engine, (9000, 5), (6000, 6)), generate(engine, (3000, 7), n=3)
    assert engine.answer("generate", short)["completions"] == [[[[7], [-1.0], "stop"]] * 3]
    assert not long.done()
    found = engine.answer("generate", long)["completions"]
    assert found == [[[[5], [-1.0], "stop"]] * 2, [[[6], [-1.0], "stop"]] * 2]
    assert {"step": 3} in read(notes)
    # The cache is emptied for a shard that comes to an idle engine, not under one that is at work.
    assert [one["reset"] for one in read(notes) if "reset" in one] == [0]
    engine.answer("generate", generate(engine, (1, 5)))
    assert [one["reset"] for one in read(notes) if "reset" in one] == [0, 0]


def test_a_request_that_vllm_refuses_does_not_disturb_the_other(engine: Engine) -> None:
    good = generate(engine, (9000, 5))
    with pytest.raises(TOPRError, match="vLLM could not generate: ValueError: no such prompt; its log is"):
        engine.answer("generate", generate(engine, (-1, 5)))
    assert engine.answer("generate", good)["completions"] == [[[[5], [-1.0], "stop"]] * 2]


@pytest.mark.parametrize(("settings", "lanes", "most"), [((), 1, 1), (("sampler.shards_at_once=2",), 2, 2)])
def test_as_many_shards_are_in_an_engine_as_the_setting_says(
    sampler: Any,
    policy: Policy,
    notes: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    lanes: int,
    most: int,
) -> None:
    made = sampler(*settings)
    made.prepare(policy, 20)
    assert made.lanes == lanes
    monkeypatch.setattr(vllm_module, "check_weights", lambda *given: None)
    for _ in range(20):  # on a busy machine two threads may never ask at once
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda i: made.sample(policy, [[100, i]], 1, (i,), []), range(4)))
        assert [groups[0][0].tokens for groups in found] == [[0], [1], [2], [3]]
        if max(one.get("step", 0) for one in read(notes)) == most:
            break
    assert max(one.get("step", 0) for one in read(notes)) == most
    assert len([one for one in read(notes) if "start" in one]) == 1


@pytest.mark.parametrize("trust", [False, True])
def test_trust_in_a_folder_s_code_reaches_an_engine_as_it_was_set(
    notes: Path, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: bool
) -> None:
    monkeypatch.setattr(vllm_module, "check_weights", lambda *given: None)
    with open_sampler(config_of("sampler=vllm").sampler, tmp_path / "sampler", trust) as made:
        made.prepare(policy, 20)
        made.sample(policy, [[3, 5]], 1, (0,), [])
    assert [one["trust"] for one in read(notes) if "trust" in one] == [trust]


def test_on_gpus_an_engine_has_two_shards_and_all_engines_come_before_the_second(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_module, "visible_gpus", lambda: ["3", "5"])
    made = sampler()
    assert made.lanes == 4
    assert [made.idle.get().gpus for _ in range(4)] == [["3"], ["5"], ["3"], ["5"]]


def later(policy: Policy, name: str) -> Policy:
    """Other weights, which lie in no folder."""
    model = make_model(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * len(name)
    return dataclasses.replace(policy, model=model, fingerprint=name)


@pytest.mark.parametrize("transfer", ["memory", "file"])
def test_weights_reach_an_engine_in_its_precision_through_memory_or_a_file(
    sampler: Any, policy: Policy, notes: Path, monkeypatch: pytest.MonkeyPatch, transfer: str
) -> None:
    saved = []
    monkeypatch.setattr(
        vllm_module, "save_policy", lambda now, *given: (saved.append(now.fingerprint), save_policy(now, *given))
    )
    policy = dataclasses.replace(policy, compute=torch.bfloat16)
    if transfer == "file":  # the stand-in reads none
        monkeypatch.setattr(vllm_module, "check_weights", lambda *given: None)
    made = sampler(f"sampler.transfer={transfer}")
    for name in ("first", "later", "last"):
        now = policy if name == "first" else later(policy, name)
        made.prepare(now, 20)
        made.sample(now, [[3, 5]], 1, (0,), [])  # and compares the weights, bit by bit
    weights = {name: bit_sum(weight.bfloat16()) for name, weight in now.model.named_parameters()}
    paths = [one["path"] for one in read(notes) if "path" in one]
    names = [one["names"] for one in read(notes) if "names" in one]
    if transfer == "file":
        assert (saved, paths, names) == (["first", "later", "last"], [str(made.written)] * 2, [])
        return
    assert made.slots[0].ask("bit_sums", names=list(weights))["sums"] == weights
    assert (saved, paths, names) == (["first"], [], [sorted(weights)] * 2)
    made.close()
    made.prepare(policy, 20)
    assert saved == ["first", "first"]  # the folder went with the engine


@pytest.mark.parametrize("engine", ["refuse"], indirect=True)
def test_weights_that_are_refused_on_their_way_are_one_line_that_says_why(engine: Engine, policy: Policy) -> None:
    with pytest.raises(TOPRError, match="vLLM could not reload: RuntimeError: out of room; its log is"):
        vllm_module.send_weights(engine, policy, same_gpu=False)


def test_weights_that_can_not_be_received_are_one_line_at_once(engine: Engine, policy: Policy) -> None:
    """As GPU memory that can't be opened over there."""
    engine.minutes = 0.5
    ask = engine.ask
    engine.ask = lambda do, content=None, **values: ask(do, content, **{**values, "shape": [-7]})
    began = time.monotonic()
    with pytest.raises(TOPRError, match="vLLM could not reload: RuntimeError: "):
        vllm_module.send_weights(engine, policy, same_gpu=False)
    assert time.monotonic() - began < 20  # nobody waited for an answer until the time was up


def test_an_engine_that_loses_requests_is_told(engine: Engine) -> None:
    lost = generate(engine, (0, 5))  # done before it began, for the stand-in
    with pytest.raises(TOPRError, match="vLLM could not generate: vLLM lost requests"):
        engine.answer("generate", lost)
