"""Measurements of gpu_check.py, each in a separate process: STEP ANSWER.json [ARGUMENTS]."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scripts.gpu_check_model import write_model
from topr_exp.runtime import distributed

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

# TFLOP/s in bfloat16, dense, by the makers; the first name that fits.
PEAK_TFLOPS = {"H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200 NVL": 835, "H200": 989, "A100": 312, "B200": 2250}
UPDATE_LENGTHS = {"8b": (900, 100, 200), "100m": (900, 100, 20), "small": (90, 10, 20)}  # shared, question, completion
Figures = dict[str, Any]


def machine(vllm: str | None = None) -> Figures:
    """Describe the machine: GPUs, versions, the commit."""
    import torch
    import transformers

    from topr_exp.sampling.vllm_requirements import check_python
    from topr_exp.types import ConfigError

    try:
        python: str | None = check_python(vllm)
    except ConfigError as error:
        if vllm is not None:
            sys.exit(f"--vllm: {error}")
        python = None
        print(error)
    gpus = torch.cuda.device_count()
    name, memory = "none", 0.0
    if gpus:
        name = torch.cuda.get_device_name()
        memory = round(torch.cuda.mem_get_info()[1] / 2**30, 1)
    figures = {
        "gpus": gpus,
        "GPU": name,
        "GPU memory, GiB": memory,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "sampler": "vllm" if python else "hf (no vLLM was found)",
        "vllm python": python,
        "commit": commit(),
    }
    if gpus:
        figures["attention"] = attention_kernel()
    return figures


def commit() -> str:
    """Return the commit of the checkout; "unknown" without git or in a copy of the files."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return process.stdout.strip() or "unknown"


def attention_kernel() -> str:
    """Name the kernel that torch's attention takes on this GPU for bfloat16 with 128 a head."""
    import torch

    names = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cuDNN"}
    choose: Callable[..., int] = torch._fused_sdp_choice
    query = torch.zeros(1, 8, 128, 128, dtype=torch.bfloat16, device="cuda")
    choice = choose(query, query, query, is_causal=True)
    return names.get(choice, "?")


# ---- updates


