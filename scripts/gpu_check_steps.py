"""The measurements of gpu_check.py, each in a separate process: STEP ANSWER.json [ARGUMENTS]."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.gpu_check_model import write_model
from topr_exp.runtime import distributed

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

# TFLOP/s in bfloat16, dense, by the makers; the first name that fits.
PEAK = {"H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200 NVL": 835, "H200": 989, "A100": 312, "B200": 2250}


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
        "sampler": "vllm" if python else "hf (no vLLM was found)",
        "vllm python": python,
        "commit": commit.strip(),
    }


def update(size: str, recompute: str, folder: str = ".") -> dict[str, Any]:
    """Seconds and memory of an update of 8 examples after 900 shared tokens, and how much of them Adafactor takes."""
    import torch
    from training import Case, Ours, timed

    shared, own, completed = {"8b": (900, 100, 200), "100m": (900, 100, 20), "small": (90, 10, 20)}[size]
    times = 5 if size == "8b" else 3
    case = Case(size, shared, (own, own), (completed, completed), 8, 8, "adafactor", "")
    ours = Ours(case, 16)
    trainer, cuda = ours.trainer, ours.device.type == "cuda"
    trainer.recompute = recompute == "checkpointing"
    for _ in range(2):
        ours.update()
    seconds = sorted(timed(ours.update, ours.device) for _ in range(times))[times // 2]

    def optimizer() -> None:
        trainer.clip(1.0)
        trainer.optimizer.step()

    share = sorted(timed(optimizer, ours.device) for _ in range(times))[times // 2]
    unique = shared + case.batch * (own + completed)
    found = {
        "s": seconds,
        "tokens/s": case.batch * (shared + own + completed) / seconds,
        "distinct tokens/s": unique / seconds,
        "Adafactor s": share,
    }
    if cuda:
        found["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        name = torch.cuda.get_device_name()
        if peak := next((value for key, value in PEAK.items() if key in name), None):
            found["MFU %"] = 100 * operations(ours, unique) / (seconds * peak * 1e12)
    if recompute == "checkpointing":
        found["s of a checkpoint"] = checkpoint(trainer, folder)
    return {f"{recompute}: {key}": round(value, 3) for key, value in found.items()}


def checkpoint(trainer: Any, below: str) -> float:
    """Seconds to write a checkpoint of weights and optimizer, with its checksums."""
    from topr_exp.training import checkpoint as checkpoints

    with tempfile.TemporaryDirectory(dir=below) as folder:
        began = time.monotonic()
        checkpoints.save(Path(folder), 1, trainer.policy.model, trainer.optimizer, {}, {})
        return time.monotonic() - began


def operations(ours: Any, tokens: int) -> float:
    """Of an update: 6 for each weight of the layers and distinct token, and of the output layer and completion token.

    Attention (a few percent) and what checkpointing computes again are not counted.
    """
    model = ours.policy.model
    head = model.get_output_embeddings().weight.numel()
    layers = ours.policy.model.num_parameters() - head - model.get_input_embeddings().weight.numel()
    return 6.0 * (layers * tokens + head * ours.case.batch * ours.case.completion[0])


def head(size: str) -> dict[str, Any]:
    """Seconds and memory of the output layer and its loss for 1,600 completion tokens, by benchmarks/head.py's ways."""
    import head as heads
    import torch
    from training import LLAMAS

    options = argparse.Namespace(
        tokens=1600 if size == "8b" else 100, hidden=LLAMAS[size]["hidden_size"], repeats=5,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )  # fmt: skip
    lines = heads.compare(LLAMAS[size]["vocab_size"], options)
    found = {f"{line['head']}: s": round(line["seconds"], 5) for line in lines}
    return found | {f"{line['head']}: GiB": round(max(line["peak_bytes"], 0) / 2**30, 3) for line in lines}


def gathers(count: str, folder: str) -> dict[str, Any]:
    """GB/s at which each of so many processes, a GPU each, gathers what FSDP shares out."""
    import torch

    with tempfile.TemporaryDirectory(dir=folder) as place:
        torch.multiprocessing.spawn(gather, (int(count), place), nprocs=int(count))
        return {"gathers GB/s": float(Path(place, "answer").read_text())}


