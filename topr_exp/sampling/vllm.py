"""Sampling with vLLM: each process of a run has an engine in a separate process.

The engine starts from a folder of the model when the first completion is really missing, and takes weights that lie in
no folder from this process's memory. After every load its log-probabilities are compared with transformers'.
"""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from topr_exp.config.model import VLLMConfig
from topr_exp.models import loading
from topr_exp.models.adapter import merged_in
from topr_exp.models.policy import Policy, memory_for, release_gpu_memory, stored
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import note_line
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.engine import Engine, check_python
from topr_exp.sampling.sampler import Sample, Sampler, seed_of
from topr_exp.types import TOPRError

# Mean |log-probability of vLLM's - transformers'| a token that is rounding; weights that are others' differ by more.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
MARGIN = 3 << 30  # bytes: the engine's CUDA context and what grows in this process
TRAINED_BYTES = 16  # of a weight with its gradient and AdamW's state
PLENTY, ACTIVATIONS = 2, 16 << 30  # times that, and bytes for what a batch needs
MOST = 0.9  # of a GPU's memory
RETRY_SECONDS = 15.0
# How vLLM and torch say that a GPU's memory is taken.
NO_MEMORY = ("Free memory on device", "No available memory", "out of memory", "OutOfMemoryError", "KV cache is needed")
SLICE = 1 << 14  # of the vocabulary that is computed at a time, since the engine has the memory
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # whose expandable segments no other process can open
SHORTEST_ENGINE = 512  # tokens; lengths are rounded up to powers of two, so that an engine serves several data sets


