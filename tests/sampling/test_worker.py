"""The engine's process with a stand-in for vLLM: its weights through memory, errors; which program it runs."""

import contextlib
import dataclasses
import hashlib
import re
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.conftest import config_of, lines_of, make_model
from tests.sweep_tools import wait_for
from topr_exp.models.policy import Policy, stored_weights
from topr_exp.runtime.distributed import RUNS_PER_GPU
from topr_exp.sampling import engine_weights, gpu_share
from topr_exp.sampling import vllm as vllm_module
from topr_exp.sampling.engine import CLOSE_SECONDS, Engine
from topr_exp.sampling.engine_weights import check_log_probabilities, completions_of
from topr_exp.sampling.generation import open_sampler
from topr_exp.sampling.sampler import Sample
from topr_exp.sampling.vllm import VLLM
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.types import TOPRError

# A vLLM that notes what it is asked for; the tokens of a completion are the second of its prompt.
VLLM_MODULE = """
import atexit, json, os, sys, time
from types import SimpleNamespace as N

__version__ = "stand-in"


class SamplingParams:
    def __init__(self, **values):
        self.__dict__.update(values)
        note(sampling=values)


def note(**values):
    with open(os.environ["VLLM_NOTES"], "a") as file:
        file.write(json.dumps(values) + "\\n")


atexit.register(time.sleep, 20)  # as long as CUDA takes to be taken down
note_of_import = os.environ.get("VLLM_IMPORTED")
if note_of_import:
    open(note_of_import, "w").close()


class LLM:
    def __init__(self, **options):
        self.weights = {}
        note(start=options["model"], trust=options["trust_remote_code"], head=options.get("hf_overrides"))
        note(options=options)

    def reset_prefix_cache(self):
        note(reset=True, environment=dict(os.environ))
        return "keep" not in os.environ.get("VLLM_REFUSES", "")

    def generate(self, prompts, params, use_tqdm):
        note(generate=len(prompts))
        answers = []
        for (what, token), one in ((prompt["prompt_token_ids"], one) for prompt, one in zip(prompts, params)):
            if what == 9:
                raise ValueError("no such prompt\\nand more lines")
            if what == 8:
                time.sleep(600)
            if what == 6:
                sys.exit("some lines\\nRuntimeError: no memory left\\nand more")
            if what != 7:
                answers.append(N(outputs=[N(token_ids=[token], logprobs=[{token: N(logprob=-1.0)}],
                                            finish_reason="stop", stop_reason="Q:" if what == 5 else 1)] * one.n))
        return answers

    def collective_rpc(self, do, kwargs):
        for name, weight in kwargs["weights_iterator"]:
            if "refuse" in os.environ.get("VLLM_REFUSES", "") and len(self.weights) == 2:
                raise RuntimeError("out of room")
            self.weights[name] = [str(weight.dtype), weight.double().sum().item()]
        note(weights=self.weights)
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM to import, and what it notes."""
    package = tmp_path / "stand_in" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(VLLM_MODULE)
    (package / "platforms.py").write_text("class current_platform:\n    device_type = 'cpu'\n")
    (package / "v1" / "engine").mkdir(parents=True)
    (package / "v1" / "engine" / "logprobs.py").write_text("class LogprobsProcessor:\n    from_new_request = dict\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("VLLM_NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(vllm_module, "check_python", lambda python: sys.executable)
    monkeypatch.setattr(vllm_module, "check_log_probabilities", lambda *given: None)
    return tmp_path / "notes"


def noted(notes: Path, what: str) -> list[Any]:
    return [line[what] for line in lines_of(notes) if what in line]


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy(make_model(11), Mock(eos_token_id=1), "first", torch.float32, folder=tmp_path / "model")


OFF = {"sleep": False, "trust_remote_code": False, "float32_head": False}
START = OFF | {"model": "m", "dtype": "float32", "length": 8, "eager": True, "cpu_cache_gib": 1.0}
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 8, "stop": [], "eos": [1], "n": 2}


