"""Random model of gpu_check.py: a Llama and a tokenizer that fills its vocabulary, with all words of the prompts."""

from __future__ import annotations

import itertools
import json
import math
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.gpu_check_runs import SIZES
from scripts.make_tiny.tokenizer import build_tokenizer
from topr_exp.data import embedded_gsm8k
from topr_exp.data.embedded import draw_problems
from topr_exp.data.prompts import shipped_shots
from topr_exp.types import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONTEXT = 8192


def generated_problems(count: int, seed: int) -> list[Problem]:
    return draw_problems(embedded_gsm8k.draw, "gsm8k", split="pretrain", count=count, seed=seed)


def worked_examples() -> list[Problem]:
    """Return the project's eight, and six more whose solutions are their answers: 900 tokens with a question."""
    examples = list(shipped_shots("gsm8k"))
    for problem in generated_problems(count=6, seed=1):
        solution = f"The answer is {problem.answer}."
        examples.append(Problem("", problem.question, solution))
    return examples


def prompt_texts() -> list[str]:
    """Return texts whose every word becomes a token, with a space before it and without."""
    texts = []
    for example in worked_examples():
        texts.append(f"Question: {example.question}\nAnswer: {example.answer}\n\n")
    for problem in generated_problems(count=2000, seed=0):
        texts.append(problem.question)
    words = set()
    for text in texts:
        words.update(text.split())
    return [*texts, *words]


def unused_words(vocabulary: dict[str, int]) -> Iterator[str]:
    """Iterate over words of four letters that are not in a vocabulary."""
    for letters in itertools.product(string.ascii_lowercase, repeat=4):
        word = "".join(letters)
        if f"Ġ{word}" not in vocabulary:
            yield word


def tokenizer_of(size: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer of exactly `size` tokens, most of them words that occur nowhere."""
    texts = prompt_texts()
    vocabulary = build_tokenizer(texts, CONTEXT).get_vocab()
    padding_words = itertools.islice(unused_words(vocabulary), size - len(vocabulary))
    padding = "".join(f" {word}" for word in padding_words)
    tokenizer = build_tokenizer([*texts, padding], CONTEXT)
    assert len(tokenizer) == size
    return tokenizer


def model_settings(size: str) -> dict[str, Any]:
    """Return the arguments of LlamaConfig; 8b has the shape of Llama 3 8B."""
    from training import LLAMAS

    return {
        **LLAMAS[size],
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


LOGITS_DEVIATION = 5.0  # of a trained model's logits; a random head's are four times closer together


def write_model(size: str, folder: str, shots: str, model_folder: str = "") -> dict[str, Any]:
    """Write a random model (unless `model_folder` names one) and the worked examples of its prompts."""
    from topr_exp.models.model_folder import weights_fingerprint

    start_time = time.monotonic()
    figures: dict[str, Any] = {}
    if not model_folder:
        figures = write_random_model(size, Path(folder))
    figures["s"] = round(time.monotonic() - start_time, 1)
    start_time = time.monotonic()
    weights_fingerprint(Path(folder))
    with open(shots, "w", encoding="utf-8") as file:
        for example in worked_examples()[: SIZES[size].shots]:
            line = json.dumps({"question": example.question, "solution": example.answer})
            file.write(f"{line}\n")
    figures["s of hashing"] = round(time.monotonic() - start_time, 1)
    return figures


def write_random_model(size: str, target: Path) -> dict[str, Any]:
    """Write a model in bfloat16 whose logits spread as a trained model's do, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**model_settings(size))
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():  # states before the head have a mean square of 1
        scale = LOGITS_DEVIATION / (config.initializer_range * math.sqrt(config.hidden_size))
        model.get_output_embeddings().weight *= scale
    tokenizer = tokenizer_of(config.vocab_size)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    weight_count = sum(weight.numel() for weight in model.parameters())
    return {"weights": weight_count, "vocabulary": len(tokenizer)}