def gather(rank: int, count: int, place: str, mib: int = 256, times: int = 20) -> None:
    """One process of them: pieces of `mib` MiB, all_gather by NCCL, or by gloo without GPUs."""
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    meeting = f"file://{place}/meeting"
    dist.init_process_group("nccl" if cuda else "gloo", init_method=meeting, rank=rank, world_size=count)
    piece = torch.ones(mib << 20, dtype=torch.uint8, device="cuda" if cuda else "cpu")
    whole = torch.empty(count * len(piece), dtype=torch.uint8, device=piece.device)
    for step in range(times + 1):
        if step == 1:  # the first one starts the links
            began = time.monotonic()
        dist.all_gather_into_tensor(whole, piece)
        if cuda:
            torch.cuda.synchronize()
    if rank == 0:
        Path(place, "answer").write_text(f"{times * (count - 1) * len(piece) / (time.monotonic() - began) / 1e9:.2f}")
    dist.destroy_process_group()


def sampling(folder: str, *overrides: str) -> dict[str, Any]:
    """Tokens per second of an engine and how long the GPU idles; the memory before, beside and after it."""
    from topr_exp.config.compose_overrides import parse_arguments
    from topr_exp.config.model import VLLMConfig
    from topr_exp.data.problems import load_problems
    from topr_exp.data.prompts import build_prompter, tokenize_prompts
    from topr_exp.models.policy import load_policy
    from topr_exp.runs.plan import plan
    from topr_exp.sampling.vllm import VLLM

    config = plan(parse_arguments(list(overrides))).jobs[0].config
    assert isinstance(config.sampler, VLLMConfig)
    policy = load_policy(config.model, config.cluster.device)
    problems, longest = load_problems(config.data).train, config.sampler.max_new_tokens
    questions = tokenize_prompts(problems, build_prompter(config.data), policy, longest)
    found: dict[str, Any] = {"tokens of a prompt": len(questions.prompts[0])}
    sampler, memory = VLLM(config.sampler, Path(folder), False), free_memory()
    try:
        found |= rate(sampler, policy, questions, config.data.n, Path(folder))
        beside = free_memory()
        sampler.close()
        began = time.monotonic()
        sampler.prepare(policy, max(map(len, questions.prompts)) + longest)
        sampler.sample(policy, [questions.prompts[0].tolist()], 1, (0,), questions.stop)
        found["s of the engine's second start"] = round(time.monotonic() - began, 1)
    finally:
        sampler.close()
    if memory is not None:
        found["GiB free before the engine, beside it, after it"] = f"{memory}, {beside}, {free_memory()}"
    return found


def rate(sampler: Any, policy: Any, questions: Any, n: int, folder: Path) -> dict[str, float]:
    """How long an engine takes to start, and how many tokens a second it then samples in several shards."""
    from topr_exp.sampling.rollouts import generate_rollouts
    from topr_exp.store import Store

    began = time.monotonic()
    sampler.prepare(policy, max(map(len, questions.prompts)) + sampler.config.max_new_tokens)
    sampler.sample(policy, [prompt.tolist() for prompt in questions.prompts[:2]], 1, (0,), questions.stop)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as store, Utilization() as watch:
        rollouts = generate_rollouts(sampler, policy, questions, n, 0, Store(Path(store)))
    seconds = time.monotonic() - started
    found = {"s of the engine's start": round(started - began, 1), "tokens/s": round(rollouts.sampled / seconds, 1)}
    if (busy := watch.share()) is not None:
        found["% of the time that the GPU idles"] = round(100 - busy, 1)
    return found


class Utilization:
    """The share of time that kernels run on the first GPU, by nvidia-smi, while the block runs."""

    def __enter__(self) -> Utilization:
        gpu = next(iter(distributed.visible_gpus()), "0")
        query = ["nvidia-smi", "-i", gpu, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        self.log = tempfile.TemporaryFile("w+")
        with contextlib.suppress(FileNotFoundError):
            self.process = subprocess.Popen(query, stdout=self.log, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()

    def share(self) -> float | None:
        """Mean %; None without nvidia-smi."""
        self.log.seek(0)
        numbers = [float(line) for line in self.log.read().split("\n") if line.strip().isdecimal()]
        return sum(numbers) / len(numbers) if numbers else None


def free_memory() -> float | None:
    """GiB of the GPU that nobody holds."""
    import torch

    return round(torch.cuda.mem_get_info()[0] / 2**30, 1) if torch.cuda.is_available() else None


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "machine": machine,
    "model": write_model,
    "update": update,
    "head": head,
    "gathers": gathers,
    "sampling": sampling,
}

if __name__ == "__main__":
    step, answer, *arguments = sys.argv[1:]
    found = STEPS[step](*arguments)
    Path(answer).write_text(json.dumps(found) + "\n")
