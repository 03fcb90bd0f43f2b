"""The measurements of gpu_check.py, each in a separate process: STEP ANSWER.json [ARGUMENTS]."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
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
    return {
        "gpus": gpus,
        "GPU": torch.cuda.get_device_name() if gpus else "none",
        "GPU memory, GiB": round(torch.cuda.mem_get_info()[1] / 2**30, 1) if gpus else 0.0,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "sampler": "vllm" if python else "hf (no vLLM was found)",
        "vllm python": python,
        "commit": commit(),
    } | ({"attention": attention_kernel()} if gpus else {})


def commit() -> str:
    """The commit of the checkout; "unknown" without git or in a copy of the files."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def attention_kernel() -> str:
    """The kernel that torch's attention takes on this GPU for bfloat16 with 128 a head."""
    import torch

    query = torch.zeros(1, 8, 128, 128, dtype=torch.bfloat16, device="cuda")
    choice: Callable[..., int] = torch._fused_sdp_choice
    names = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cuDNN"}
    return names.get(choice(query, query, query, is_causal=True), "?")


def update(size: str, recompute: str, folder: str = "") -> dict[str, Any]:
    """Seconds and memory of an update of 8 examples after 900 shared tokens, and how much of them Adafactor takes.

    On a GPU then the same with compiled layers, or with a folder the seconds to write a checkpoint there.
    """
    import torch
    from training import Case, Ours

    shared, own, completed = {"8b": (900, 100, 200), "100m": (900, 100, 20), "small": (90, 10, 20)}[size]
    times = 5 if size == "8b" else 3
    case = Case(size, shared, (own, own), (completed, completed), 8, 8, "adafactor", "")
    ours = Ours(case, 16)
    trainer, cuda = ours.trainer, ours.device.type == "cuda"
    trainer.recompute = recompute == "checkpointing"
    first = [timed_update(ours) for _ in range(2)]
    seconds = median_seconds(ours.update, ours.device, times)

    def optimizer() -> None:
        trainer.clip(1.0)
        trainer.optimizer.step()

    share = median_seconds(optimizer, ours.device, times)
    unique = shared + case.batch * (own + completed)
    figures: dict[str, Any] = {
        "s": seconds,
        "s of the first two": ", ".join(f"{value:.2f}" for value in first),
        "tokens/s": case.batch * (shared + own + completed) / seconds,
        "distinct tokens/s": unique / seconds,
        "Adafactor s": share,
    }
    peak = peak_of_gpu() if cuda else None
    if cuda:
        figures["GiB"] = torch.cuda.max_memory_allocated() / 2**30
    if peak is not None:
        figures["MFU %"] = 100 * operations(ours, unique) / (seconds * peak)
    if folder:
        figures["s of a checkpoint"] = checkpoint(trainer, folder)
    elif cuda:
        figures |= compiled(ours, seconds, times)
    return {f"{recompute}: {key}": rounded(value) for key, value in figures.items()}


def rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def timed_update(ours: Any) -> float:
    from training import timed

    return float(timed(ours.update, ours.device))


def compiled(ours: Any, eager_seconds: float, times: int) -> dict[str, Any]:
    """Seconds of updates with compiled layers: the first ones, which compile, and the median of `times` later ones."""
    from topr_exp.training.layers import compile_layers

    compile_layers(ours.policy.model)
    first = [timed_update(ours) for _ in range(3)]
    seconds = median_seconds(ours.update, ours.device, times)
    return {
        "compiled: s": seconds,
        "compiled: s of the first three": ", ".join(f"{value:.1f}" for value in first),
        "compiled: times as fast": eager_seconds / seconds,
    }


