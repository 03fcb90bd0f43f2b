"""Engines with a stand-in for vLLM: requests, errors, weights through memory, and the process's life."""

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

# A vLLM that notes its calls. A prompt has two tokens: an act, and the token of its completions.
PLAIN, STOPS, BREAKS, VANISHES, HANGS, FAILS = 0, 5, 6, 7, 8, 9
VLLM_MODULE = """
import atexit, json, os, sys, time
from types import SimpleNamespace

__version__ = "stand-in"
PLAIN, STOPS, BREAKS, VANISHES, HANGS, FAILS = 0, 5, 6, 7, 8, 9


def note(**values):
    with open(os.environ["VLLM_NOTES"], "a") as file:
        file.write(json.dumps(values) + "\\n")


atexit.register(time.sleep, 20)  # as long as CUDA takes to be taken down
if os.environ.get("VLLM_IMPORTED"):
    open(os.environ["VLLM_IMPORTED"], "w").close()


class SamplingParams:
    def __init__(self, **values):
        self.__dict__.update(values)
        note(sampling=values)


class LLM:
    def __init__(self, **options):
        self.weights = {}
        note(start=options["model"], options=options)

    def reset_prefix_cache(self):
        note(reset=True, environment=dict(os.environ))
        return "keep" not in os.environ.get("VLLM_REFUSES", "")

    def generate(self, prompts, params, use_tqdm):
        note(generate=len(prompts))
        outputs = []
        for prompt, param in zip(prompts, params):
            act, token = prompt["prompt_token_ids"]
            if act == FAILS:
                raise ValueError("no such prompt\\nand more lines")
            if act == HANGS:
                time.sleep(600)
            if act == BREAKS:
                print("some lines\\nRuntimeError: no memory left\\nand more", flush=True)
                os._exit(1)
            if act != VANISHES:
                completion = SimpleNamespace(token_ids=[token], logprobs=[{token: SimpleNamespace(logprob=-1.0)}],
                                             finish_reason="stop", stop_reason="Q:" if act == STOPS else 1)
                outputs.append(SimpleNamespace(outputs=[completion] * param.n))
        return outputs

    def collective_rpc(self, method, kwargs):
        for name, weight in kwargs["weights_iterator"]:
            if "refuse" in os.environ.get("VLLM_REFUSES", "") and len(self.weights) == 2:
                raise RuntimeError("out of room")
            self.weights[name] = [str(weight.dtype), weight.double().sum().item()]
        note(weights=self.weights)
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in to import as vLLM; the file of its notes."""
    package = tmp_path / "stand_in" / "vllm"
    (package / "v1" / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text(VLLM_MODULE)
    (package / "platforms.py").write_text("class current_platform:\n    device_type = 'cpu'\n")
    (package / "v1" / "engine" / "logprobs.py").write_text("class LogprobsProcessor:\n    from_new_request = dict\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("VLLM_NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(vllm_module, "check_python", lambda python: sys.executable)
    monkeypatch.setattr(vllm_module, "check_log_probabilities", lambda engine, policy, prompts: None)
    return tmp_path / "notes"


def noted(notes: Path, key: str) -> list[Any]:
    return [line[key] for line in lines_of(notes) if key in line]


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return Policy(make_model(11), Mock(eos_token_id=1), "first", torch.float32, folder=tmp_path / "model")


START = {"model": "m", "dtype": "float32", "length": 8, "eager": True, "sleep": False,
         "trust_remote_code": False, "float32_head": False}  # fmt: skip
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 8, "stop": [], "eos": [1], "n": 2}


def new_engine(log: Path) -> Engine:
    return Engine(sys.executable, log, threads=1, gpu=None, timeout_minutes=5)


@pytest.fixture
def engine(notes, tmp_path, request, monkeypatch):
    monkeypatch.setenv("VLLM_REFUSES", getattr(request, "param", ""))
    engine = new_engine(tmp_path / "engine.log")
    engine.ask("start", **START)
    yield engine
    engine.close()


def generate(engine: Engine, *prompts: tuple[int, int]) -> list[list[Sample]]:
    return completions_of(engine.ask("generate", prompts=prompts, seeds=[0] * len(prompts), **SAMPLING))


# ---- requests


def test_completions_come_in_the_order_of_prompts_from_an_empty_cache(engine: Engine, notes: Path) -> None:
    ended_by_token, ended_by_text = Sample([5], [-1.0], "stop"), Sample([6], [-1.0], "stop_string")
    assert generate(engine, (PLAIN, 5), (STOPS, 6)) == [[ended_by_token] * 2, [ended_by_text] * 2]
    assert len(noted(notes, "reset")) == len(noted(notes, "generate")) == 1


def test_an_engine_computes_in_full_float32_and_draws_by_its_seeds(engine: Engine, notes: Path) -> None:
    generate(engine, (PLAIN, 5))
    (environment,) = noted(notes, "environment")
    assert environment["TRITON_F32_DEFAULT"] == "ieee"
    assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_errors_are_one_line_and_an_engine_that_ended_stays_so(engine: Engine) -> None:
    with pytest.raises(TOPRError, match="vLLM could not generate: ValueError: no such prompt; its log is"):
        generate(engine, (PLAIN, 4), (FAILS, 5))
    with pytest.raises(TOPRError, match="vLLM could not generate: vLLM lost requests;"):
        generate(engine, (PLAIN, 4), (VANISHES, 5))
    for act in (BREAKS, PLAIN):
        with pytest.raises(TOPRError, match="the vLLM engine ended: RuntimeError: no memory left"):
            generate(engine, (act, 5))


@pytest.mark.parametrize("engine", ["keep, refuse"], indirect=True)
def test_a_refusal_is_one_line_that_says_why(engine: Engine, policy: Policy) -> None:
    """A cache that is not emptied, and weights that are not taken or can't be opened."""
    with pytest.raises(TOPRError, match="vLLM could not generate: vLLM did not empty its prefix cache"):
        generate(engine, (PLAIN, 5))
    with pytest.raises(TOPRError, match="vLLM could not take: RuntimeError: out of room; its log is"):
        engine_weights.send_weights(engine, policy)
    engine.ask("reload")
    with pytest.raises(TOPRError, match=r"vLLM could not take: RuntimeError: (?!out of room)"):
        engine.ask("take", name="weight", dtype="float32", shape=[-7], content=bytes(8), shared=None)


def test_every_setting_reaches_vllm(notes: Path, policy: Policy, tmp_path: Path) -> None:
    """Log-probabilities are those of the distribution that was drawn from: processed, not raw."""
    of_engine = ["sampler.eager=true"]
    of_tokens = ["sampler.temperature=0.7", "sampler.top_p=0.9", "sampler.top_k=5", "sampler.max_new_tokens=13"]
    config = config_of("sampler=vllm", *of_engine, *of_tokens).sampler
    with open_sampler(config, tmp_path / "sampler", False) as sampler:
        sampler.prepare(policy, 20)
        sampler.sample(policy, [[0, 5], [0, 6], [0, 5]], 3, (4, 2), ["Q:", "\n"])
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
        "kv_cache_memory_bytes": 2**30,
    }
    params = noted(notes, "sampling")
    seeds = [param.pop("seed") for param in params]
    digests = [hashlib.blake2b(f"4 2 {index}".encode(), digest_size=8).digest() for index in range(3)]
    assert seeds == [int.from_bytes(digest, "little") >> 2 for digest in digests]
    assert params == 3 * [{
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
    }]  # fmt: skip