def update(size: str, recompute: str, folder: str = "") -> Figures:
    """Seconds and memory of an update of 8 examples after 900 shared tokens, and the share of Adafactor.

    On a GPU then the same with compiled layers, or with a folder the seconds to write a checkpoint there.
    """
    import torch
    from training import Case, UpdateRunner

    shared, question, completion = UPDATE_LENGTHS[size]
    repetitions = 3
    if size == "8b":
        repetitions = 5
    case = Case(
        size,
        prefix=shared,
        prompt=(question, question),
        completion=(completion, completion),
        batch=8,
        micro=8,
        optimizer="adafactor",
    )
    runner = UpdateRunner(case, 16)
    runner.trainer.recompute = recompute == "checkpointing"
    first_seconds = [timed_update(runner) for _ in range(2)]
    seconds = median_seconds(runner.update, runner.device, repetitions)
    distinct_tokens = shared + case.batch * (question + completion)
    figures: Figures = {
        "s": seconds,
        "s of the first two": joined(first_seconds, 2),
        "tokens/s": case.batch * (shared + question + completion) / seconds,
        "distinct tokens/s": distinct_tokens / seconds,
        "Adafactor s": median_seconds(optimizer_step(runner), runner.device, repetitions),
    }
    if runner.device.type == "cuda":
        figures["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        if (peak := peak_of_gpu()) is not None:
            figures["MFU %"] = 100 * operations(runner, distinct_tokens) / (seconds * peak)
    if folder:
        figures["s of a checkpoint"] = checkpoint(runner.trainer, folder)
    elif runner.device.type == "cuda":
        figures |= compiled(runner, seconds, repetitions)
    return {f"{recompute}: {key}": rounded(value) for key, value in figures.items()}


def small_update(size: str, folder: str) -> Figures:
    """Seconds, rates and anatomy of an update of 64 unrelated examples of about 230 tokens with AdamW.

    Each timed update has different lengths, as in a run; the first three are not timed. The kernels (on a CPU the
    operators) with the counts and seconds of an update are written to `folder`.
    """
    import torch
    from training import CASES, UpdateRunner

    repetitions, case = 8, CASES["plain_135m"]
    if size != "135m":
        repetitions = 2
        case = replace(case, model=size, prompt=(10, 20), completion=(10, 20), batch=8, micro=8)
    runner = UpdateRunner(case, (repetitions + 6) * case.batch)
    runner.trainer.recompute = False
    first_seconds = [timed_update(runner) for _ in range(3)]
    all_seconds = [timed_update(runner) for _ in range(repetitions)]
    seconds = sorted(all_seconds)[repetitions // 2]
    completion_tokens = sum(len(tokens) for _, tokens in runner.sequences) / runner.batches
    figures: Figures = {
        "s": seconds,
        "s, longest": max(all_seconds),
        "s of the first three": joined(first_seconds, 2),
        "completion tokens/s": completion_tokens / seconds,
        "tokens/s": runner.tokens / runner.batches / seconds,
        "AdamW and clipping s": median_seconds(optimizer_step(runner), runner.device, repetitions),
    }
    is_cuda = runner.device.type == "cuda"
    if is_cuda:
        figures["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        if (peak := peak_of_gpu()) is not None:
            figures["MFU %"] = 100 * runner.operations() / (seconds * peak)
    figures |= anatomy(runner, seconds, Path(folder) / f"update-{size}-kernels.json")
    if is_cuda:  # on a CPU compiling takes minutes and tells nothing
        figures |= compiled(runner, seconds, repetitions)
        compiled_seconds = figures["compiled: s"]
        figures["compiled: completion tokens/s"] = completion_tokens / compiled_seconds
        compiled_anatomy = anatomy(runner, compiled_seconds, Path(folder) / f"update-{size}-compiled-kernels.json")
        figures |= {f"compiled: {key}": value for key, value in compiled_anatomy.items()}
    return {key: rounded(value) for key, value in figures.items()}


def optimizer_step(runner: Any) -> Callable[[], None]:
    """Return the optimizer's part of an update, clipping included."""

    def step() -> None:
        runner.trainer.clip(1.0)
        runner.trainer.optimizer.step()

    return step


def compiled(runner: Any, eager_seconds: float, repetitions: int) -> Figures:
    """Seconds of updates with compiled layers: the first ones, which compile, and the median of later ones."""
    from topr_exp.training.layers import compile_layers

    compile_layers(runner.policy.model)
    first_seconds = [timed_update(runner) for _ in range(3)]
    seconds = median_seconds(runner.update, runner.device, repetitions)
    return {
        "compiled: s": seconds,
        "compiled: s of the first three": joined(first_seconds, 1),
        "compiled: times as fast": eager_seconds / seconds,
    }


def timed_update(runner: Any) -> float:
    from training import timed

    return float(timed(runner.update, runner.device))


def median_seconds(work: Callable[[], Any], device: Any, repetitions: int) -> float:
    from training import timed

    seconds = [timed(work, device) for _ in range(repetitions)]
    return sorted(seconds)[repetitions // 2]


def joined(seconds: list[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in seconds)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return value


def peak_of_gpu() -> float | None:
    """Return the first GPU's operations a second in bfloat16, by its maker; None where its name is not known."""
    import torch

    gpu = torch.cuda.get_device_name()
    for name, tflops in PEAK_TFLOPS.items():
        if name in gpu:
            return tflops * 1e12
    return None


def operations(runner: Any, tokens: int) -> float:
    """Count an update's operations: 6 for each weight and token, in the output layer each completion token.

    Attention (a few percent) and the recomputation of checkpointing are not counted.
    """
    model = runner.policy.model
    head_weights = model.get_output_embeddings().weight.numel()
    embedding_weights = model.get_input_embeddings().weight.numel()
    layer_weights = model.num_parameters() - head_weights - embedding_weights
    completion_tokens = runner.case.batch * runner.case.completion[0]
    return 6.0 * (layer_weights * tokens + head_weights * completion_tokens)


def checkpoint(trainer: Any, parent: str) -> float:
    """Seconds to write a checkpoint of weights and optimizer, with its checksums."""
    from topr_exp.training import checkpoint as checkpoints

    with tempfile.TemporaryDirectory(dir=parent) as folder:
        start_time = time.monotonic()
        checkpoints.save(Path(folder), trainer.policy.model, trainer.optimizer, {"step": 1}, {})
        return time.monotonic() - start_time


# ---- the anatomy of an update


KERNEL_LAUNCH = re.compile(r"cu(da)?LaunchKernel")


class Row(NamedTuple):
    """A kernel or an operator in a profile."""

    microseconds: float
    calls: int
    name: str


class Profile(NamedTuple):
    """The rows of some updates."""

    operators: list[Row]
    kernels: list[Row]
    launches: int


def profile_updates(runner: Any, updates: int) -> Profile:
    """Profile some updates on the CPU and the GPU."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if runner.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for _ in range(updates):
            runner.update()
        if runner.device.type == "cuda":
            torch.cuda.synchronize()
    operators: list[Row] = []
    kernels: list[Row] = []
    launches = 0
    for event in profiler.key_averages():
        if event.device_type == DeviceType.CUDA:
            if not event.is_user_annotation:
                kernels.append(Row(event.self_device_time_total, event.count, event.key))
        elif event.key.startswith("aten::"):
            operators.append(Row(event.self_cpu_time_total, event.count, event.key))
        elif KERNEL_LAUNCH.match(event.key):
            launches += event.count
    return Profile(operators, kernels, launches)


def anatomy(runner: Any, seconds: float, path: Path, updates: int = 3) -> Figures:
    """Operations and launches of an update, the share of `seconds` in kernels, and the ten most expensive ones.

    All rows of the profile are written to `path`.
    """
    operators, kernels, launches = profile_updates(runner, updates)
    figures: Figures = {
        "operations": count_of(operators) // updates,
        "casts": count_of(operators, "aten::_to_copy") // updates,
        "transposes": count_of(operators, "aten::t") // updates,
    }
    if runner.device.type == "cuda":
        busy_seconds = sum(row.microseconds for row in kernels) / 1e6 / updates
        figures["launches"] = launches // updates
        figures["kernels"] = count_of(kernels) // updates
        figures["% of the time in kernels"] = 100 * busy_seconds / seconds
    lines: list[dict[str, Any]] = []
    for row in sorted(kernels or operators, reverse=True):
        milliseconds = round(row.microseconds / 1e3 / updates, 3)
        lines.append({"ms": milliseconds, "times": row.calls / updates, "name": row.name})
    path.write_text(json.dumps(lines, indent=1) + "\n")
    total = sum(line["ms"] for line in lines)
    for number, line in enumerate(lines[:10], 1):
        percent = 100 * line["ms"] / total
        cost = f"{line['ms']:.2f} ms ({percent:.0f} %) in {line['times']:.0f}"
        figures[f"{number}."] = f"{short_name(line['name'])}: {cost}"
    return figures


def count_of(rows: list[Row], name: str | None = None) -> int:
    """Count the calls of all rows, or of those of a name."""
    return sum(row.calls for row in rows if name in (None, row.name))


def short_name(kernel: str) -> str:
    """Return the first 70 characters of a kernel's name without return type and namespaces."""
    return re.sub(r"\b(void|at::native::|at::|cutlass::)\s*", "", kernel)[:70]


# ---- other frameworks and parts


def trl(case: str) -> Figures:
    """TRL's SFTTrainer and our update, turn by turn, by a case of benchmarks/training.py."""
    import training

    options = argparse.Namespace(updates=6, ours_only=False, peak_tflops=None)
    result = training.run(case, training.CASES[case], options)
    figures: Figures = {}
    for side in ("ours", "trl"):
        figures[f"{side}: s"] = result[side]["seconds"]
        figures[f"{side}: tokens/s"] = result[side]["tokens_per_second"]
        figures[f"{side}: GiB"] = result[side]["peak_bytes"] / 2**30
    figures["TRL's time / ours"] = result["speed_ratio"]
    figures["our memory / TRL's"] = result["memory_ratio"]
    return {key: round(value, 4) for key, value in figures.items()}


def head(size: str) -> Figures:
    """Seconds and memory of output layer and loss for 1,600 completion tokens, in the ways of benchmarks/head.py."""
    import head as heads
    import torch
    from training import LLAMAS

    shape = LLAMAS[size]
    tokens, device = 100, "cpu"
    if size == "8b":
        tokens = 1600
    if torch.cuda.is_available():
        device = "cuda"
    options = argparse.Namespace(tokens=tokens, hidden=shape["hidden_size"], repeats=5, device=device)
    figures = {}
    for row in heads.compare(shape["vocab_size"], options):
        peak_bytes = max(row["peak_bytes"], 0)
        figures[f"{row['head']}: s"] = round(row["seconds"], 5)
        figures[f"{row['head']}: GiB"] = round(peak_bytes / 2**30, 3)
    return figures


GATHERED_BYTES = 256 << 20
GATHERS = 20  # after one that is not timed


def gathers(count: str, parent: str) -> Figures:
    """GB/s at which each of `count` processes, a GPU each, gathers pieces from all as FSDP does."""
    import torch

    processes = int(count)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        torch.multiprocessing.spawn(gather, (processes, folder), nprocs=processes)
        rate = float(Path(folder, "answer").read_text())
    return {"gathers GB/s": rate}


def gather(rank: int, count: int, folder: str) -> None:
    """Gather pieces as one of the processes, by NCCL, or by gloo without GPUs; rank 0 writes the rate."""
    import torch
    import torch.distributed as dist

    is_cuda = torch.cuda.is_available()
    backend, device = "gloo", "cpu"
    if is_cuda:
        backend, device = "nccl", "cuda"
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    piece = torch.ones(GATHERED_BYTES, dtype=torch.uint8, device=device)
    gathered = torch.empty(count * len(piece), dtype=torch.uint8, device=piece.device)
    for step in range(GATHERS + 1):
        if step == 1:  # the first one starts the links
            start_time = time.monotonic()
        dist.all_gather_into_tensor(gathered, piece)
        if is_cuda:
            torch.cuda.synchronize()
    if rank == 0:
        seconds = time.monotonic() - start_time
        received_bytes = GATHERS * (count - 1) * len(piece)
        Path(folder, "answer").write_text(f"{received_bytes / seconds / 1e9:.2f}")
    dist.destroy_process_group()


# ---- sampling


def sampling(folder: str, *overrides: str) -> Figures:
    """Tokens per second of an engine and the GPU's idle time; the memory before, beside and after it."""
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
    max_new_tokens = config.sampler.max_new_tokens
    problems = load_problems(config.data).train
    questions = tokenize_prompts(problems, build_prompter(config.data), policy, max_new_tokens)
    figures: Figures = {"tokens of a prompt": len(questions.prompts[0])}
    sampler = VLLM(config.sampler, Path(folder), False)
    memory_before = free_memory()
    try:
        figures |= rate(sampler, policy, questions, config.data.n, Path(folder))
        memory_beside = free_memory()
        sampler.close()
        figures["s of the engine's second start"] = round(start_seconds(sampler, policy, questions, prompts=1), 1)
    finally:
        sampler.close()
    if memory_before is not None:
        memory = f"{memory_before}, {memory_beside}, {free_memory()}"
        figures["GiB free before the engine, beside it, after it"] = memory
    return figures


def start_seconds(sampler: Any, policy: Any, questions: Any, *, prompts: int) -> float:
    """Seconds of an engine's start, and of a completion of each of the first prompts."""
    start_time = time.monotonic()
    longest_prompt = max(map(len, questions.prompts))
    sampler.prepare(policy, longest_prompt + sampler.config.max_new_tokens)
    first_prompts = [prompt.tolist() for prompt in questions.prompts[:prompts]]
    sampler.sample(policy, first_prompts, 1, (0,), questions.stop)
    return time.monotonic() - start_time


def rate(sampler: Any, policy: Any, questions: Any, n: int, folder: Path) -> Figures:
    """Seconds of an engine's start, and tokens a second that it then samples in several shards."""
    from topr_exp.sampling.generation import sample_completions
    from topr_exp.store import Store

    engine_seconds = start_seconds(sampler, policy, questions, prompts=2)
    start_time = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as store, Utilization() as utilization:
        completions = sample_completions(sampler, policy, questions, n, seed=0, store=Store(Path(store)))
    seconds = time.monotonic() - start_time
    assert completions.stored is not None
    figures = {
        "s of the engine's start": round(engine_seconds, 1),
        "tokens/s": round(completions.stored.tokens_sampled / seconds, 1),
    }
    if (busy_percent := utilization.mean()) is not None:
        figures["% of the time that the GPU idles"] = round(100 - busy_percent, 1)
    return figures


class Utilization:
    """The percentage of time in which kernels run on the first GPU, by nvidia-smi, while the block runs."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115, open until its numbers are read
        self.process: subprocess.Popen[bytes] | None = None  # None without nvidia-smi

    def __enter__(self) -> Utilization:
        gpu = next(iter(distributed.visible_gpus()), "0")
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        command = ["nvidia-smi", "-i", gpu, *query, "-lms", "200"]
        with contextlib.suppress(FileNotFoundError):
            self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def mean(self) -> float | None:
        """Return the mean over the block; None without nvidia-smi."""
        self.log.seek(0)
        percentages = []
        for line in self.log.read().split("\n"):
            if line.strip().isdecimal():
                percentages.append(float(line))
        if not percentages:
            return None
        return sum(percentages) / len(percentages)


def free_memory() -> float | None:
    """Return the GiB of the GPU that no process holds; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free_bytes, _ = torch.cuda.mem_get_info()
    return round(free_bytes / 2**30, 1)


MEASUREMENTS: dict[str, Callable[..., Figures]] = {
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
    measurement, answer, *arguments = sys.argv[1:]
    figures = MEASUREMENTS[measurement](*arguments)
    Path(answer).write_text(json.dumps(figures) + "\n")
