"""Sampling with vLLM: engines in processes of their own, one for each GPU (or group of GPUs) that is visible.

An engine starts when the first completion is really missing, takes the weights from a folder, and after every load
of weights its log-probabilities are compared with transformers'.
"""

from __future__ import annotations

import base64
import math
import os
import pickle
import queue
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from topr_exp.config.model import Transfer, VLLMConfig
from topr_exp.models.adapter import base_weights, merged
from topr_exp.models.policy import Policy, memory_for, release_gpu_memory, save_policy, stored
from topr_exp.runtime import distributed
from topr_exp.sampling.engine import Engine, check_python
from topr_exp.sampling.sampler import Sample, Sampler, seed_of
from topr_exp.sampling.vllm_worker import bit_sum
from topr_exp.types import ConfigError, TOPRError

# Mean |log-probability of vLLM's - transformers'| a token that is rounding; weights that are others' differ by more.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
MARGIN = 3 << 30  # bytes: the engine's CUDA context and what grows in this process
MOST = 0.9  # of a GPU's memory
SHORTEST_ENGINE = 512  # tokens; lengths are rounded up to powers of two, so that engines serve several data sets


@dataclass
class EngineSlot:
    """Some GPUs, and the engine on them once it runs."""

    number: int
    gpus: list[str]
    engine: Engine | None = None
    weights: str = ""  # fingerprint of what the engine holds
    serves: tuple[str, int] = ("", 0)  # shapes of the weights and length that it started with
    asleep: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)  # of what is above

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        assert self.engine is not None
        return self.engine.ask(do, **values)

    def end(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine, self.weights, self.asleep = None, "", False


class VLLM(Sampler):
    """Engines that sample at most `config.shards_at_once` shards each."""

    config: VLLMConfig

    def __init__(
        self, config: VLLMConfig, scratch: Path, trust_remote_code: bool, beside_training: bool = False
    ) -> None:
        super().__init__(config)
        self.trust_remote_code, self.logs = trust_remote_code, scratch / str(distributed.rank())
        self.stays = beside_training and not config.sleep  # on the GPU while the policy trains
        self.python = check_python(config.python)
        self.slots = [EngineSlot(i, gpus) for i, gpus in enumerate(engine_gpus(visible_gpus(), config.tensor_parallel))]
        self.idle: queue.LifoQueue[EngineSlot] = queue.LifoQueue()  # one shard after the other goes to one engine
        self.at_once = config.shards_at_once or (2 if self.slots[0].gpus else 1)
        for slot in reversed(self.slots * self.at_once):
            self.idle.put(slot)
        self.lanes = len(self.slots) * self.at_once
        self.weights, self.length = "", 0  # what to sample from
        self.folder, self.held = Path(), ""  # what engines start from: these weights, or earlier ones of that shape
        self.written = scratch.resolve() / "weights"  # of a policy that has no folder, for all processes of the run
        self.stopped = False
        self.checking = threading.Lock()
        self.description: dict[str, str] = {}

    def prepare(self, policy: Policy, length: int) -> None:
        """Write the policy's weights where no folder holds them; engines load them when they are asked.

        One process writes, in the engines' precision. What was written before is no longer read then: a process gets
        here when all shards of the table or round before are there. With `transfer=memory` one folder is enough to
        start engines from, and the weights of later policies come without one.
        """
        longest = max(SHORTEST_ENGINE, 1 << math.ceil(math.log2(length)))
        self.length = max(self.length, min(longest, policy.context))
        if policy.fingerprint == self.weights:
            return
        if policy.folder is not None:
            self.folder, self.held = policy.folder.resolve(), policy.fingerprint
        elif self.config.transfer is Transfer.file or self.folder != self.written:
            self.folder, self.held = self.written, policy.fingerprint
            if distributed.is_main_process():
                save_policy(policy, self.folder, policy.compute)
            distributed.barrier()
        self.weights = policy.fingerprint

    def sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, seed: tuple[int, ...], stop: Sequence[str]
    ) -> list[list[Sample]]:
        assert policy.fingerprint == self.weights, "prepare first"
        slot, config = self.idle.get(), self.config
        try:
            self.ensure(slot, policy, prompts)
            answer = slot.ask(
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
        finally:
            self.idle.put(slot)
        return [[Sample(*one) for one in group] for group in answer["completions"]]

    def ensure(self, slot: EngineSlot, policy: Policy, prompts: Sequence[Sequence[int]]) -> None:
        """Have the slot's engine running, awake, long enough and with the policy's weights."""
        with slot.lock:
            shapes, length = slot.serves
            if shapes != weight_shapes(policy) or length < self.length:
                slot.end()
            if slot.asleep:
                self.wake(slot)
            started = slot.engine is None
            if started:
                self.start(slot, policy)
            if slot.weights != self.weights:
                slot.weights = ""  # until they are known to be right
                if self.held != self.weights:
                    send_weights(slot.engine, policy, same_gpu=bool(slot.gpus) and slot.gpus == own_gpu())
                elif not started:
                    slot.ask("reload", model=str(self.folder))
                with self.checking:  # the policy is one, with room for one forward pass beside it
                    check_weights(slot.engine, policy)
                    check_log_probabilities(slot.engine, policy, prompts[:2], not started or self.held != self.weights)
                slot.weights = self.weights

    def wake(self, slot: EngineSlot) -> None:
        """Wake an engine, or end it where it no longer fits: AdamW's state came meanwhile."""
        release_gpu_memory()
        try:
            slot.ask("wake")
            slot.asleep = False
        except TOPRError:
            slot.end()

    def start(self, slot: EngineSlot, policy: Policy) -> None:
        """Start a slot's engine with the folder of the weights at hand."""
        config = self.config
        release_gpu_memory()
        log, minutes = self.logs / f"engine-{slot.number}.log", config.timeout_min * self.at_once
        slot.engine = Engine(self.python, log, torch.get_num_threads(), slot.gpus, minutes)
        if self.stopped:  # by a lane that failed, maybe before there was an engine to end
            slot.end()
            raise TOPRError("sampling was stopped")
        slot.serves = weight_shapes(policy), self.length
        self.description = slot.ask(
            "start",
            model=str(self.folder),
            dtype=policy.precision,
            trust_remote_code=self.trust_remote_code,
            length=self.length,
            tensor_parallel=config.tensor_parallel,
            gpu_memory_utilization=config.gpu_memory_utilization or free_share(slot.gpus, stays=self.stays),
            cpu_cache_gib=config.cpu_cache_gib,
            eager=config.eager,
            sleep=config.sleep,
        )

    def made_by(self) -> dict[str, str]:
        return {"sampler": "vllm", **self.description}

    def rest(self) -> None:
        for slot in self.slots if self.config.sleep else []:
            if slot.engine is not None and not slot.asleep:
                slot.ask("sleep")
                slot.asleep = True

    def close(self) -> None:
        for slot in self.slots:
            slot.end()
        self.length = 0
        if self.folder == self.written:
            self.weights, self.folder = "", Path()
        if distributed.is_main_process():
            shutil.rmtree(self.written, ignore_errors=True)

    def stop(self) -> None:
        self.stopped = True
        self.close()


# ---- weights on their way to an engine


def send_weights(engine: Any, policy: Policy, *, same_gpu: bool) -> None:
    """Give an engine the policy's weights without a file, one after the other.

    On the same GPU it copies them from there, each in the engine's precision for as long as that takes. Elsewhere, and
    where an adapter was merged (in main memory), they are sent.
    """
    loading = engine.submit("reload", model=None)
    try:
        with memory_for("handing weights to vLLM", "set sampler.transfer=file"):
            for name, weight in stored(policy.model):
                send_weight(engine, name, weight.detach(), policy.compute, same_gpu)
        engine.ask("done")
    except TOPRError:
        if loading.done():
            engine.answer("reload", loading)  # says why
        raise
    engine.answer("reload", loading)
    if same_gpu:
        torch.cuda.ipc_collect()
        release_gpu_memory()


def send_weight(engine: Any, name: str, weight: torch.Tensor, dtype: torch.dtype, same_gpu: bool) -> None:
    """One of them; what was shared is this process's alone again when this returns."""
    tensor = weight.to(dtype).contiguous()
    kind = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if not (same_gpu and tensor.is_cuda):
        content: Any = tensor.cpu().view(-1).view(torch.uint8).numpy()
        engine.ask("take", memoryview(content), shared=None, **kind)
        return
    if tensor.data_ptr() == weight.data_ptr():
        tensor = tensor.clone()  # torch marks what is shared for good
    try:
        _, arguments = reduce_tensor(tensor)
    except RuntimeError as error:
        raise TOPRError(f"GPU memory can't be shared with vLLM ({error}); set sampler.transfer=file") from error
    engine.ask("take", shared=base64.b64encode(pickle.dumps(arguments)).decode(), **kind)


def check_weights(engine: Any, policy: Policy) -> None:
    """Raise TOPRError unless some whole tensors of an engine are the policy's in its precision, bit by bit.

    An update of 5e-7 changes log-probabilities by less than rounding does, so a reload that had no effect shows here
    alone. Compared are sums of bits. An engine that keeps none of these tensors as they are (on a CPU it packs most of
    them) can't be checked so.
    """
    own = base_weights(policy.model)
    for name, theirs in engine.ask("bit_sums", names=compared_tensors(list(own)))["sums"].items():
        if bit_sum(merged(policy.model, name, own[name]).to(policy.compute)) != theirs:
            raise TOPRError(f"vLLM did not take the new weights: {name} has another checksum; take sampler=hf")


def compared_tensors(names: Sequence[str]) -> list[str]:
    """The embeddings, and of the first, middle and last layer what vLLM does not fuse with others."""
    embeddings = [name for name in names if name.endswith("embed_tokens.weight")]
    parts = [[name for name in names if name.endswith(end)] for end in ("o_proj.weight", "down_proj.weight")]
    return embeddings + [part[i] for part in parts if part for i in sorted({0, len(part) // 2, len(part) - 1})]


@torch.inference_mode()
def check_log_probabilities(engine: Any, policy: Policy, prompts: Sequence[Sequence[int]], reloaded: bool) -> None:
    """Raise TOPRError unless an engine's log-probabilities are transformers' but for rounding."""
    plain: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 16, "stop": []}
    ids = [list(map(int, prompt)) for prompt in prompts]
    answer = engine.ask("generate", prompts=ids, seeds=[0] * len(ids), n=2, eos=policy.eos_ids, **plain)
    gaps = []
    for prompt, group in zip(ids, answer["completions"], strict=True):
        for tokens, logprobs, _ in group:
            inputs = torch.tensor([[*prompt, *tokens]], device=policy.device)
            with policy.autocast(), memory_for("checking vLLM", "lower sampler.gpu_memory_utilization"):
                logits = policy.model(input_ids=inputs, use_cache=False).logits[0, len(prompt) - 1 : -1]
            own = logits.float().log_softmax(-1).gather(-1, inputs[0, len(prompt) :, None]).squeeze(-1)
            gaps.append((own.cpu() - torch.tensor(logprobs)).abs())
    gap, most = float(torch.cat(gaps).mean()), TOLERANCE[policy.precision]
    if gap <= most:
        return
    tied = reloaded and getattr(policy.model.config, "tie_word_embeddings", False)
    why = "vLLM on the CPU keeps the old output layer of a model with tied embeddings when weights are reloaded; "
    raise TOPRError(
        f"vLLM's log-probabilities differ from transformers' by {gap:.2g} a token after weights were loaded (at most "
        f"{most:g} is rounding): it samples from another model; {why * tied}take sampler=hf"
    )


def weight_shapes(policy: Policy) -> str:
    """Names and shapes of a model's weights: an engine can load other weights of the same shapes."""
    shapes = {name: tuple(weight.shape) for name, weight in base_weights(policy.model).items()}
    return f"{policy.model.config.model_type} {shapes}"


# ---- GPUs


def free_share(gpus: Sequence[str], *, stays: bool) -> float:
    """The share of the memory of these GPUs that an engine may take: all that is free but a margin, half if it stays.

    The other half is for the gradient and the activations of a policy that trains meanwhile. 1 without GPUs, where
    nobody reads it.
    """
    shares = [(free - MARGIN) / total for free, total in memory_of(gpus)]
    return math.floor(100 * min(*shares, MOST) / (2 if stays else 1)) / 100 if shares else 1


def memory_of(gpus: Sequence[str]) -> list[tuple[int, int]]:
    """Bytes of each GPU: free, and in all."""
    all_gpus = visible_gpus() if gpus else []
    first = torch.cuda.current_device() if len(all_gpus) == 1 else 0  # of a run's several processes each has one
    return [torch.cuda.mem_get_info(first + all_gpus.index(gpu)) for gpu in gpus]


def visible_gpus() -> list[str]:
    """The GPUs of this process as CUDA_VISIBLE_DEVICES names them: all, or its own where a run has several."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",")[:count] if named else [str(i) for i in range(count)]
    if gpus and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return [gpus[torch.cuda.current_device()]]
    return gpus


def own_gpu() -> list[str]:
    """The GPU that the policy of this process is on, if it is on one."""
    gpus = visible_gpus()
    return [gpus[torch.cuda.current_device()]] if len(gpus) > 1 else gpus


def engine_gpus(gpus: list[str], size: int) -> list[list[str]]:
    """The GPUs of each engine; without GPUs one engine on the CPU. ConfigError where they do not make one group."""
    if len(gpus) < size and (gpus or size > 1):
        raise ConfigError(f"sampler.tensor_parallel={size}: this process has {len(gpus)} GPUs")
    return [gpus[i : i + size] for i in range(0, len(gpus) - size + 1, size)] or [[]]