@pytest.mark.parametrize("enabled", [False, True])
def test_trust_and_the_precision_of_the_output_layer_reach_an_engine(notes, policy, tmp_path, enabled):
    policy = dataclasses.replace(policy, compute_dtype=torch.bfloat16, float32_head=enabled)
    with open_sampler(config_of("sampler=vllm").sampler, tmp_path / "sampler", enabled) as sampler:
        sampler.prepare(policy, 20)
        sampler.start(policy, [[0, 5]])
    (options,) = noted(notes, "options")
    assert options["trust_remote_code"] == enabled
    assert options.get("hf_overrides") == ({"head_dtype": "float32"} if enabled else None)


def test_the_defaults_ask_vllm_for_all_tokens_and_no_text(notes: Path, policy: Policy, tmp_path: Path) -> None:
    config = config_of("sampler=vllm", "sampler.top_k=500").sampler  # of a vocabulary of 11
    with open_sampler(config, tmp_path / "sampler", False) as sampler:
        sampler.prepare(policy, 20)
        sampler.sample(policy, [[0, 5]], 1, (0,), [])
    (params,) = noted(notes, "sampling")
    assert (params["top_k"], params["temperature"], params["top_p"]) == (11, 1.0, 1.0)
    assert (params["stop"], params["detokenize"], params["max_tokens"]) == ([], False, config.max_new_tokens)