@pytest.fixture
def engine(notes, tmp_path, request, monkeypatch):
    monkeypatch.setenv("VLLM_REFUSES", getattr(request, "param", ""))
    made = Engine(sys.executable, tmp_path / "engine.log", threads=1, gpu=None, timeout_minutes=5)
    made.ask("start", **START)
    yield made
    made.close()


def generate(engine: Engine, *prompts: tuple[int, int]) -> Any:
    return completions_of(engine.ask("generate", prompts=prompts, seeds=[0] * len(prompts), **PLAIN))


def test_completions_come_in_order_from_an_empty_cache_and_errors_as_one_line(engine: Engine, notes: Path) -> None:
    ended = [[Sample([5], [-1.0], "stop")] * 2, [Sample([6], [-1.0], "stop_string")] * 2]  # by token 1, by "Q:"
    assert generate(engine, (0, 5), (5, 6)) == ended
    for what, message in ((9, "ValueError: no such prompt; its log is"), (7, "vLLM lost requests;")):
        with pytest.raises(TOPRError, match=f"vLLM could not generate: {message}"):
            generate(engine, (0, 4), (what, 5))
    assert len(noted(notes, "reset")) == len(noted(notes, "generate")) == 3
    for environment in noted(notes, "environment"):  # floats are not rounded, seeds not drawn by another sampler
        assert environment["TRITON_F32_DEFAULT"] == "ieee"
        assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    for what in (6, 0):  # it breaks, and stays so
        with pytest.raises(TOPRError, match="the vLLM engine ended: RuntimeError: no memory left"):
            generate(engine, (what, 5))


def test_an_engine_ends_when_it_is_closed_one_at_work_at_once(engine: Engine) -> None:
    idle = Engine(sys.executable, engine.log.with_name("idle.log"), threads=1, gpu=None, timeout_minutes=5)
    idle.ask("start", **START)
    began = time.monotonic()
    idle.close()
    assert idle.process.returncode == 0
    assert time.monotonic() - began < 5, "vLLM's own end is not waited for"
    importing = Engine(sys.executable, engine.log.with_name("importing.log"), threads=1, gpu=None, timeout_minutes=5)
    importing.close()
    assert importing.process.returncode == -signal.SIGKILL
    engine.timeout_minutes, began = 0.01, time.monotonic()
    with pytest.raises(TOPRError, match=r"no answer to generate within 0.01 minutes \(sampler.timeout_min\); look"):
        generate(engine, (8, 5))
    assert time.monotonic() - began >= 0.6
    began = time.monotonic()  # as by a stop signal that comes while a shard is sampled
    engine.close()
    assert time.monotonic() - began < CLOSE_SECONDS  # it is killed, not waited for
    assert not Path(f"/proc/{engine.process.pid}").exists()


