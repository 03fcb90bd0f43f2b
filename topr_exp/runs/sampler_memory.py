"""What a sampler holds on a GPU beside the policy's weights, as far as it is known before these are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.config.sampler import SamplerConfig, VLLMConfig
from topr_exp.models import files
from topr_exp.models.words import load_words, with_bos
from topr_exp.types import Problem, TOPRError

if TYPE_CHECKING:
    from topr_exp.config.model import ModelConfig
    from topr_exp.data.prompts import Prompter

GIB = 2**30
MASTER = 4  # bytes of a weight and of its gradient: float32
CAST = 2  # bytes of a weight in bfloat16


@dataclass(frozen=True)
class Asked:
    """So many completions of each problem, as the setting `key` says."""

    key: str
    problems: Sequence[Problem]
    n: int


@dataclass(frozen=True)
class Beside:
    """GiB by what they are for, and what lowers them.

    engine: whatever it samples; else it depends on how many completions are asked for, and is most in an evaluation.
    """

    parts: dict[str, float] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)
    engine: bool = False


def beside(
    weights: int, folder: Path, model: ModelConfig, sampler: SamplerConfig, prompter: Prompter, asked: Sequence[Asked]
) -> Beside:
    """Of vLLM its copy of the weights; of hf the weights' casts, and keys and values of the shard that needs most."""
    gib, rounded = weights / GIB, model.dtype.name != "float32"
    if isinstance(sampler, VLLMConfig):
        return engine((CAST if rounded else MASTER) * gib, sampler, in_float32=model.lora is None)
    casts = {"their cast to bfloat16": CAST * gib} if rounded and model.lora is None else {}
    bytes_each = token_bytes(folder, CAST if rounded else MASTER)
    sizes = [
        (each.n * shard_tokens(folder, model, sampler, prompter, each.problems) * bytes_each / GIB, each.key)
        for each in asked
    ]
    most, key = max(sizes, default=(0.0, ""))
    if not most:
        return Beside(casts)
    return Beside(casts | {"keys and values": most}, [f"lower sampler.prompts_per_shard or {key}"])


def engine(weights: float, sampler: VLLMConfig, *, in_float32: bool) -> Beside:
    """An engine's weights of so many GiB, and what it leaves free where it takes the rest of a GPU."""
    from topr_exp.sampling.vllm import MARGIN

    parts = {"the engine's weights": weights / sampler.tensor_parallel}
    if sampler.gpu_memory_utilization is None:
        parts["its context"] = MARGIN / GIB
    ways = ["sampler.tensor_parallel=2 or more where a process has several GPUs"]
    ways = ways if in_float32 else ["take sampler=hf with few completions at a time", *ways]
    return Beside(parts, ways, engine=True)


def token_bytes(folder: Path, precision: int) -> int:
    """Bytes of a token's keys and values in all layers; 0 where the model does not say how many it has."""
    names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
    layers, heads, kept, hidden = (files.setting(folder, name) for name in names)
    if not layers or not heads or not kept or not hidden:
        return 0
    return 2 * layers * kept * (files.setting(folder, "head_dim") or hidden // heads) * precision


def shard_tokens(
    folder: Path, model: ModelConfig, sampler: SamplerConfig, prompter: Prompter, problems: Sequence[Problem]
) -> int:
    """Tokens for which the first shard has room, with one completion a problem: each as long as the longest may be."""
    lengths = prompt_lengths(folder, model, prompter, problems[: sampler.prompts_per_shard])
    context = files.setting(folder, "max_position_embeddings")
    fitting = [length for length in lengths if context is None or length + sampler.max_new_tokens <= context]
    return len(fitting) * (max(fitting) + sampler.max_new_tokens) if fitting else 0


def prompt_lengths(folder: Path, model: ModelConfig, prompter: Prompter, problems: Sequence[Problem]) -> list[int]:
    """Tokens of each prompt; none where the tokenizer can't be read, of which loading says what is wrong."""
    try:
        words = load_words(folder, chat=prompter.chat, trust_remote_code=model.trust_remote_code)
        texts = [prompter.render(problem.question, words.tokenizer, problem.fields) for problem in problems]
        return [len(with_bos(words.encode(text), words.bos)) for text in texts]
    except TOPRError:
        raise
    except Exception:  # transformers raises many types
        return []
