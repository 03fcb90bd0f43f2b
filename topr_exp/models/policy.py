"""A model with its tokenizer, device and precision: it samples, is scored and is trained."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from topr_exp.config.model import LoRA, ModelConfig
from topr_exp.models import adapter
from topr_exp.models.loading import context_of, load_model
from topr_exp.models.model_folder import ADAPTER, fetch_model_folder, weights_fingerprint
from topr_exp.models.tokenization import encode_prompt, prefix_of
from topr_exp.models.weight_headers import check_targets, linear_layers
from topr_exp.runtime import distributed, machine
from topr_exp.runtime.checksums import write_checksums
from topr_exp.runtime.files import atomic_folder
from topr_exp.runtime.terminal import plural


class FrozenBase(NamedTuple):
    """The weights below an adapter."""

    path: str
    fingerprint: str


@dataclass
class Policy:
    """A model in `model.eval()` form; trained weights are float32, the forward pass computes in `compute_dtype`.

    Scores and gradients compute the output layer in float32 for every `compute_dtype`.
    """

    model: Any
    tokenizer: Any
    fingerprint: str  # of weights and tokenizer, in the store's keys
    compute_dtype: torch.dtype  # bfloat16 by autocast
    folder: Path | None = None  # where the weights are on disk; None: nowhere
    base: FrozenBase | None = None  # below an adapter that is trained

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def precision(self) -> str:
        return str(self.compute_dtype).removeprefix("torch.")

    @property
    def numerics_key(self) -> dict[str, str]:
        """Key of the numerics of a forward pass beside the weights, for the store."""
        key = {"precision": self.precision}
        weights_dtype = self.model.get_input_embeddings().weight.dtype
        if weights_dtype is not torch.float32:
            key["base"] = str(weights_dtype).removeprefix("torch.")
        return key

    @property
    def full_precision(self) -> bool:
        return self.compute_dtype is torch.float32

    @property
    def vocabulary(self) -> int:
        """Rows of the output layer."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def context(self) -> int:
        """The largest number of tokens of prompt and completion together."""
        return context_of(self.model)

    @cached_property
    def eos_ids(self) -> list[int]:
        """Every token that ends a completion: the generation config's (some models have two) and the tokenizer's."""
        ids = {self.tokenizer.eos_token_id}
        generation_config = self.model.generation_config
        if generation_config is not None:
            configured_ids = generation_config.eos_token_id
            if not isinstance(configured_ids, list):
                configured_ids = [configured_ids]
            ids |= set(configured_ids)
        return sorted(ids - {None})

    @property
    def device_description(self) -> str:
        """Device, threads, precision and number of processes in words."""
        device = self.device.type
        if device == "cuda":
            device = torch.cuda.get_device_name(self.device)
        else:
            device += f" with {plural(torch.get_num_threads(), 'thread')}"
        processes = distributed.world_size()
        shared = f", {processes} processes" if processes > 1 else ""
        return f"{device}, {self.precision}{shared}"

    def rename_weights(self, fingerprint: str) -> None:
        """Name weights that training has changed, or is about to change: they are no longer those of a folder."""
        self.fingerprint = fingerprint
        self.folder = None

    def replace_model(self, model: Any) -> None:
        """Compute with another object of the same weights."""
        self.model = model

    def add_adapter(self, lora: LoRA, seed: int, *, base_path: str, trained_folder: Path | None) -> None:
        """Train an adapter from here on, beside the weights of `base_path`: a new one, or that of `trained_folder`."""
        self.base = FrozenBase(base_path, self.fingerprint)
        adapter.add_adapter(self.model, lora, seed)
        if trained_folder is not None:
            adapter_folder = trained_folder / ADAPTER
            adapter.load_adapter(self.model, adapter_folder)
            self.rename_weights(adapter.fingerprint(self.fingerprint, adapter_folder, lora.alpha))

    def without_adapter(self) -> "Policy":
        """This policy with its adapter off, on the same weights."""
        assert self.base is not None
        model = adapter.WithoutAdapter(lambda: self.model)
        return replace(self, model=model, fingerprint=self.base.fingerprint, folder=None, base=None)

    def autocast(self, *, keep: bool = False) -> contextlib.AbstractContextManager[Any]:
        """The context in which forward passes compute in `compute_dtype`.

        keep: hold cast weights until the block ends, half of the model's size again, for many passes. A single pass
        reuses the output layer alone, whose gradient over chunks would be summed in `compute_dtype` if its cast were
        held.
        """
        if self.full_precision:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype, cache_enabled=keep)

    @cached_property
    def _prefix(self) -> list[int]:
        return prefix_of(self.tokenizer)

    def encode(self, text: str, *, chat: bool = False) -> NDArray[np.int32]:
        """Token ids of a prompt; chat: the model's chat template made it, else the tokenizer may put a token before."""
        return np.array(encode_prompt(self.tokenizer, text, chat=chat), dtype=np.int32)

    def text_of(self, prompt: NDArray[np.integer]) -> str:
        """The text that `encode` turns into a prompt: with its special tokens, but without the tokenizer's prefix."""
        ids = prompt.tolist()
        prefix = self._prefix
        if ids[: len(prefix)] == prefix:
            ids = ids[len(prefix) :]
        return self._decode(ids, skip_special_tokens=False)

    def decode(self, tokens: Sequence[int], stop: Sequence[str] = ()) -> str:
        """The text of a completion: special tokens left out, cut before the first stop string."""
        text = self._decode(tokens, skip_special_tokens=True)
        for marker in stop:
            text = text.split(marker, 1)[0]
        return text

    def _decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(
            tokens, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def stop_check(self, stop: Sequence[str]) -> Callable[[list[int]], bool]:
        """Make a check for stop strings; it decodes only as many tokens as the longest one can span."""
        longest_stop = max(len(marker.encode()) for marker in stop)  # bytes, of which a token has one or more
        window = longest_stop + 4

        def has_stopped(tokens: list[int]) -> bool:
            tail = self._decode(tokens[-window:], skip_special_tokens=True)
            return any(marker in tail for marker in stop)

        return has_stopped


def load_policy(config: ModelConfig, device: str, folder: Path | None = None) -> Policy:
    """Load a model, or the weights of `folder` under its settings; TOPRError, ConfigError for an unusable GPU."""
    gc.collect()  # reference cycles may keep an earlier model alive
    transformers.utils.logging.disable_progress_bar()  # its bars for a second's work would stand among ours
    machine.check_device(device)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        machine.refuse_unusable_gpu()
    source = folder if folder is not None else fetch_model_folder(config.path, config.revision)
    fingerprint = weights_fingerprint(source)
    compute_dtype = getattr(torch, config.dtype)
    weights_dtype = torch.float32
    if config.lora is not None:
        weights_dtype = compute_dtype
        check_targets(config.lora, linear_layers(source))
    model, tokenizer = load_model(str(source), weights_dtype, device, trust_remote_code=config.trust_remote_code)
    return Policy(model, tokenizer, fingerprint, compute_dtype, folder=source)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write model, tokenizer and checksums as a folder that transformers and vLLM load; atomic.

    A trained adapter is merged into the weights, and once more alone in the folder's `adapter/`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as target:
        save_model(policy.model, target)
        policy.tokenizer.save_pretrained(target)
        if policy.base is not None:
            adapter.save_adapter(policy.model, target / ADAPTER, policy.base.path)
        write_checksums(target)


def save_model(model: Any, folder: Path) -> None:
    """Write a model's weights and settings, whichever process calls: transformers by itself lets only rank 0 write."""
    model.should_save_on_this_rank = lambda is_main_process: True
    model.save_pretrained(folder, state_dict=dict(stored_weights(model)))


def stored_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over a model's weights as stored on disk, tied ones once; also while FSDP holds it unsharded."""
    for name, weight in adapter.base_weights(model).items():
        yield name, adapter.merged_weight(model, name, weight)
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            _, _, name_in_module = name.rpartition(".")
            if name_in_module not in module._non_persistent_buffers_set:
                yield name, buffer