def test_an_engine_at_work_ends_with_the_process_that_asks(notes: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from topr_exp.sampling.engine import Engine
engine = Engine(sys.executable, Path({str(tmp_path)!r}) / "engine.log", threads=1, gpu=None, timeout_minutes=5)
engine.ask("start", **{START!r})
print(engine.process.pid, flush=True)
engine.ask("generate", prompts=[[8, 5]], seeds=[0], **{PLAIN!r})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        worker = int(asking.stdout.readline())
        wait_for(lambda: bool(noted(notes, "generate")))
        asking.send_signal(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text())


@pytest.mark.parametrize("asked", [False, True])
def test_trust_and_the_precision_of_the_output_layer_reach_an_engine_as_they_were_set(notes, policy, tmp_path, asked):
    policy = dataclasses.replace(policy, compute_dtype=torch.bfloat16, float32_head=asked)
    with open_sampler(config_of("sampler=vllm").sampler, tmp_path / "sampler", asked) as made:
        made.prepare(policy, 20)
        made.sample(policy, [[0, 5]], 1, (0,), [])
    assert noted(notes, "trust") == [asked]
    assert noted(notes, "head") == [{"head_dtype": "float32"} if asked else None]


def test_every_field_of_a_request_reaches_vllm_as_it_was_set(notes: Path, policy: Policy, tmp_path: Path) -> None:
    """Log-probabilities are those of the distribution that was drawn from: processed, not raw."""
    of_engine = ["sampler.cpu_cache_gib=0.5", "sampler.eager=true"]
    of_tokens = ["sampler.temperature=0.7", "sampler.top_p=0.9", "sampler.top_k=5", "sampler.max_new_tokens=13"]
    config = config_of("sampler=vllm", *of_engine, *of_tokens).sampler
    with open_sampler(config, tmp_path / "sampler", False) as made:
        made.prepare(policy, 20)
        made.sample(policy, [[0, 5], [0, 6], [0, 5]], 3, (4, 2), ["Q:", "\n"])
    (options,) = noted(notes, "options")
    assert options == {
        "model": str(policy.folder),
        "dtype": "float32",
        "trust_remote_code": False,
        "max_model_len": 128,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 16384,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "seed": 0,
        "enable_chunked_prefill": False,
        "kv_cache_memory_bytes": 2**29,
    }
    digests = [hashlib.blake2b(f"4 2 {prompt}".encode(), digest_size=8).digest() for prompt in range(3)]
    common = {
        "n": 3,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 13,
        "logprobs": 0,
        "ignore_eos": True,
        "stop_token_ids": [1],
        "stop": ["Q:", "\n"],
        "detokenize": True,
    }
    seeds = [int.from_bytes(digest, "little") >> 2 for digest in digests]
    assert len({*seeds}) == 3
    assert noted(notes, "sampling") == [{**common, "seed": seed} for seed in seeds]


def test_what_is_unset_asks_vllm_for_all_tokens_and_no_text(notes: Path, policy: Policy, tmp_path: Path) -> None:
    config = config_of("sampler=vllm", "sampler.top_k=500").sampler  # of a vocabulary of 11
    with open_sampler(config, tmp_path / "sampler", False) as made:
        made.prepare(policy, 20)
        made.sample(policy, [[0, 5]], 1, (0,), [])
    (asked,) = noted(notes, "sampling")
    assert (asked["top_k"], asked["temperature"], asked["top_p"]) == (11, 1.0, 1.0)
    assert (asked["stop"], asked["detokenize"], asked["max_tokens"]) == ([], False, config.max_new_tokens)


@pytest.mark.parametrize("kind", ["float64", "tf32"])
def test_the_tolerance_tells_products_of_tf32_from_those_of_float32(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 keeps 10 bits of a factor; the logits are spread as a trained model's."""
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2000, **shape)).eval()
    model.lm_head.weight.data *= 15
    tokens, plain = torch.randint(0, 2000, (2, 64)), torch.nn.functional.linear

    def tf32(values: torch.Tensor) -> torch.Tensor:
        bits = values.contiguous().view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)  # half to even

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return plain(tf32(x), tf32(weight)) if kind == "tf32" else plain(x.double(), weight.double()).float()

    def logp() -> torch.Tensor:
        with torch.no_grad():
            return model(tokens).logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])

    exact = logp()
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    gap, most = float((logp() - exact).abs().mean()), engine_weights.TOLERANCE["float32"]
    assert gap > 2 * most if kind == "tf32" else gap < most / 50


@pytest.mark.parametrize("engine", ["keep, refuse"], indirect=True)
def test_what_an_engine_refuses_is_one_line_that_says_why(engine: Engine, policy: Policy) -> None:
    """A cache that is not emptied; weights on their way, and ones that can't be opened over there, as GPU memory."""
    with pytest.raises(TOPRError, match="vLLM could not generate: vLLM did not empty its prefix cache"):
        generate(engine, (0, 5))
    with pytest.raises(TOPRError, match="vLLM could not take: RuntimeError: out of room; its log is"):
        engine_weights.send_weights(engine, policy)
    ask = engine.ask
    engine.ask = lambda do, **values: ask(do, **{**values, "shape": [-7]})  # type: ignore
    with pytest.raises(TOPRError, match=r"vLLM could not take: RuntimeError: (?!out of room)"):
        engine_weights.send_weights(engine, policy)


