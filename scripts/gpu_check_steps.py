"""The measurements of gpu_check.py, each in a process of its own: STEP ANSWER.json [ARGUMENTS]."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

PEAK = {"H100": 989, "H200": 989, "A100": 312, "B200": 2250}  # TFLOP/s in bfloat16, dense, by the makers


def machine(vllm: str | None = None) -> dict[str, Any]:
    """What is here: GPUs, versions, the commit."""
    import torch
    import transformers

    from topr_exp.sampling.engine import check_python
    from topr_exp.types import ConfigError

    try:
        python: str | None = check_python(vllm)
    except ConfigError as error:
        if vllm is not None:
            sys.exit(f"--vllm: {error}")
        python = None
        print(error)
    gpus = torch.cuda.device_count()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return {
        "gpus": gpus,
        "GPU": torch.cuda.get_device_name() if gpus else "none",
        "GPU memory, GiB": round(torch.cuda.mem_get_info()[1] / 2**30, 1) if gpus else 0.0,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "sampler": "vllm" if python else "hf (no vLLM was found: --vllm PYTHON)",
        "vllm python": python,
        "commit": commit.strip(),
    }


def model(size: str, folder: str) -> dict[str, Any]:
    """A random model in bfloat16 with a tokenizer as large as its vocabulary."""
    import torch
    from training import LLAMAS
    from transformers import LlamaConfig, LlamaForCausalLM

    from topr_exp.tiny.tokenizer import build_tokenizer

    began = time.monotonic()
    config = LlamaConfig(
        **LLAMAS[size], max_position_embeddings=8192, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        dtype="bfloat16",
    )  # fmt: skip
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        weights = LlamaForCausalLM(config)
    target = Path(folder)
    weights.save_pretrained(target.with_suffix(".tmp"))
    count = config.vocab_size - len(build_tokenizer([], 8192))
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = (
        letters[i // 17576] + letters[i // 676 % 26] + letters[i // 26 % 26] + letters[i % 26] for i in range(count)
    )
    build_tokenizer([" ".join(words)], 8192).save_pretrained(target.with_suffix(".tmp"))
    target.with_suffix(".tmp").rename(target)
    return {"seconds": round(time.monotonic() - began, 1)}


def update(size: str, recompute: str) -> dict[str, Any]:
    """Seconds and memory of an update of 8 examples after 900 shared tokens, and how much of them Adafactor takes."""
    import torch
    from training import Case, Ours, timed

    from topr_exp.config.optim import Optimizer

    case = Case(size, 900, (100, 100), (200, 200), 8, 8, Optimizer.adafactor, "")
    ours = Ours(case, 16)
    trainer, cuda = ours.trainer, ours.device.type == "cuda"
    trainer.config = dataclasses.replace(trainer.config, gradient_checkpointing=recompute == "checkpointing")
    for _ in range(2):
        ours.update()
    seconds = sorted(timed(ours.update, ours.device) for _ in range(5))[2]

    def optimizer() -> None:
        trainer.clip(1.0)
        trainer.optimizer.step()

    share = sorted(timed(optimizer, ours.device) for _ in range(5))[2]
    unique = 900 + case.batch * 300
    found = {
        "s": seconds,
        "tokens/s": case.batch * 1200 / seconds,
        "distinct tokens/s": unique / seconds,
        "Adafactor s": share,
    }
    if cuda:
        found["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        name = torch.cuda.get_device_name()
        if peak := next((value for key, value in PEAK.items() if key in name), None):
            found["MFU %"] = 100 * operations(ours, unique) / (seconds * peak * 1e12)
    return {f"{recompute}: {key}": round(value, 3) for key, value in found.items()}


def operations(ours: Any, tokens: int) -> float:
    """Of an update: 6 for each weight of the layers and distinct token, and of the output layer and completion token.

    Attention (a few percent) and what checkpointing computes again are not counted.
    """
    model = ours.policy.model
    head = model.get_output_embeddings().weight.numel()
    layers = ours.policy.parameters - head - model.get_input_embeddings().weight.numel()
    return 6.0 * (layers * tokens + head * ours.case.batch * 200)


if __name__ == "__main__":
    step, answer, *arguments = sys.argv[1:]
    found = {"machine": machine, "model": model, "update": update}[step](*arguments)
    Path(answer).write_text(json.dumps(found) + "\n")
