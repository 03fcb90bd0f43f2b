"""Sampling with vLLM: each process of a run has an engine in a separate process.

The engine starts from a model folder when the first completion is really missing, and takes weights that lie in no
folder from this process's memory. After every load its log-probabilities are compared with transformers'.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from topr_exp.config.model import VLLMConfig
from topr_exp.models.out_of_memory import release_gpu_memory
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import note_line
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.engine import Engine
from topr_exp.sampling.engine_completions import request_completions, top_count
from topr_exp.sampling.engine_weights import check_log_probabilities, send_weights
from topr_exp.sampling.gpu_share import free_share, has_room_to_train, others_hold_memory
from topr_exp.sampling.sampler import Prompts, Sampler, SamplesByPrompt, Seed
from topr_exp.sampling.vllm_requirements import check_python
from topr_exp.types import TOPRError

RETRY_SECONDS = 15.0
ENGINE_MINUTES = 120.0  # without an answer or a report of drawn tokens, after which an engine counts as hanging
# How vLLM and torch say that a GPU's memory is taken, or was given back while vLLM measured it (in memory profiling).
NO_MEMORY = (
    "Free memory on device", "No available memory", "out of memory", "OutOfMemoryError", "KV cache is needed",
    "Error in memory profiling",
)  # fmt: skip
MIN_ENGINE_LENGTH = 512  # tokens; lengths are rounded up to powers of two, so that an engine serves several data sets


class VLLM(Sampler):
    """An engine beside the policy: on the first GPU that this process sees, or on the CPU."""

    config: VLLMConfig

    def __init__(
        self,
        config: VLLMConfig,
        scratch: Path,
        trust_remote_code: bool,
        *,
        beside_training: bool = False,
        keeps_drawable: bool = False,
    ) -> None:
        """scratch: folder of the engine's log. beside_training: the policy is trained while the sampler is open."""
        super().__init__(config, keeps_drawable=keeps_drawable)
        self.trust_remote_code = trust_remote_code
        self.beside_training = beside_training and not config.sleep
        self.python = check_python(config.python)
        self.gpu = distributed.visible_gpus()[0] if torch.cuda.is_available() else None
        self.log = scratch / str(distributed.rank()) / "engine.log"
        self.max_length = 0  # tokens of prompt and completion that are asked for
        self.start_folder = Path()  # the model folder that an engine starts from
        self.start_fingerprint = ""  # of the weights in that folder
        self.engine: Engine | None = None
        self.engine_length = 0  # the longest sequence that the engine takes
        self.engine_fingerprint = ""  # of the weights of an engine that is awake, once they are checked
        self.engine_versions: dict[str, str] = {}
        self.is_asleep = False
        self.stays_in_training = self.beside_training  # the engine keeps its GPU memory while the policy trains
        self.next_engine: Engine | None = None  # an engine that imports vLLM, or has
        self.start_report = ""  # on the seconds of the last start

    def warm_up(self) -> None:
        if self.engine is None and self.next_engine is None:
            self.next_engine = self.new_engine()

    def new_engine(self) -> Engine:
        """Start the process of an engine, which imports vLLM."""
        return Engine(
            self.python,
            self.log,
            threads=torch.get_num_threads(),
            gpu=self.gpu,
            timeout_minutes=ENGINE_MINUTES,
        )

    def prepare(self, policy: Policy, max_length: int) -> None:
        """Note the length that an engine must take, and the folder of the policy's weights if they lie in one."""
        power_of_two = 1 << (max_length - 1).bit_length()  # the smallest that is no less
        engine_length = min(max(MIN_ENGINE_LENGTH, power_of_two), policy.context)
        self.max_length = max(self.max_length, engine_length)
        if policy.folder is not None:
            self.start_folder = policy.folder.resolve()
            self.start_fingerprint = policy.fingerprint

    def sample(self, policy: Policy, prompts: Prompts, n: int, seed: Seed, stop: Sequence[str]) -> SamplesByPrompt:
        self.start(policy, prompts)
        assert self.engine is not None
        return request_completions(self.engine, self, policy, prompts, n=n, seed=seed, stop=stop)

    def without_mismatch(self) -> Sampler:
        if self.config.top_logprobs is None and not self.keeps_drawable:
            return self
        return NothingNoted(self)

    def start(self, policy: Policy, prompts: Prompts) -> None:
        """Have the engine ready; the start of a process, with the first check of its weights, is a separate stage."""
        if self.engine is not None and self.engine_length >= self.max_length:
            self.ensure_engine(policy, prompts)
            return
        start_time = time.monotonic()
        with self.stage_timer("engine"):
            self.ensure_engine(policy, prompts)
        note_line(f"engine       started in {time.monotonic() - start_time:.0f} s: {self.start_report}")

    def ensure_engine(self, policy: Policy, prompts: Prompts) -> None:
        """Have an engine that is awake, long enough and has the policy's weights."""
        if self.engine_length < self.max_length:
            self.close_engine()
        if self.engine_fingerprint == policy.fingerprint:
            return
        self.engine_fingerprint = ""  # until the check passes
        if self.engine is not None:
            release_gpu_memory()  # cached by the last update: the engine needs room for new weights
            if self.is_asleep:
                self.wake_engine(self.engine)
        engine = self.engine
        has_weights = False
        if engine is None:
            engine = self.start_beside_other_runs(policy)
            has_weights = self.start_fingerprint == policy.fingerprint
        if not has_weights:
            send_weights(engine, policy)
        check_log_probabilities(engine, policy, prompts[:2])
        self.engine_fingerprint = policy.fingerprint

    def wake_engine(self, engine: Engine) -> None:
        """Give an engine its memory back; close it if that is taken (by AdamW's state, after the first update)."""
        try:
            engine.ask("wake")
            self.is_asleep = False
        except TOPRError:
            self.close_engine()

    def start_beside_other_runs(self, policy: Policy) -> Engine:
        """Start an engine; while other runs on the GPU hold its memory, try again for ENGINE_MINUTES."""
        deadline = time.monotonic() + 60 * ENGINE_MINUTES
        shares_gpu = distributed.runs_per_gpu() > 1
        is_waiting = False
        while True:
            others_held_memory = shares_gpu and others_hold_memory()
            try:
                return self.start_engine(policy)
            except TOPRError as error:
                self.close_engine()  # whose memory would count as the others'
                others_held_memory = others_held_memory or (shares_gpu and others_hold_memory())
                lacks_memory = any(text in str(error) for text in NO_MEMORY)
                if not (others_held_memory and lacks_memory) or time.monotonic() > deadline:
                    raise
            if not is_waiting:
                warn("the GPU has no memory for an engine beside the other runs; it waits until they leave some")
            is_waiting = True
            time.sleep(RETRY_SECONDS)

    def start_engine(self, policy: Policy) -> Engine:
        """Start an engine with the weights of `start_folder`, and report how long that took."""
        config = self.config
        start_time = time.monotonic()
        release_gpu_memory()
        if not config.sleep:
            self.stays_in_training = self.beside_training or has_room_to_train(policy, config.gpu_memory_utilization)
        engine = self.next_engine or self.new_engine()
        self.engine = engine
        self.next_engine = None
        self.engine_length = self.max_length
        answer = engine.ask(
            "start",
            model=str(self.start_folder),
            dtype=policy.precision,
            trust_remote_code=self.trust_remote_code,
            length=self.max_length,
            gpu_memory_utilization=config.gpu_memory_utilization or free_share(stays=self.stays_in_training),
            sleep=config.sleep,
            float32_head=not policy.full_precision,
            top_logprobs=top_count(self, policy),
            keeps_drawable=self.keeps_drawable,
        )
        self.engine_versions = answer["made_by"]
        self.start_report = describe_start(answer, start_time)
        return engine

    def made_by(self) -> dict[str, str]:
        return {"sampler": "vllm", **self.engine_versions}

    def sleep(self) -> None:
        if self.config.sleep and self.engine is not None and not self.is_asleep:
            self.engine.ask("sleep")
            self.is_asleep = True
            self.engine_fingerprint = ""

    def close_engine(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine = None
        self.engine_fingerprint = ""
        self.is_asleep = False

    def release(self) -> None:
        """Close an engine that leaves no room to train, and start the imports of the next."""
        if self.engine is not None and not self.stays_in_training:
            self.close()
        self.warm_up()

    def close(self) -> None:
        self.close_engine()
        if self.next_engine is not None:
            self.next_engine.close()
            self.next_engine = None
        self.max_length = 0


class NothingNoted(Sampler):
    """A sampler's engine without the sampler's notes: for completions that are not trained on."""

    def __init__(self, noting_sampler: VLLM) -> None:
        super().__init__(replace(noting_sampler.config, top_logprobs=None))
        self.noting_sampler = noting_sampler

    def prepare(self, policy: Policy, max_length: int) -> None:
        self.noting_sampler.prepare(policy, max_length)

    def start(self, policy: Policy, prompts: Prompts) -> None:
        self.noting_sampler.start(policy, prompts)

    def sample(self, policy: Policy, prompts: Prompts, n: int, seed: Seed, stop: Sequence[str]) -> SamplesByPrompt:
        self.start(policy, prompts)
        engine = self.noting_sampler.engine
        assert engine is not None
        return request_completions(engine, self, policy, prompts, n=n, seed=seed, stop=stop)

    def made_by(self) -> dict[str, str]:
        return self.noting_sampler.made_by()


def describe_start(answer: dict[str, Any], start_time: float) -> str:
    """Say how many seconds of a start went into imports and into the rest; answer: to `start`, which has just come."""
    seconds = time.monotonic() - start_time
    import_wait = max(0.0, answer["imported_at"] - start_time)
    import_lead = answer["import_seconds"] - import_wait  # seconds of imports before the start
    note = f" ({import_lead:.0f} s of it before)" if import_lead >= 1 else ""
    return f"{import_wait:.0f} import{note}, {seconds - import_wait:.0f} load, profile and compile"
