"""Weights of a policy on their way to an engine, and the check that they arrived."""

import os
import platform
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor
from transformers.core_model_loading import revert_weight_conversion

from topr_exp.models import loading
from topr_exp.models.adapter import with_merged_adapter
from topr_exp.models.out_of_memory import memory_for, release_gpu_memory
from topr_exp.models.policy import Policy, stored_weights
from topr_exp.sampling.engine import Engine
from topr_exp.sampling.engine_completions import completions_of
from topr_exp.sampling.sampler import Prompts
from topr_exp.types import TOPRError

# Mean |log-probability of vLLM's - transformers'| a token that is rounding; weights that are others' differ by more.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
VOCABULARY_SLICE = 1 << 14  # computed at a time, since the engine has the memory
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
PRIVATE_ALLOCATORS = ("expandable_segments:true", "backend:cudamallocasync")  # their memory has no CUDA IPC


def send_weights(engine: Engine, policy: Policy) -> None:
    """Give an engine the policy's weights, one after the other.

    Each is cast to the engine's precision. The engine copies it from this process's GPU memory; those in main memory
    (with a merged adapter), or that can't be shared, are sent as bytes.
    """
    engine.ask("reload")
    with memory_for("handing weights to vLLM", "take sampler=hf"):
        for name, weight in stored_weights(policy.model):
            send_weight(engine, name_on_disk(policy.model, name, weight), weight.detach(), policy.compute_dtype)
    engine.ask("done")
    if policy.device.type == "cuda":
        torch.cuda.ipc_collect()
        release_gpu_memory()


def name_on_disk(model: Any, name: str, weight: torch.Tensor) -> str:
    """The name that a weight has in a folder, by which engines know it: transformers renames some as it loads them.

    One that is put together of several on disk (the experts of a layer) keeps its own.
    """
    placeholder = weight.to("meta")
    weights_on_disk = revert_weight_conversion(model, {name: placeholder})
    first_name, first_weight = next(iter(weights_on_disk.items()))
    is_renamed_only = len(weights_on_disk) == 1 and first_weight is placeholder
    return first_name if is_renamed_only else name


def send_weight(engine: Engine, name: str, weight: torch.Tensor, dtype: torch.dtype) -> None:
    """Give an engine one weight; when this returns, the engine no longer reads this process's memory."""
    tensor = weight.to(dtype).contiguous()
    shared = None  # what opens the tensor in this process's GPU memory
    content = None  # else its bytes
    if tensor.is_cuda:
        if tensor.data_ptr() == weight.data_ptr():
            tensor = tensor.clone()  # torch marks shared memory as shared for good
        if can_share_gpu_memory():
            _, shared = reduce_tensor(tensor)  # the arguments of rebuild_cuda_tensor
    if shared is None:
        content = tensor.cpu().view(-1).view(torch.uint8).numpy().tobytes()
    engine.ask(
        "take",
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=list(tensor.shape),
        content=content,
        shared=shared,
    )


def can_share_gpu_memory() -> bool:
    """False where no other process can open this one's GPU memory: on WSL, and as some allocators get it."""
    settings = [os.environ.get(name, "").lower() for name in ALLOCATOR_SETTINGS]
    is_private = any(allocator in setting for allocator in PRIVATE_ALLOCATORS for setting in settings)
    is_wsl = "microsoft" in platform.release().lower()
    return not (is_wsl or is_private)


@torch.inference_mode()
def check_log_probabilities(engine: Engine, policy: Policy, prompts: Prompts) -> None:
    """Raise TOPRError if an engine's log-probabilities differ from transformers' by more than rounding."""
    prompt_ids = [list(map(int, prompt)) for prompt in prompts]
    answer = engine.ask(
        "generate",
        prompts=prompt_ids,
        seeds=[0] * len(prompt_ids),
        n=2,
        eos=policy.eos_ids,
        temperature=1.0,
        top_p=1.0,
        top_k=policy.vocabulary,  # all; 0 says the same, but not to an engine that notes what could be drawn
        max_new_tokens=16,
        stop=[],
        top_logprobs=0,
        keeps_drawable=False,
    )
    gaps = []
    with with_merged_adapter(policy.model), memory_for("checking vLLM", "lower sampler.gpu_memory_utilization"):
        for prompt, group in zip(prompt_ids, completions_of(answer, policy.vocabulary), strict=True):
            for sample in group:
                logp = completion_logp(policy, prompt, sample.tokens)
                gaps.append((logp - torch.tensor(sample.logprobs)).abs())
    mean_gap = float(torch.cat(gaps).mean())
    tolerance = TOLERANCE[policy.precision]
    if not mean_gap <= tolerance:  # true for NaN, too
        raise TOPRError(
            f"vLLM's log-probabilities differ from transformers' by {mean_gap:.2g} a token after weights were loaded "
            f"(at most {tolerance:g} is rounding): it samples from another model (docs/gpu.md); take sampler=hf"
        )


def completion_logp(policy: Policy, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Return transformers' log π(y_t | x, y_<t) of a completion, [tokens] float32 on the CPU."""
    inputs = torch.tensor([[*prompt, *tokens]], device=policy.device)
    logits = next_token_logits(policy, inputs, start=len(prompt) - 1)
    logp = logits.log_softmax(-1)  # [tokens, V]
    targets = inputs[0, len(prompt) :, None]
    target_logp = logp.gather(-1, targets)
    return target_logp.squeeze(-1).cpu()


def next_token_logits(policy: Policy, inputs: torch.Tensor, start: int) -> torch.Tensor:
    """Return the logits [N, V] float32 that predict `inputs` [1, tokens] after position `start`.

    They come from a float32 output layer where the engine has one.
    """
    model = policy.model
    with policy.autocast():
        if policy.full_precision or loading.logit_scale_of(model) is not None:
            all_logits = model(input_ids=inputs, use_cache=False).logits
            return all_logits[0, start:-1].float()
        states = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
        hidden = states[0, start:-1].float()
    output_layer = model.get_output_embeddings()
    slices = []
    for weight in output_layer.weight.split(VOCABULARY_SLICE):
        slices.append(hidden @ weight.float().T)
    logits = torch.cat(slices, -1)
    if output_layer.bias is not None:
        logits = logits + output_layer.bias.float()
    return logits