# ---- the life of a process


def is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and " Z " not in state.read_text()


def test_an_idle_engine_ends_without_vllms_own_end(engine: Engine) -> None:
    start_time = time.monotonic()
    engine.close()
    assert engine.process.returncode == 0
    assert time.monotonic() - start_time < 5


def test_an_importing_engine_is_killed(notes: Path, tmp_path: Path) -> None:
    engine = new_engine(tmp_path / "importing.log")
    engine.close()
    assert engine.process.returncode == -signal.SIGKILL


def test_an_engine_that_hangs_is_an_error_and_is_killed(engine: Engine) -> None:
    engine.timeout_minutes = 0.01
    start_time = time.monotonic()
    with pytest.raises(TOPRError, match=r"no answer to generate within 0.01 minutes; look"):
        generate(engine, (HANGS, 5))
    assert time.monotonic() - start_time >= 0.6
    start_time = time.monotonic()
    engine.close()
    assert time.monotonic() - start_time < CLOSE_SECONDS
    assert not is_running(engine.process.pid)


def test_a_busy_engine_ends_with_its_parent(notes: Path, tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from topr_exp.sampling.engine import Engine
engine = Engine(sys.executable, Path({str(tmp_path)!r}) / "engine.log", threads=1, gpu=None, timeout_minutes=5)
engine.ask("start", **{START!r})
print(engine.process.pid, flush=True)
engine.ask("generate", prompts=[[{HANGS}, 5]], seeds=[0], **{SAMPLING!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        wait_for(lambda: bool(noted(notes, "generate")))
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_running(worker))


def test_a_failing_import_is_reported_by_the_start(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "stand_in" / "vllm" / "__init__.py").write_text("raise ImportError('libcudart.so.13: not found')\n")
    engine = new_engine(tmp_path / "engine.log")
    try:
        with pytest.raises(TOPRError, match=r"vLLM could not start: ImportError: libcudart.so.13: not found; its log"):
            engine.ask("start", **START)
    finally:
        engine.close()


# ---- the sampler's engines


@pytest.fixture
def sampler(notes: Path, tmp_path: Path) -> Iterator[VLLM]:
    with open_sampler(config_of("sampler=vllm").sampler, tmp_path / "sampler", False) as sampler:
        assert isinstance(sampler, VLLM)
        yield sampler


def trained(policy: Policy, name: str) -> Policy:
    """Other weights, which lie in no folder."""
    model = make_model(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * len(name)
    return dataclasses.replace(policy, model=model, fingerprint=name, folder=None)


def test_vllm_is_imported_before_there_is_a_model(sampler, notes, policy, tmp_path, monkeypatch, capsys):
    """So an engine's start takes only its remaining seconds; it is a separate stage."""
    monkeypatch.setenv("VLLM_IMPORTED", str(tmp_path / "imported"))
    stages = list[str]()
    sampler.time_stages_with(lambda stage: contextlib.nullcontext(stages.append(stage)))
    for _ in range(2):
        sampler.warm_up()
    assert wait_for((tmp_path / "imported").exists)
    process = sampler.next_engine.process
    assert not notes.exists(), "no engine is started"
    sampler.prepare(policy, 20)
    sampler.start(policy, [[0, 5]])
    assert sampler.engine.process is process
    assert stages == ["engine"]
    sampler.sample(policy, [[0, 5]], 1, (0,), [])
    assert noted(notes, "start") == [str(policy.folder)], "once"
    line = capsys.readouterr().err
    assert re.search(r"engine +started in \d+ s: 0 import.*, \d+ load, profile and compile\n", line)
    sampler.release()  # the policy trains; the next engine imports meanwhile
    assert process.returncode == 0
    assert sampler.engine is None
    next_process = sampler.next_engine.process
    sampler.close()
    assert next_process.returncode is not None


def test_an_engine_starts_from_a_folder_and_takes_later_weights_in_its_precision(sampler, notes, policy):
    policy = dataclasses.replace(policy, compute_dtype=torch.bfloat16)
    last_policy = trained(policy, "the last")
    for current in (policy, trained(policy, "later"), last_policy):
        sampler.prepare(current, 20)
        for _ in range(2):
            sampler.sample(current, [[0, 5]], 1, (0,), [])
    assert noted(notes, "start") == [str(policy.folder)]
    assert len(noted(notes, "weights")) == 2
    sampler.close()
    sampler.prepare(last_policy, 20)
    sampler.sample(last_policy, [[0, 5]], 1, (0,), [])  # of another engine, which starts with the folder's weights
    sums = {name: weight.bfloat16().double().sum().item() for name, weight in last_policy.model.named_parameters()}
    expected = {name: ["torch.bfloat16", value] for name, value in sums.items()}
    assert noted(notes, "weights")[1:] == [expected, expected]


class FakeEngine:
    """Notes requests; `is_full`: a GPU has no memory to wake up."""

    requests: list[str]
    is_full: bool

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        pass

    def ask(self, request: str, **values: Any) -> dict[str, Any]:
        FakeEngine.requests.append(request)
        if request == "wake" and FakeEngine.is_full:
            raise TOPRError("vLLM could not wake: out of memory")
        return {"made_by": {}, "import_seconds": 1.0, "imported_at": 0.0, "completions": []}

    def close(self) -> None:
        FakeEngine.requests.append("close")


def test_an_engine_that_fits_wakes_and_another_one_is_replaced(notes, tmp_path, policy, monkeypatch):
    FakeEngine.requests, FakeEngine.is_full = [], False
    monkeypatch.setattr(vllm_module, "Engine", FakeEngine)
    monkeypatch.setattr(vllm_module, "release_gpu_memory", lambda: FakeEngine.requests.append("free"))
    sampler = VLLM(config_of("sampler=vllm", "sampler.sleep=true").sampler, tmp_path, False, beside_training=True)
    reload = ["reload", *["take"] * len(list(stored_weights(policy.model))), "done"]

    def requests_to_sample(policy: Policy) -> list[str]:
        FakeEngine.requests.clear()
        sampler.prepare(policy, 20)
        sampler.sample(policy, [[0, 3]], 1, (0,), [])
        return FakeEngine.requests[:]

    assert requests_to_sample(policy) == ["free", "start", "generate"]
    assert requests_to_sample(policy) == ["generate"]
    sampler.sleep()
    assert requests_to_sample(policy) == ["free", "wake", *reload, "generate"]  # it dropped its weights
    assert requests_to_sample(trained(policy, "later")) == ["free", *reload, "generate"]
    sampler.sleep()
    FakeEngine.is_full = True  # AdamW's state came meanwhile
    assert requests_to_sample(policy) == ["free", "wake", "close", "free", "start", "generate"]
    sampler.max_length = 2048
    assert requests_to_sample(policy) == ["close", "free", "start", "generate"]


# ---- memory of a GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A GPU of 140 GiB; set `free` (GiB) and `reserved`."""
    gpu = Mock(free=140.0, reserved=0.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(gpu.free * 2**30), 140 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(gpu.reserved * 2**30))
    return gpu


@pytest.mark.parametrize(("free", "stays"), [(20, False), (100, True)])
def test_an_engine_stays_where_there_is_room_to_train_beside_it(sampler, notes, policy, gpu, monkeypatch, free, stays):
    gpu.free = free
    shares = list[bool]()
    monkeypatch.setattr(vllm_module, "free_share", lambda stays: shares.append(stays) or 0.5)
    monkeypatch.setattr(vllm_module, "release_gpu_memory", lambda: None)
    sampler.prepare(policy, 20)
    sampler.sample(policy, [[0, 5]], 1, (0,), [])
    assert shares == [stays], "then it takes half of what is free"
    sampler.release()
    assert (sampler.engine is not None) == stays
    later_policy = trained(policy, "trained")
    sampler.prepare(later_policy, 20)
    sampler.sample(later_policy, [[0, 5]], 1, (0,), [])
    assert len(noted(notes, "start")) == (1 if stays else 2)
    assert len(noted(notes, "weights")) == 1


@pytest.mark.parametrize(("free", "stays", "share"), [(109, False, 0.75), (109, True, 0.37), (139, False, 0.9)])
def test_an_engine_takes_the_free_memory(gpu: Mock, free: int, stays: bool, share: float) -> None:
    """Beside an 8B policy in float32, and alone on a GPU."""
    gpu.free = free
    assert gpu_share.free_share(stays=stays) == share


@pytest.mark.parametrize("stays", [False, True])
def test_runs_that_share_a_gpu_share_its_memory(gpu: Mock, stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they start at once or one after the other, with the memory of each one's policy."""
    monkeypatch.setenv(RUNS_PER_GPU, "4")
    gpu.reserved = 10.0
    largest = (0.9 / 4 - 10 / 140) / (2 if stays else 1)
    smallest = 0.1 / (2 if stays else 1)
    for _ in range(4):
        share = gpu_share.free_share(stays=stays)
        assert smallest < share <= largest
        gpu.free -= share * 140 + gpu.reserved
        assert gpu.free > 0


def test_without_a_gpu_runs_hold_none_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(RUNS_PER_GPU, "4")
    assert not gpu_share.others_hold_memory()
    assert gpu_share.free_share(stays=False) == 1


NO_MEMORY = "ValueError: Free memory on device (3.1/79.1 GiB) on startup is less than"
NO_CACHE = "ValueError: No available memory for"


@pytest.mark.parametrize(
    ("message", "runs", "tries"), [(NO_MEMORY, 4, 3), (NO_CACHE, 4, 3), ("no such file", 4, 1), (NO_MEMORY, 1, 1)]
)
def test_an_engine_without_memory_waits_for_the_other_runs(sampler, policy, message, runs, tries, monkeypatch, capsys):
    """It warns once; any other refusal, and a GPU that no other run uses, ends the run."""
    others_hold_memory = iter([True, True, False])
    starts = list[Policy]()

    def start_engine(policy: Policy) -> Engine:
        starts.append(policy)
        raise TOPRError(f"vLLM could not start: {message}; its log is engine.log")

    monkeypatch.setattr(sampler, "start_engine", start_engine)
    monkeypatch.setattr(vllm_module, "others_hold_memory", lambda: next(others_hold_memory))
    monkeypatch.setattr(vllm_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv(RUNS_PER_GPU, str(runs))
    with pytest.raises(TOPRError, match="vLLM could not start"):
        sampler.start(policy, [[0, 5]])
    assert len(starts) == tries
    assert capsys.readouterr().err.count("it waits until they leave some") == (1 if tries > 1 else 0)


# ---- weights


@pytest.mark.parametrize("is_expandable", [False, True])
def test_gpu_memory_that_no_other_process_can_open_is_sent_instead(is_expandable, monkeypatch):
    settings = "garbage_collection_threshold:0.6,expandable_segments:True" if is_expandable else ""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(engine_weights, "reduce_tensor", lambda tensor: (None, "handle"))
    engine = Mock()
    engine_weights.send_weight(engine, "name", torch.ones(2), torch.float32)
    values = engine.ask.call_args.kwargs
    content = torch.ones(2).numpy().tobytes()
    assert (values["shared"], values["content"]) == ((None, content) if is_expandable else ("handle", None))


@pytest.mark.parametrize("kind", ["float64", "tf32"])
def test_the_tolerance_separates_products_of_tf32_from_those_of_float32(kind, monkeypatch) -> None:
    """TF32 has 10 bits of a factor; the logits are spread as a trained model's."""
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2000, **shape)).eval()
    model.lm_head.weight.data *= 15
    tokens = torch.randint(0, 2000, (2, 64))
    plain_linear = torch.nn.functional.linear

    def tf32(values: torch.Tensor) -> torch.Tensor:
        bits = values.contiguous().view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)  # half to even

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if kind == "tf32":
            return plain_linear(tf32(x), tf32(weight))
        return plain_linear(x.double(), weight.double()).float()

    def log_probabilities() -> torch.Tensor:
        with torch.no_grad():
            return model(tokens).logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])

    float32 = log_probabilities()
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    gap = float((log_probabilities() - float32).abs().mean())
    tolerance = engine_weights.TOLERANCE["float32"]
    assert gap > 2 * tolerance if kind == "tf32" else gap < tolerance / 50


