"""A model with its tokenizer, device and precision: what samples, is scored and is trained."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from topr_exp.config.model import LoRA, ModelConfig
from topr_exp.models import adapter, loading
from topr_exp.runtime import distributed, machine
from topr_exp.runtime.checksums import write_checksums
from topr_exp.runtime.files import atomic_folder
from topr_exp.types import TOPRError

# How else torch says that there is no memory: on a CPU, and on a GPU outside its allocator.
NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
             "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED")  # fmt: skip


@dataclass
class Policy:
    """Weights that are trained are float32; `compute` is the precision of the forward pass (bfloat16 by autocast).

    `fingerprint` names weights and tokenizer in the store's keys, `folder` is where they lie; set both on new weights.
    """

    model: Any
    tokenizer: Any
    fingerprint: str
    compute: torch.dtype
    folder: Path | None = None  # None: these weights lie nowhere on the disk
    float32_head: bool = True  # scores and gradients take the output layer in float32, whatever `compute` is
    base: tuple[str, str] | None = None  # where an adapter is trained: path and fingerprint of the weights below it

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def precision(self) -> str:
        return str(self.compute).removeprefix("torch.")

    @property
    def computes(self) -> dict[str, str]:
        """Key of the numerics of a forward pass beside the weights, for the store."""
        weights = self.model.get_input_embeddings().weight.dtype
        rounded = {"base": str(weights).removeprefix("torch.")} if weights is not torch.float32 else {}
        return {"precision": self.precision, **rounded}

    @property
    def full_precision(self) -> bool:
        return self.compute is torch.float32

    @property
    def vocabulary(self) -> int:
        """Rows of the output layer."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def context(self) -> int:
        """Most tokens of prompt and completion together."""
        return int(self.model.config.max_position_embeddings)

    @cached_property
    def eos_ids(self) -> list[int]:
        """Every token that ends a completion: the generation config's (some models have two) and the tokenizer's."""
        eos = self.model.generation_config.eos_token_id if self.model.generation_config is not None else None
        listed = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        own = self.tokenizer.eos_token_id
        return sorted({*listed, *([] if own is None else [own])})

    @property
    def place(self) -> str:
        """Device and precision in words, and how many processes compute there."""
        several = f", {distributed.world_size()} processes" if distributed.world_size() > 1 else ""
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.device)}, {self.precision}{several}"
        threads = torch.get_num_threads()
        return f"{self.device.type} with {threads} thread{'s' * (threads > 1)}, {self.precision}{several}"

    def add_adapter(self, lora: LoRA, seed: int, path: str, folder: Path | None) -> None:
        """From here on an adapter is trained beside the weights of `path`: a new one, or that of a trained `folder`."""
        self.base = path, self.fingerprint
        adapter.add_adapter(self.model, lora, seed)
        if folder is not None:
            there = folder / loading.ADAPTER
            adapter.load_adapter(self.model, there)
            self.folder, self.fingerprint = None, adapter.fingerprint(self.fingerprint, there, lora.alpha)

    def without_adapter(self) -> "Policy":
        """The policy that this one is with its adapter off, on the same weights."""
        assert self.base is not None
        model = adapter.WithoutAdapter(lambda: self.model)
        return Policy(model, self.tokenizer, self.base[1], self.compute, None, self.float32_head)

    def autocast(self, *, keep: bool = False) -> contextlib.AbstractContextManager[Any]:
        """The context in which forward passes compute in `compute`.

        keep: hold cast weights until the block ends, half of the model's size again, for many passes. A single pass
        reuses the output layer alone, whose gradient over chunks would be summed in `compute` if its cast were held.
        """
        if self.full_precision:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute, cache_enabled=keep)

    @cached_property
    def _prefix(self) -> list[int]:
        return loading.prefix_of(self.tokenizer)

    def encode(self, text: str, *, chat: bool = False) -> NDArray[np.int32]:
        """Token ids of a prompt; chat: the model's chat template made it, else the tokenizer may put a token before."""
        encoded = loading.encode_chat if chat else loading.encode_text
        return np.array(encoded(self.tokenizer, text), dtype=np.int32)

    def text_of(self, prompt: NDArray[np.integer]) -> str:
        """A prompt as text that `encode` gives back: with its special tokens, but for what the tokenizer adds."""
        prefix = self._prefix
        ids = prompt[len(prefix) :] if prompt[: len(prefix)].tolist() == prefix else prompt
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def decode(self, tokens: Sequence[int], stop: Sequence[str] = ()) -> str:
        """The text of a completion: special tokens left out, cut before the first stop string."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for marker in stop:
            text = text.split(marker, 1)[0]
        return text

    def stopper(self, stop: Sequence[str]) -> Callable[[list[int]], bool]:
        """Make a check for stop strings; it decodes only as many tokens as the longest one can span."""
        window = max(len(marker.encode()) for marker in stop) + 4

        def stopped(tokens: list[int]) -> bool:
            tail = self.tokenizer.decode(tokens[-window:], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return any(marker in tail for marker in stop)

        return stopped


def load_policy(config: ModelConfig, device: str, folder: Path | None = None) -> Policy:
    """Load a model, or its settings with weights of `folder`; TOPRError, ConfigError for a GPU that is not there."""
    gc.collect()  # a model that is done with: frames of its loading may hold it in a circle
    transformers.utils.logging.disable_progress_bar()  # its bars for a second's work would stand among ours
    machine.check_device(device)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    source = folder if folder is not None else loading.model_folder(config.path, config.revision)
    compute, fingerprint = getattr(torch, config.dtype), loading.weights_fingerprint(source)
    dtype = compute if config.lora is not None else torch.float32
    if config.lora is not None:
        loading.check_targets(config.lora, loading.linear_layers(source))
    model, tokenizer = loading.load_model(str(source), dtype, device, config.attention, config.trust_remote_code)
    return Policy(model, tokenizer, fingerprint, compute, source, config.float32_head)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write model, tokenizer and checksums as a folder that transformers and vLLM load; atomic.

    Where an adapter is trained, it is in the weights, and once more alone in the folder's `adapter/`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as target:
        save_model(policy.model, target)
        policy.tokenizer.save_pretrained(target)
        if policy.base is not None:
            adapter.save_adapter(policy.model, target / loading.ADAPTER, policy.base[0])
        write_checksums(target)


def save_model(model: Any, folder: Path) -> None:
    model.should_save_on_this_rank = lambda is_main_process: True
    model.save_pretrained(folder, state_dict=dict(stored(model)))


def stored(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over a model's weights as stored on disk, tied ones once; also while FSDP holds it unsharded."""
    for name, weight in adapter.base_weights(model).items():
        yield name, adapter.merged(model, name, weight)
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                yield name, buffer


# ---- memory


@contextlib.contextmanager
def memory_for(work: str, way_out: str) -> Iterator[None]:
    """While the block runs, an allocation that fails becomes a TOPRError: what was tried, and what to set instead."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        raise TOPRError(f"out of memory {work}; {way_out}; what was finished before is kept") from error


def ran_out(error: RuntimeError) -> bool:
    """True for an allocation that failed, on a GPU or by torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)


def release_gpu_memory() -> None:
    """Give back the GPU memory that torch keeps for later in this process."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