@pytest.fixture
def sampler(notes: Path, tmp_path: Path) -> Iterator[VLLM]:
    with open_sampler(config_of("sampler=vllm").sampler, tmp_path / "sampler", False) as made:
        assert isinstance(made, VLLM)
        yield made


def test_vllm_is_imported_before_there_is_a_model(sampler, notes, policy, tmp_path, monkeypatch, capsys):
    """So an engine's start is as long as what is left of it, and a stage of its own; sampling's time is sampling."""
    monkeypatch.setenv("VLLM_IMPORTED", str(tmp_path / "imported"))
    stages = list[str]()
    sampler.time_stages_with(lambda stage: contextlib.nullcontext(stages.append(stage)))
    for _ in range(2):
        sampler.warm_up()
    assert wait_for((tmp_path / "imported").exists)
    process = sampler.next_engine.process
    assert not notes.exists(), "nothing was started"
    sampler.prepare(policy, 20)
    sampler.start(policy, [[0, 5]])
    assert sampler.engine.process is process
    assert stages == ["engine"]
    sampler.sample(policy, [[0, 5]], 1, (0,), [])
    assert noted(notes, "start") == [str(policy.folder)], "once"
    line = capsys.readouterr().err
    assert re.search(r"engine +started in \d+ s: 0 import.*, \d+ load, profile and compile\n", line)
    sampler.release()  # the policy trains; the next engine's imports are done meanwhile
    assert process.returncode == 0
    assert sampler.engine is None
    spare = sampler.next_engine.process
    sampler.close()
    assert spare.returncode is not None


@pytest.mark.parametrize(("free", "stays"), [(20, False), (100, True)])
def test_an_engine_stays_where_there_is_room_to_train_beside_it(sampler, notes, policy, free, stays, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free << 30, 140 << 30))
    shares = list[float]()
    monkeypatch.setattr(vllm_module, "free_share", lambda stays: shares.append(stays) or 0.5)
    monkeypatch.setattr(vllm_module, "release_gpu_memory", lambda: None)
    sampler.prepare(policy, 20)
    sampler.sample(policy, [[0, 5]], 1, (0,), [])
    assert shares == [stays], "then it takes half of what is free"
    sampler.release()
    assert (sampler.engine is not None) == stays
    sampler.prepare(later(policy, "trained"), 20)
    sampler.sample(later(policy, "trained"), [[0, 5]], 1, (0,), [])
    assert len(noted(notes, "start")) == 2 - stays
    assert len(noted(notes, "weights")) == 1


