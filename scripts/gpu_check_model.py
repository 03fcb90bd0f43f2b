"""gpu_check.py's random model: a Llama and a tokenizer that fills its vocabulary, with all words of the prompts."""

from __future__ import annotations

import itertools
import json
import math
import string
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.make_tiny.tokenizer import build_tokenizer
from topr_exp.data import embedded_gsm8k
from topr_exp.data.embedded import draw_problems
from topr_exp.data.prompts import shipped_shots
from topr_exp.types import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONTEXT = 8192


def worked_examples() -> list[Problem]:
    """The project's eight, and six more whose solutions are their answers: 900 tokens with a question."""
    own = list(shipped_shots("gsm8k"))
    more = draw_problems(embedded_gsm8k.draw, "gsm8k", split="pretrain", count=6, seed=1)
    return own + [Problem("", problem.question, f"The answer is {problem.answer}.") for problem in more]


def texts() -> list[str]:
    """What prompts are made of: every word of it is a token, with a space before it and without."""
    found = [f"Question: {shot.question}\nAnswer: {shot.answer}\n\n" for shot in worked_examples()]
    found += [
        problem.question
        for problem in draw_problems(embedded_gsm8k.draw, "gsm8k", split="pretrain", count=2000, seed=0)
    ]
    return [*found, *{word for text in found for word in text.split()}]


def tokenizer_of(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly so many tokens; the rest of it are words that nothing holds."""
    used = texts()
    known = build_tokenizer(used, CONTEXT).get_vocab()
    words = ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    new = (word for word in words if f"Ġ{word}" not in known)
    count = vocabulary - len(known)
    fill = "".join(f" {word}" for word in itertools.islice(new, count))
    tokenizer = build_tokenizer([*used, fill], CONTEXT)
    assert len(tokenizer) == vocabulary
    return tokenizer


def settings(size: str) -> dict[str, Any]:
    """The model's shape, that of Llama 3 8B for 8b."""
    from training import LLAMAS

    return {**LLAMAS[size], "max_position_embeddings": CONTEXT, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


LOGITS = 5.0  # standard deviation of a trained model's; a random head's are four times closer together


def write_model(size: str, folder: str, shots: str, given: str = "") -> dict[str, Any]:
    """A random model in bfloat16 with its tokenizer, or one that is given, and the worked examples of its prompts."""
    from topr_exp.models.model_folder import weights_fingerprint

    began, found = time.monotonic(), {} if given else random_model(size, Path(folder))
    written = time.monotonic()
    weights_fingerprint(Path(folder))
    lines = [json.dumps({"question": shot.question, "solution": shot.answer}) for shot in worked_examples()]
    Path(shots).write_text("".join(f"{line}\n" for line in lines))
    return found | {"s": round(written - began, 1), "s of hashing": round(time.monotonic() - written, 1)}


def random_model(size: str, target: Path) -> dict[str, Any]:
    """Write it; its logits spread as a trained model's do."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**settings(size))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():  # what reaches the head has a mean square of 1
        model.get_output_embeddings().weight *= LOGITS / (config.initializer_range * math.sqrt(config.hidden_size))
    tokenizer = tokenizer_of(config.vocab_size)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return {"weights": sum(weight.numel() for weight in model.parameters()), "vocabulary": len(tokenizer)}