class VLLM(Sampler):
    """An engine beside the policy: on the first GPU that this process sees, or on the CPU."""

    config: VLLMConfig

    def __init__(
        self, config: VLLMConfig, scratch: Path, trust_remote_code: bool, beside_training: bool = False
    ) -> None:
        super().__init__(config)
        self.trust_remote_code = trust_remote_code
        self.beside_training = beside_training and not config.sleep
        self.stays = self.beside_training  # on the GPU while the policy trains
        self.python = check_python(config.python)
        self.gpu = distributed.visible_gpus()[0] if torch.cuda.is_available() else None
        self.log = scratch / str(distributed.rank()) / "engine.log"
        self.length = 0
        self.folder, self.held = Path(), ""  # what an engine starts from: the weights with this fingerprint
        self.engine: Engine | None = None
        self.spare: Engine | None = None  # imports vLLM, or has: the next engine
        self.loaded, self.serves, self.asleep = "", 0, False  # the engine's weights, its longest sequence
        self.description: dict[str, str] = {}
        self.parts = ""  # of the time that the last start took

    def begin(self) -> None:
        if self.engine is None and self.spare is None:
            self.spare = self.process()

    def process(self) -> Engine:
        """A process for an engine, which imports vLLM."""
        return Engine(self.python, self.log, torch.get_num_threads(), self.gpu, self.config.timeout_min)

    def prepare(self, policy: Policy, length: int) -> None:
        """Note how long an engine must be, and where it finds weights of this model to start with."""
        longest = max(SHORTEST_ENGINE, 1 << math.ceil(math.log2(length)))
        self.length = max(self.length, min(longest, policy.context))
        if policy.folder is not None:
            self.folder, self.held = policy.folder.resolve(), policy.fingerprint

    def sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, seed: tuple[int, ...], stop: Sequence[str]
    ) -> list[list[Sample]]:
        config = self.config
        self.start(policy, prompts)
        assert self.engine is not None
        answer = self.engine.ask(
            "generate",
            prompts=[list(map(int, prompt)) for prompt in prompts],
            seeds=[seed_of(*seed, i) >> 1 for i in range(len(prompts))],  # room for seed + n
            n=n,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=min(config.top_k, policy.vocabulary),
            max_new_tokens=config.max_new_tokens,
            eos=policy.eos_ids,
            stop=list(stop),
        )
        return completions_of(answer)

    def start(self, policy: Policy, prompts: Sequence[Sequence[int]]) -> None:
        """As of all samplers; the start of an engine, with the first check of its weights, is a stage of its own."""
        if self.engine is not None and self.serves >= self.length:
            self.ensure(policy, prompts)
            return
        began = time.monotonic()
        with self.timed("engine"):
            self.ensure(policy, prompts)
        note_line(f"engine       started in {time.monotonic() - began:.0f} s: {self.parts}")

    def ensure(self, policy: Policy, prompts: Sequence[Sequence[int]]) -> None:
        """Have an engine that runs, is awake, long enough and has the policy's weights."""
        if self.serves < self.length:
            self.end()
        if self.engine is not None and self.loaded != policy.fingerprint:
            release_gpu_memory()  # what an update left in the cache: the engine needs room for new weights
        if self.engine is not None and self.asleep:
            try:
                self.engine.ask("wake")
                self.asleep = False
            except TOPRError:  # it no longer fits: AdamW's state came meanwhile
                self.end()
        engine, holds = self.engine, self.loaded
        if engine is None:
            engine, holds = self.start_beside_other_runs(policy), self.held
        if self.loaded != policy.fingerprint:
            self.loaded = ""  # until it is known to be right
            if holds != policy.fingerprint:
                send_weights(engine, policy)
            check_log_probabilities(engine, policy, prompts[:2])
            self.loaded = policy.fingerprint

    def start_beside_other_runs(self, policy: Policy) -> Engine:
        """Start an engine; where runs share the GPU and its memory is taken, again until the others have left it."""
        deadline, waits = time.monotonic() + 60 * self.config.timeout_min, False
        while True:
            others = distributed.runs_per_gpu() > 1 and others_hold_memory()
            try:
                return self.start_engine(policy)
            except TOPRError as error:
                if not (others and any(text in str(error) for text in NO_MEMORY)) or time.monotonic() > deadline:
                    raise
                self.end()
            if not waits:
                warn("the GPU has no memory for an engine beside the other runs; it waits until they leave some")
            waits = True
            time.sleep(RETRY_SECONDS)

    def start_engine(self, policy: Policy) -> Engine:
        """Start an engine with the folder of the weights at hand, and note how long that took."""
        config, began = self.config, time.monotonic()
        release_gpu_memory()
        if not config.sleep:
            self.stays = self.beside_training or has_room_to_train(policy, config.gpu_memory_utilization)
        self.engine, self.spare = self.spare or self.process(), None
        engine, self.serves = self.engine, self.length
        answer = engine.ask(
            "start",
            model=str(self.folder),
            dtype=policy.precision,
            trust_remote_code=self.trust_remote_code,
            length=self.length,
            gpu_memory_utilization=config.gpu_memory_utilization or free_share(stays=self.stays),
            cpu_cache_gib=config.cpu_cache_gib,
            eager=config.eager,
            sleep=config.sleep,
            float32_head=policy.float32_head and not policy.full_precision,
        )
        self.description = answer["made_by"]
        seconds, waited = time.monotonic() - began, max(0.0, answer["imported"] - began)
        before = answer["import_seconds"] - waited
        ahead = f" ({before:.0f} s of it before)" if before >= 1 else ""
        self.parts = f"{waited:.0f} import{ahead}, {seconds - waited:.0f} load, profile and compile"
        return engine

    def made_by(self) -> dict[str, str]:
        return {"sampler": "vllm", **self.description}

    def rest(self) -> None:
        if self.config.sleep and self.engine is not None and not self.asleep:
            self.engine.ask("sleep")
            self.asleep, self.loaded = True, ""

    def end(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine, self.loaded, self.asleep = None, "", False

    def release(self) -> None:
        """As of all samplers; an engine beside which there is room to train stays, of another the imports begin."""
        if self.engine is not None and not self.stays:
            self.close()
        self.begin()

    def close(self) -> None:
        self.end()
        if self.spare is not None:
            self.spare.close()
            self.spare = None
        self.length = 0


def completions_of(answer: dict[str, Any]) -> list[list[Sample]]:
    """The completions of each prompt in an engine's answer."""
    sample = lambda tokens, logprobs, finish: Sample(tokens.tolist(), logprobs.tolist(), finish)
    return [[sample(*one) for one in group] for group in answer["completions"]]


# ---- weights on their way to an engine


def send_weights(engine: Engine, policy: Policy) -> None:
    """Give an engine the policy's weights, one after the other.

    On a GPU the engine copies each from a cast to its precision. Those in main memory (an adapter merged) are sent.
    """
    engine.ask("reload")
    with memory_for("handing weights to vLLM", "take sampler=hf"):
        for name, weight in stored(policy.model):
            send_weight(engine, name, weight.detach(), policy.compute)
    engine.ask("done")
    if policy.device.type == "cuda":
        torch.cuda.ipc_collect()
        release_gpu_memory()


def send_weight(engine: Engine, name: str, weight: torch.Tensor, dtype: torch.dtype) -> None:
    """One of them; what was shared is this process's alone again when this returns."""
    tensor = weight.to(dtype).contiguous()
    kind = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    shared, content = None, None
    if tensor.is_cuda:
        if tensor.data_ptr() == weight.data_ptr():
            tensor = tensor.clone()  # torch marks what is shared for good
        if not any("expandable_segments:true" in os.environ.get(name, "").lower() for name in ALLOCATOR):
            shared = reduce_tensor(tensor)[1]
    if shared is None:
        content = tensor.cpu().view(-1).view(torch.uint8).numpy().tobytes()
    engine.ask("take", content=content, shared=shared, **kind)


@torch.inference_mode()
def check_log_probabilities(engine: Engine, policy: Policy, prompts: Sequence[Sequence[int]]) -> None:
    """Raise TOPRError unless an engine's log-probabilities are transformers' but for rounding."""
    plain: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 16, "stop": []}
    ids = [list(map(int, prompt)) for prompt in prompts]
    answer = engine.ask("generate", prompts=ids, seeds=[0] * len(ids), n=2, eos=policy.eos_ids, **plain)
    pairs = [(prompt, one) for prompt, two in zip(ids, completions_of(answer), strict=True) for one in two]
    gaps = []
    with merged_in(policy.model), memory_for("checking vLLM", "lower sampler.gpu_memory_utilization"):
        for prompt, one in pairs:
            inputs = torch.tensor([[*prompt, *one.tokens]], device=policy.device)
            logp = logits_of(policy, inputs, len(prompt) - 1).log_softmax(-1)
            own = logp.gather(-1, inputs[0, len(prompt) :, None]).squeeze(-1)
            gaps.append((own.cpu() - torch.tensor(one.logprobs)).abs())
    gap, most = float(torch.cat(gaps).mean()), TOLERANCE[policy.precision]
    if not gap <= most:
        raise TOPRError(
            f"vLLM's log-probabilities differ from transformers' by {gap:.2g} a token after weights were loaded (at "
            f"most {most:g} is rounding): it samples from another model (docs/vllm.md); take sampler=hf"
        )