def median_seconds(work: Callable[[], Any], device: Any, times: int) -> float:
    """The median of so many timings."""
    from training import timed

    return sorted(timed(work, device) for _ in range(times))[times // 2]


def peak_of_gpu() -> float | None:
    """Operations a second in bfloat16 of the first GPU, by its maker; None where its name is not known."""
    import torch

    name = torch.cuda.get_device_name()
    rates = [rate for key, rate in PEAK.items() if key in name]
    return rates[0] * 1e12 if rates else None


def small_update(size: str, folder: str) -> dict[str, Any]:
    """An update of 64 unrelated examples of about 230 tokens with AdamW: seconds, rates, and where its time goes.

    Each timed update has lengths of its own, as in a run; the first three are not timed. The kernels (on a CPU the
    operators) with the counts and seconds of an update are written to `folder`.
    """
    import torch
    from training import Case, Ours, timed

    times = 8 if size == "135m" else 2
    case = Case(size, 0, (80, 180), (50, 150), 64, 64, "adamw", "") if size == "135m" else Case(
        size, 0, (10, 20), (10, 20), 8, 8, "adamw", "")  # fmt: skip
    ours = Ours(case, (times + 6) * case.batch)
    ours.trainer.recompute = False
    first = [timed(ours.update, ours.device) for _ in range(3)]
    rows = [timed(ours.update, ours.device) for _ in range(times)]
    seconds = sorted(rows)[times // 2]
    completed = sum(len(tokens) for _, tokens in ours.sequences) / ours.batches
    figures: dict[str, Any] = {
        "s": seconds, "s, longest": max(rows), "s of the first three": ", ".join(f"{one:.2f}" for one in first),
        "completion tokens/s": completed / seconds, "tokens/s": ours.tokens / ours.batches / seconds,
    }  # fmt: skip

    def optimizer() -> None:
        ours.trainer.clip(1.0)
        ours.trainer.optimizer.step()

    figures["AdamW and clipping s"] = median_seconds(optimizer, ours.device, times)
    if ours.device.type == "cuda":
        figures["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        if (peak := peak_of_gpu()) is not None:
            figures["MFU %"] = 100 * ours.operations() / (seconds * peak)
    figures |= anatomy(ours, seconds, Path(folder) / f"update-{size}-kernels.json")
    if ours.device.type == "cuda":  # on a CPU to compile takes minutes and tells nothing
        figures |= compiled(ours, seconds, times)
        figures["compiled: completion tokens/s"] = completed / figures["compiled: s"]
        again = anatomy(ours, figures["compiled: s"], Path(folder) / f"update-{size}-compiled-kernels.json")
        figures |= {f"compiled: {key}": value for key, value in again.items()}
    return {key: rounded(value) for key, value in figures.items()}


LAUNCHES = re.compile(r"cu(da)?LaunchKernel")


def anatomy(ours: Any, seconds: float, path: Path, updates: int = 3) -> dict[str, Any]:
    """Operations and launches of an update, the share of `seconds` in kernels, and the ten most expensive ones."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    cuda = ours.device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiled:
        for _ in range(updates):
            ours.update()
        if cuda:
            torch.cuda.synchronize()
    operators, kernels, launches = [], [], 0
    for event in profiled.key_averages():
        if event.device_type == DeviceType.CUDA:
            if not event.is_user_annotation:
                kernels.append((event.self_device_time_total, event.count, event.key))
        elif event.key.startswith("aten::"):
            operators.append((event.self_cpu_time_total, event.count, event.key))
        elif LAUNCHES.match(event.key):
            launches += event.count
    figures: dict[str, Any] = {"operations": sum(count for _, count, _ in operators) // updates}
    for name, operator in {"casts": "aten::_to_copy", "transposes": "aten::t"}.items():
        figures[name] = sum(count for _, count, key in operators if key == operator) // updates
    rows = sorted(kernels if cuda else operators, reverse=True)
    if cuda:
        busy = sum(microseconds for microseconds, _, _ in kernels) / 1e6 / updates
        figures |= {"launches": launches // updates, "kernels": sum(count for _, count, _ in kernels) // updates}
        figures["% of the time in kernels"] = 100 * busy / seconds
    lines = [
        {"ms": round(microseconds / 1e3 / updates, 3), "times": count / updates, "name": key}
        for microseconds, count, key in rows
    ]
    path.write_text(json.dumps(lines, indent=1) + "\n")
    whole = sum(line["ms"] for line in lines)
    for number, line in enumerate(lines[:10], 1):
        share = f"{line['ms']:.2f} ms ({100 * line['ms'] / whole:.0f} %) in {line['times']:.0f}"
        figures[f"{number}."] = f"{short_name(line['name'])}: {share}"
    return figures


def short_name(kernel: str) -> str:
    """A kernel's name without its return type, namespaces and what follows 70 characters."""
    return re.sub(r"\b(void|at::native::|at::|cutlass::)\s*", "", kernel)[:70]


def trl(case: str) -> dict[str, Any]:
    """TRL's SFTTrainer and our update, turn by turn, by a case of benchmarks/training.py."""
    import training

    options = argparse.Namespace(updates=6, ours_only=False, peak_tflops=None)
    result = training.run(case, training.CASES[case], options)
    figures: dict[str, Any] = {}
    for side in ("ours", "trl"):
        line = result[side]
        figures |= {f"{side}: s": line["seconds"], f"{side}: tokens/s": line["tokens_per_second"]}
        figures[f"{side}: GiB"] = line["peak_bytes"] / 2**30
    figures |= {"TRL's time / ours": result["speed_ratio"], "our memory / TRL's": result["memory_ratio"]}
    return {key: round(value, 4) for key, value in figures.items()}


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
    from topr_exp.sampling.generation import sample_completions
    from topr_exp.store import Store

    began = time.monotonic()
    sampler.prepare(policy, max(map(len, questions.prompts)) + sampler.config.max_new_tokens)
    sampler.sample(policy, [prompt.tolist() for prompt in questions.prompts[:2]], 1, (0,), questions.stop)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as store, Utilization() as watch:
        rollouts = sample_completions(sampler, policy, questions, n, seed=0, store=Store(Path(store)))
    seconds = time.monotonic() - started
    assert rollouts.stored is not None
    found = {
        "s of the engine's start": round(started - began, 1),
        "tokens/s": round(rollouts.stored.tokens_sampled / seconds, 1),
    }
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
    "small_update": small_update,
    "trl": trl,
    "head": head,
    "gathers": gathers,
    "sampling": sampling,
}

if __name__ == "__main__":
    step, answer, *arguments = sys.argv[1:]
    found = STEPS[step](*arguments)
    Path(answer).write_text(json.dumps(found) + "\n")
