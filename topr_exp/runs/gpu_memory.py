"""What a run holds on a GPU at the least, so that one that is too small is told before weights are loaded.

Counted is what is known before: weights, gradients, the optimizer's state, what a sampler holds beside them.
Activations and what kernels need come on top (docs/performance.md has simulated figures), so a run that passes may
still run out.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topr_exp.config.sampler import VLLMConfig
from topr_exp.models import files
from topr_exp.models.loading import model_folder
from topr_exp.runs.sampler_memory import CAST, GIB, MASTER, Asked, Beside, beside
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from topr_exp.config.model import ModelConfig
    from topr_exp.config.settings import Config
    from topr_exp.runs.benchmark import Benchmark

ADAMW = 8  # bytes of AdamW's state a weight; Adafactor's is small
LARGER = "a smaller model or a larger GPU"


@dataclass(frozen=True)
class Demand:
    """A stage of a run, the GiB that it holds at once on one GPU, and the settings that lower it."""

    stage: str
    parts: dict[str, float]
    way_out: str

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Training:
    """What decides how much training holds.

    shards: processes among which it divides the model. reference: None, `scored` (before training) or `kept` (in
    memory while training). between: it samples between updates, beside what it keeps. engine_stays: while it trains.
    """

    adamw: bool = False
    shards: int = 1
    reference: str | None = None
    between: bool = False
    engine_stays: bool = False


def demands(
    weights: int, training: Training | None, *, frozen: int | None = None, sampler: Beside | None = None
) -> list[Demand]:
    """What a model of so many weights needs in each stage; of one that is not trained (None), to sample.

    frozen: bytes of a weight where an adapter alone is trained, whose own are not counted.
    """
    gib, sampler = weights / GIB, sampler or Beside()
    whole = (MASTER if frozen is None else frozen) * gib
    larger = f"take {LARGER}" if frozen != MASTER else f"take model.dtype=bfloat16, {LARGER}"
    sampling = {"weights": whole} | sampler.parts
    if training is None:
        return [Demand("sampling", sampling, ways(*sampler.ways, larger))]
    kept, lower = kept_by(training, gib, whole, frozen is not None)
    shard = {"weights": whole / training.shards}
    found = [Demand("sampling", sampling, ways(*sampler.ways, larger))]
    if training.between:
        parts = {"weights": whole} | (sampler.parts if sampler.engine else {}) | kept
        parts |= {"shard in training": shard["weights"]} if training.shards > 1 else {}
        found.append(Demand("sampling between updates", parts, ways(*sampler.ways, *lower, larger)))
    if training.reference is not None:
        away = "take an algorithm without a reference model" if frozen is None else "leave model.reference out"
        found.append(Demand("scoring", {"weights": whole, "reference model": whole}, away))
    gradients = {"gradients": MASTER * gib / training.shards} if frozen is None else {}
    stays, asleep = (sampler.parts, ["sampler.sleep=true"]) if training.engine_stays else ({}, [])
    more = "cluster.processes=2 or more with cluster.parallel=fsdp" if training.shards == 1 else "more processes"
    return [*found, Demand("training", shard | gradients | kept | stays, ways(*asleep, *lower, more, larger))]


def kept_by(training: Training, gib: float, whole: float, frozen: bool) -> tuple[dict[str, float], list[str]]:
    """What training keeps from update to update beside weights, and what lowers it."""
    kept, lower = {}, []
    if training.adamw and not frozen:
        kept["AdamW's state"] = ADAMW * gib / training.shards
        lower.append("optim=paper (Adafactor)")
    if training.reference == "kept":
        kept["reference model"] = whole
        lower.append("an algorithm without a reference model")
    return kept, lower


def ways(*given: str) -> str:
    """What helps, in words."""
    return ", or ".join(given)


def refuse_shortage(model: str, needed: list[Demand], free: float) -> None:
    """Raise ConfigError for the stage that needs most if it needs more than the `free` GiB.

    model: as it was set, `model=NAME`.
    """
    most = max(needed, key=lambda demand: demand.total)
    if most.total <= free:
        return
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in most.parts.items())
    raise ConfigError(
        f"{model}: {most.stage} needs {most.total:.1f} GiB on a GPU and more for activations ({parts}), and "
        f"{free:.1f} GiB are free; {most.way_out}"
    )


# ---- of a run's settings


def check_run(config: Config, benchmark: Benchmark, processes: int) -> None:
    """Refuse a run whose policy has no room on the GPU; its problems are known, its weights are not loaded yet."""
    data, rounds, lora = config.data, config.schedule.prompts is not None, config.model.lora
    kept = "vocab_kl" in config.algo.needs or rounds
    reference = bool({"ref_logp", "vocab_kl"} & config.algo.needs)
    if lora is not None and config.model.reference is None:
        reference = False  # it is the model with its adapter off
    asked = [Asked("data.eval_n", benchmark.sets.test, data.eval_n)]
    if data.completions is None or config.compose.mix is not None:
        asked.append(Asked("data.n", benchmark.sets.train[: config.schedule.prompts], data.n))
    training = Training(
        adamw=config.optim.name.name == "adamw",
        shards=processes,
        reference=("kept" if kept else "scored") if reference else None,
        between=rounds or config.evaluation.every is not None,
        engine_stays=rounds and isinstance(config.sampler, VLLMConfig) and not config.sampler.sleep,
    )
    check(f"model={config.model.name}", config, config.model, benchmark, asked, training)


def check_evaluation(config: Config, benchmark: Benchmark) -> None:
    """The same of a model that is evaluated and not trained."""
    asked = [Asked("data.eval_n", benchmark.sets.test, config.data.eval_n)]
    check(f"model={config.model.name}", config, config.model, benchmark, asked, None)


def check_solver(config: Config, benchmark: Benchmark) -> None:
    """The same of the model whose solutions are verified, which is alone on the GPU."""
    task, sets = config.task, benchmark.sets
    asked = [
        Asked("task.test_solutions", sets.test, task.test_solutions or 0),
        Asked("task.solutions", sets.train, task.solutions or 0),
    ]
    check(f"task.solver={task.solver}", config, config.solver, benchmark, asked, None)


def check(
    name: str,
    config: Config,
    model: ModelConfig,
    benchmark: Benchmark,
    asked: Sequence[Asked],
    training: Training | None,
) -> None:
    """Refuse a model, which is fetched from the hub and not loaded, for a GPU that is too small for it."""
    gc.collect()  # a solver that is done with: frames of its loading may hold it in a circle
    free = free_gib(config.cluster.device.name)
    if free is None:
        return
    folder = model_folder(model.path, model.revision)
    weights = files.weight_count(folder)
    if weights is None:
        return  # loading says what is wrong with the folder
    if training is not None:
        training = dataclasses.replace(training, shards=shards_of(config, weights, training.shards))
    precision = CAST if model.dtype.name != "float32" else MASTER
    sampler = beside(weights, folder, model, config.sampler, benchmark.prompter, asked)
    needed = demands(weights, training, frozen=precision if model.lora is not None else None, sampler=sampler)
    refuse_shortage(name, needed, free)


def free_gib(device: str) -> float | None:
    """GiB of this process' GPU that a model could take; None where it computes on none."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return None
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # ours already, and given back on demand
    return (torch.cuda.mem_get_info()[0] + unused) / GIB


def shards_of(config: Config, weights: int, processes: int) -> int:
    """Among how many processes training divides the model."""
    from topr_exp.training.parallel import chosen

    parallel = config.cluster.parallel
    kind = chosen(parallel.name if parallel is not None else None, weights)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return {"ddp": 1, "fsdp": processes, "hsdp": local}[kind]