@pytest.mark.parametrize("stays", [False, True])
def test_runs_that_share_a_gpu_share_its_memory(stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they start at once or one after the other, and with what each one's policy holds."""
    free, reserved = [140 << 30], 10 << 30
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 140 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    monkeypatch.setenv(RUNS_PER_GPU, "4")
    for _ in range(4):
        share = gpu_share.free_share(stays=stays)
        assert 0.1 / (2 if stays else 1) < share <= (0.9 / 4 - 10 / 140) / (2 if stays else 1)
        free[0] -= int(share * (140 << 30)) + reserved
        assert free[0] > 0
    monkeypatch.delenv(RUNS_PER_GPU)
    free[0] = 140 << 30
    assert gpu_share.free_share(stays=False) == 0.9


def test_without_a_gpu_several_runs_hold_none_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(RUNS_PER_GPU, "4")
    assert not gpu_share.others_hold_memory()
    assert gpu_share.free_share(stays=False) == 1


@pytest.mark.parametrize(
    "message",
    ["ValueError: Free memory on device (3.1/79.1 GiB) on startup is less than", "ValueError: No available memory for",
     "no such file"],
)  # fmt: skip
def test_an_engine_that_finds_no_memory_waits_for_the_other_runs(sampler, policy, message, monkeypatch, capsys):
    """And says so once; what else an engine refuses, and a GPU that nobody else uses, ends the run."""
    others = [True, True, False]
    tries = list[str]()

    def start_engine(policy: Policy) -> Engine:
        tries.append(message)
        raise TOPRError(f"vLLM could not start: {message}; its log is engine.log")

    monkeypatch.setattr(sampler, "start_engine", start_engine)
    monkeypatch.setattr(vllm_module, "others_hold_memory", lambda: others[len(tries)])
    monkeypatch.setattr(vllm_module, "RETRY_SECONDS", 0.0)
    for runs in ("4", "1"):
        tries.clear()
        monkeypatch.setenv(RUNS_PER_GPU, runs)
        with pytest.raises(TOPRError, match="vLLM could not start"):
            sampler.start(policy, [[0, 5]])
        waits = runs == "4" and message != "no such file"
        assert len(tries) == (3 if waits else 1)
        assert capsys.readouterr().err.count("it waits until they leave some") == waits


def test_an_import_that_fails_is_said_by_the_start(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing imports vLLM before it."""
    (tmp_path / "stand_in" / "vllm" / "__init__.py").write_text("raise ImportError('libcudart.so.13: not found')\n")
    engine = Engine(sys.executable, tmp_path / "engine.log", threads=1, gpu=None, timeout_minutes=5)
    try:
        with pytest.raises(TOPRError, match=r"vLLM could not start: ImportError: libcudart.so.13: not found; its log"):
            engine.ask("start", **START)
    finally:
        engine.close()


# ---- weights


def later(policy: Policy, name: str) -> Policy:
    """Other weights, which lie in no folder."""
    model = make_model(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * len(name)
    return dataclasses.replace(policy, model=model, fingerprint=name, folder=None)


def test_an_engine_starts_from_a_folder_and_takes_later_weights_in_its_precision(notes, policy, tmp_path):
    policy = dataclasses.replace(policy, compute_dtype=torch.bfloat16)
    made = VLLM(config_of("sampler=vllm").sampler, tmp_path / "sampler", False)  # type: ignore[arg-type]
    try:
        for now in (policy, later(policy, "later"), last := later(policy, "the last")):
            made.prepare(now, 20)
            for _ in range(2):
                made.sample(now, [[0, 5]], 1, (0,), [])
        assert noted(notes, "start") == [str(policy.folder)]
        assert len(noted(notes, "weights")) == 2
        made.close()
        made.prepare(last, 20)
        made.sample(last, [[0, 5]], 1, (0,), [])  # of an engine that starts anew, with the first policy's weights
    finally:
        made.close()
    expected = {name: weight.bfloat16().double().sum().item() for name, weight in last.model.named_parameters()}
    for found in noted(notes, "weights")[1:]:
        assert found == {name: ["torch.bfloat16", value] for name, value in expected.items()}
    assert len(noted(notes, "weights")) == 3


def test_an_engine_that_no_longer_fits_is_started_anew_and_one_that_fits_wakes(tmp_path, policy, monkeypatch):
    asked, full = list[str](), list[bool]()

    class Fake:
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            pass

        def ask(self, do: str, **values: Any) -> dict[str, Any]:
            asked.append(do)
            if do == "start":
                return {"made_by": {}, "import_seconds": 1.0, "imported_at": 0.0}
            if do == "wake" and full:
                raise TOPRError("vLLM could not wake: out of memory")
            return {"completions": []}

        def close(self) -> None:
            asked.append("close")

    fakes = {"check_python": str, "check_log_probabilities": lambda *given: None, "Engine": Fake}
    for name, value in {**fakes, "release_gpu_memory": lambda: asked.append("free")}.items():
        monkeypatch.setattr(vllm_module, name, value)
    sampler = VLLM(config_of("sampler=vllm", "sampler.sleep=true").sampler, tmp_path, False, beside_training=True)
    weights = len(list(stored_weights(policy.model)))

    def sample(policy: Policy = policy) -> list[str]:
        asked.clear()
        sampler.prepare(policy, 20)
        sampler.sample(policy, [[0, 3]], 1, (0,), [])
        return asked[:]

    assert sample() == ["free", "start", "generate"]
    assert sample() == ["generate"]
    sampler.sleep()
    assert sample() == ["free", "wake", "reload", *["take"] * weights, "done", "generate"]  # it kept none
    assert sample(later(policy, "later")) == ["free", "reload", *["take"] * weights, "done", "generate"]
    sampler.sleep()
    full.append(True)  # AdamW's state came meanwhile
    assert sample() == ["free", "wake", "close", "free", "start", "generate"]
    sampler.max_length = 2048
    assert sample() == ["close", "free", "start", "generate"]


@pytest.mark.parametrize("conf", ["", "garbage_collection_threshold:0.6,expandable_segments:True"])
def test_gpu_memory_that_no_other_process_can_open_is_sent_instead(conf, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(engine_weights, "reduce_tensor", lambda tensor: (None, "handle"))
    taken: list[dict[str, Any]] = []
    engine = Mock(ask=lambda do, **values: taken.append(values))
    engine_weights.send_weight(engine, "name", torch.ones(2), torch.float32)
    assert [(one["shared"], one["content"]) for one in taken] == [
        (None, torch.ones(2).numpy().tobytes()) if conf else ("handle", None)
    ]


def test_an_engine_is_compared_with_logits_as_the_model_scales_them(policy, monkeypatch):
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = GraniteForCausalLM(GraniteConfig(vocab_size=11, num_key_value_heads=2, logits_scaling=8.0, **shape)).eval()
    model.lm_head.weight.data *= 100

    def ask(do: str, *, prompts: list[list[int]], n: int, **settings: Any) -> dict[str, Any]:
        tokens = torch.tensor([3, 4])
        with torch.no_grad():
            found = [model(input_ids=torch.tensor([[*prompt, 3, 4]])).logits[0, -3:-1] for prompt in prompts]
        logp = [one.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1).numpy() for one in found]
        return {"completions": [[(array("i", [3, 4]), one, "length") for _ in range(n)] for one in logp]}

    check_log_probabilities(Mock(ask=ask), dataclasses.replace(policy, model=model), [[0, 5, 3]])


def test_an_engine_is_compared_with_the_output_layer_that_it_has(policy, monkeypatch):
    """In bfloat16 logits of 16 to 32 are 0.125 apart, and the engine's output layer is float32."""
    policy = dataclasses.replace(policy, model=make_model(11), compute_dtype=torch.bfloat16)
    policy.model.lm_head.weight.data *= 100

    def ask(do: str, *, prompts: list[list[int]], n: int, **settings: Any) -> dict[str, Any]:
        tokens = np.array([3, 4, 5, 6])
        sequences = [(np.array(prompt), tokens) for prompt in prompts for _ in range(n)]
        with policy.autocast(), torch.no_grad():
            logp = score_tokens(policy.model, Inputs(sequences, policy.device)).logp.numpy()
        each = iter([(array("i", tokens.tolist()), one, "length") for one in logp])
        return {"completions": [[next(each) for _ in range(n)] for _ in prompts]}

    monkeypatch.setitem(engine_weights.TOLERANCE, "bfloat16", 1e-3)
    monkeypatch.setattr(engine_weights, "VOCABULARY_SLICE", 4)
    check_log_probabilities(Mock(ask=ask), policy, [[0, 5, 3], [0, 4, 4]])
    with pytest.raises(TOPRError, match="another model"):
        check_log_probabilities(Mock(ask=ask), dataclasses.replace(policy, float32_head=False), [[0, 5, 3]])
