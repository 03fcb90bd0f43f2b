"""A stand-in for vLLM with a Python that has it, policies that it samples from, and a GPU that isn't there."""

import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.conftest import lines_of, make_model
from topr_exp.models.policy import Policy
from topr_exp.runtime.distributed import RUNS_PER_GPU

# A prompt of the stand-in has two tokens: what the engine does, and the token of its completions.
PLAIN, REPORTS, STOPS, BREAKS, VANISHES, HANGS, FAILS = 0, 4, 5, 6, 7, 8, 9
VLLM_MODULE = """
import atexit, json, math, os, sys, time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from vllm.v1.engine.logprobs import LogprobsProcessor

__version__ = "stand-in"
PLAIN, REPORTS, STOPS, BREAKS, VANISHES, HANGS, FAILS = 0, 4, 5, 6, 7, 8, 9
FOLDER = Path(__file__).parents[1]


def note(**values):
    with (FOLDER / "notes").open("a") as file:
        file.write(json.dumps(values) + "\\n")


def refuses(word):
    path = FOLDER / "refusals"
    return path.exists() and word in path.read_text().split()


atexit.register(time.sleep, 20)  # as long as CUDA takes to be taken down
(FOLDER / "imported").touch()


class SamplingParams:
    def __init__(self, **values):
        self.__dict__.update(values)
        note(sampling=values)


def logprobs_of(token, count):
    # What becomes of the log-probabilities of one place: the token's, then those of the last `count` of 11 tokens.
    processor = LogprobsProcessor.from_new_request(tokenizer=object(), request=None)
    ids = np.array([[token, *range(10, 10 - count, -1)]])
    logprobs = np.full((1, 1 + count), -math.log(11), np.float32)
    lists = SimpleNamespace(logprob_token_ids=ids, logprobs=logprobs)
    processor.update_from_output(SimpleNamespace(new_logprobs=lists))
    return processor.logprobs


class LLM:
    def __init__(self, **options):
        self.weights = {}
        self.masks = options.get("return_sampling_mask", False)
        note(start=options["model"], options=options)

    def reset_prefix_cache(self):
        note(reset=True, environment=dict(os.environ))
        return not refuses("empty")

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
            if act == REPORTS:
                sys.modules["__main__"].SECONDS_BETWEEN_REPORTS = 0.0
            if act != VANISHES:
                stop_reason = "Q:" if act == STOPS else 1
                mask = SimpleNamespace(token_ids=[[3, token]]) if self.masks else None
                completions = []
                for _ in range(param.n):
                    logprobs = logprobs_of(token, param.logprobs)
                    completions.append(SimpleNamespace(token_ids=[token], logprobs=logprobs, finish_reason="stop",
                                                       stop_reason=stop_reason, sampling_mask=mask))
                outputs.append(SimpleNamespace(outputs=completions))
        return outputs

    def collective_rpc(self, method, kwargs):
        for name, weight in kwargs["weights_iterator"]:
            if refuses("weights") and len(self.weights) == 2:
                raise RuntimeError("out of room")
            self.weights[name] = [str(weight.dtype), weight.double().sum().item()]
        note(weights=self.weights)
"""
PROCESSOR_MODULE = """
class LogprobsProcessor:
    logprobs = None

    @classmethod
    def from_new_request(cls, tokenizer, request):
        assert tokenizer is None, "it would make text of each token"
        return cls()

    def update_from_output(self, output):
        raise AssertionError("it would make dictionaries")
"""


@dataclass
class StandIn:
    """A stand-in for vLLM in a folder; `python` imports it and answers that it has version 0.33."""

    folder: Path

    def __post_init__(self):
        package = self.folder / "vllm"
        (package / "v1/engine").mkdir(parents=True)
        (package / "__init__.py").write_text(VLLM_MODULE)
        (package / "platforms.py").write_text("class current_platform:\n    device_type = 'cpu'\n")
        (package / "triton_utils.py").write_text("HAS_TRITON = True\n")
        (package / "v1/engine/logprobs.py").write_text(PROCESSOR_MODULE)
        self.python = self.folder / "python"
        version = 'if [ "$1" = -I ]; then echo 0.33.0; exit; fi'
        self.python.write_text(f'#!/bin/sh\n{version}\nPYTHONPATH={self.folder} exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    @property
    def setting(self):
        return f"sampler.python={self.python}"

    def notes(self, key):
        """Values that the stand-in noted under a key."""
        path = self.folder / "notes"
        return [line[key] for line in lines_of(path) if key in line] if path.exists() else []

    def refuse(self, *words):
        """From now on refuse `empty` (the cache) or `weights`, or nothing."""
        (self.folder / "refusals").write_text(" ".join(words))


@pytest.fixture
def stand_in(tmp_path):
    return StandIn(tmp_path / "stand_in")


def uniform_policy(name="first", folder=None, **changes):
    """A policy that gives each of 11 tokens the same probability, as the stand-in says; weights differ by name."""
    model = make_model(11, seed=len(name))
    embedding = model.get_input_embeddings().weight
    embedding.data[:] = embedding.data[0].clone()
    settings = {"compute_dtype": torch.float32, "folder": folder, **changes}
    return Policy(model, Mock(eos_token_id=1), name, **settings)


@pytest.fixture
def policy(tmp_path):
    return uniform_policy(folder=tmp_path / "model")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 140 GiB: set `free` and `reserved` (GiB), call `share_among(runs)`."""
    gpu = Mock(free=140.0, reserved=0.0)
    gpu.share_among = lambda runs: monkeypatch.setenv(RUNS_PER_GPU, str(runs))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(gpu.free * 2**30), 140 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(gpu.reserved * 2**30))
    return gpu


@pytest.fixture
def make_environment(tmp_path):
    """A function that makes an environment with packages of these versions, which can't be imported."""

    def make(versions):
        folder = tmp_path / "-".join(versions.values())
        venv.create(folder, symlinks=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for name, version in versions.items():
            (packages / name).mkdir()
            (packages / name / "__init__.py").write_text("raise RuntimeError('imported')\n")
            metadata = packages / f"{name}-{version}.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (metadata / "top_level.txt").write_text(f"{name}\n")
            (metadata / "RECORD").write_text(f"{name}/__init__.py,,\n")
        return str(folder / "bin/python")

    return make