def logits_of(policy: Policy, inputs: torch.Tensor, start: int) -> torch.Tensor:
    """Logits of the next tokens from a place on, [N, V] float32; by a float32 output layer where the engine has one."""
    model, head = policy.model, policy.model.get_output_embeddings()
    with policy.autocast():
        if not policy.float32_head or loading.scaling_of(model) is not None:
            logits: torch.Tensor = model(input_ids=inputs, use_cache=False).logits[0, start:-1].float()
            return logits
        hidden = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state[0, start:-1].float()
    logits = torch.cat([hidden @ part.float().T for part in head.weight.split(SLICE)], -1)
    return logits if head.bias is None else logits + head.bias.float()


def has_room_to_train(policy: Policy, share: float | None) -> bool:
    """Whether what an engine leaves of a GPU's free memory is plenty to train this policy in.

    share: of the GPU's memory that the engine takes; None: half of what is free. False without a GPU.
    """
    if not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    left = free - share * total if share is not None else free / 2
    weights = sum(weight.numel() for weight in policy.model.parameters())
    plenty: float = PLENTY * TRAINED_BYTES * weights + ACTIVATIONS
    return left >= plenty * distributed.runs_per_gpu()


def free_share(*, stays: bool) -> float:
    """The share of its GPU's memory that an engine may take: all that is free but a margin, half if it stays.

    The other half is for gradient and activations of a policy that trains meanwhile. Of several runs on a GPU each
    takes no more than its part of the whole, its policy included. Without a GPU: 1, read by nobody.
    """
    if not torch.cuda.is_available():
        return 1
    free, total = torch.cuda.mem_get_info()
    most = min((free - MARGIN) / total, MOST)
    runs = distributed.runs_per_gpu()
    if runs > 1:
        most = min(most, MOST / runs - torch.cuda.memory_reserved() / total)
    return max(0.01, math.floor(100 * most / (2 if stays else 1)) / 100)


def others_hold_memory() -> bool:
    """True if other processes hold memory of this process's GPU; without a GPU there is none to hold."""
    if not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() > MARGIN