def test_an_engine_is_compared_with_logits_as_the_model_scales_them(policy: Policy) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = GraniteForCausalLM(GraniteConfig(vocab_size=11, num_key_value_heads=2, logits_scaling=8.0, **shape)).eval()
    model.lm_head.weight.data *= 100

    def ask(request: str, *, prompts: list[list[int]], n: int, **settings: Any) -> dict[str, Any]:
        completions = []
        for prompt in prompts:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, 3, 4]])).logits[0, -3:-1]
            logp = logits.log_softmax(-1)[[0, 1], [3, 4]].numpy()
            completions.append([(array("i", [3, 4]), logp, "length")] * n)
        return {"completions": completions}

    check_log_probabilities(Mock(ask=ask), dataclasses.replace(policy, model=model), [[0, 5, 3]])


def test_an_engine_is_compared_with_the_output_layer_that_it_has(policy, monkeypatch):
    """In bfloat16 logits of 16 to 32 are 0.125 apart, and the engine's output layer is float32."""
    policy = dataclasses.replace(policy, model=make_model(11), compute_dtype=torch.bfloat16)
    policy.model.lm_head.weight.data *= 100
    tokens = np.array([3, 4, 5, 6])

    def ask(request: str, *, prompts: list[list[int]], n: int, **settings: Any) -> dict[str, Any]:
        completions = []
        for prompt in prompts:
            inputs = Inputs([(np.array(prompt), tokens)] * n, policy.device)
            with policy.autocast(), torch.no_grad():
                logp = score_tokens(policy.model, inputs).logp.numpy()
            completions.append([(array("i", tokens.tolist()), row, "length") for row in logp])
        return {"completions": completions}

    monkeypatch.setitem(engine_weights.TOLERANCE, "bfloat16", 1e-3)
    monkeypatch.setattr(engine_weights, "VOCABULARY_SLICE", 4)
    check_log_probabilities(Mock(ask=ask), policy, [[0, 5, 3], [0, 4, 4]])
    with pytest.raises(TOPRError, match="another model"):
        check_log_probabilities(Mock(ask=ask), dataclasses.replace(policy, float32_head=False), [[0, 5, 3]])
