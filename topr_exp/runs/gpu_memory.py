"""What a run holds on a GPU at the least, so that one that is too small is told before weights are loaded.

Counted are weights, gradients and the optimizer's state, whose sizes are known. Activations, keys and values and what
kernels need come on top (docs/performance.md has simulated figures), so a run that passes may still run out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topr_exp.models import files
from topr_exp.models.loading import model_folder
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config

GIB = 2**30
MASTER = 4  # bytes of a weight and of its gradient: float32
ADAMW = 8  # bytes of AdamW's state a weight; Adafactor's is small
CAST = 2  # bytes of a weight in bfloat16, which transformers' generation keeps beside the master


@dataclass(frozen=True)
class Demand:
    """A stage of a run, the GiB that it holds at once on one GPU, and the settings that lower it."""

    stage: str
    parts: dict[str, float]
    way_out: str

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def demands(
    weights: int, *, adamw: bool, shards: int, reference: str | None, casts: bool, frozen: int | None = None
) -> list[Demand]:
    """What a model of so many weights needs in each stage.

    shards: processes among which training divides the model. reference: None, `scored` (before training) or `kept`
    (in memory while training). casts: the sampler holds a second copy of the weights in bfloat16. frozen: bytes of a
    weight where an adapter alone is trained, whose own are not counted.
    """
    gib = weights / GIB
    if frozen is not None:
        return frozen_demands(frozen * gib, shards, reference)
    sampling = {"weights": MASTER * gib} | ({"their cast to bfloat16": CAST * gib} if casts else {})
    training = {"weights": MASTER * gib / shards, "gradients": MASTER * gib / shards}
    ways = ["cluster.processes=2 or more with cluster.parallel=fsdp" if shards == 1 else "more processes"]
    if adamw:
        training["AdamW's state"] = ADAMW * gib / shards
        ways.insert(0, "optim=paper (Adafactor)")
    found = [Demand("sampling", sampling, "take sampler=vllm" if casts else "take a smaller model or a larger GPU")]
    if reference is not None:
        both = {"weights": MASTER * gib, "reference model": MASTER * gib}
        found.append(Demand("scoring", both, "take an algorithm without a reference model"))
    if reference == "kept":
        training["reference model"] = MASTER * gib
    return [*found, Demand("training", training, " or ".join(ways))]


def frozen_demands(weights: float, shards: int, reference: str | None) -> list[Demand]:
    """The same of a model whose weights, of so many GiB, have neither gradients nor an optimizer's state."""
    larger = "take a smaller model, a larger GPU or model.dtype=bfloat16"
    second = {"reference model": weights} if reference is not None else {}
    training = {"weights": weights / shards} | (second if reference == "kept" else {})
    return [
        Demand("sampling", {"weights": weights}, larger),
        Demand("scoring", {"weights": weights} | second, "leave model.reference out"),
        Demand("training", training, larger),
    ]


def refuse_shortage(model: str, needed: list[Demand], free: float) -> None:
    """Raise ConfigError for the stage that needs most if it needs more than the `free` GiB."""
    most = max(needed, key=lambda demand: demand.total)
    if most.total <= free:
        return
    parts = ", ".join(f"{name} {gib:.1f}" for name, gib in most.parts.items())
    raise ConfigError(
        f"model={model}: {most.stage} needs {most.total:.1f} GiB on a GPU and more for activations ({parts}), and "
        f"{free:.1f} GiB are free; {most.way_out}"
    )


def check_gpu_memory(config: Config, processes: int) -> None:
    """The same for a run's settings, where it computes on a GPU; the model is fetched from the hub, and not loaded."""
    import torch

    if config.cluster.device.name == "cpu" or not torch.cuda.is_available():
        return
    weights = files.weight_count(model_folder(config.model.path, config.model.revision))
    if weights is None:
        return  # loading says what is wrong with the folder
    kept = "vocab_kl" in config.algo.needs or config.schedule.prompts is not None
    lora, rounded = config.model.lora is not None, config.model.dtype.name != "float32"
    has_reference = bool({"ref_logp", "vocab_kl"} & config.algo.needs)
    if lora and config.model.reference is None:
        has_reference = False  # it is the model with its adapter off
    needed = demands(
        weights,
        adamw=config.optim.name.name == "adamw",
        shards=shards_of(config, weights, processes),
        reference=("kept" if kept else "scored") if has_reference else None,
        casts=config.sampler.name == "hf" and rounded,
        frozen=(CAST if rounded else MASTER) if lora else None,
    )
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # ours already, and given back on demand
    refuse_shortage(config.model.name, needed, (torch.cuda.mem_get_info()[0] + unused) / GIB)


def shards_of(config: Config, weights: int, processes: int) -> int:
    """Among how many processes training divides the model."""
    from topr_exp.training.parallel import chosen

    parallel = config.cluster.parallel
    kind = chosen(parallel.name if parallel is not None else None, weights)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return {"ddp": 1, "fsdp": processes, "hsdp": local}[kind]
