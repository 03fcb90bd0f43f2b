"""The sampler that a model's YAML takes on this machine: vLLM where it can sample on a GPU, else transformers."""

import importlib.util
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

DRIVER = Path("/proc/driver/nvidia/version")  # NVIDIA's driver has it


def why_not_vllm(gpu_elsewhere: bool = False) -> str | None:
    """Say what vLLM lacks to sample here; None where it lacks nothing. gpu_elsewhere: a job runs where a GPU is."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed"
    if not gpu_elsewhere and not DRIVER.exists():
        return "no GPU is seen"
    return None


def sampler_here(*, _root_: Any) -> str:
    """`${sampler_here:}` in the defaults list of a model's YAML: hf or vllm.

    _root_: the choices of the groups. A job of another cluster than `local` is taken to have a GPU.
    """
    gpu_elsewhere = OmegaConf.select(_root_, "cluster") != "local"
    if why_not_vllm(gpu_elsewhere) is None:
        return "vllm"
    return "hf"


def by_sampler(hf: Any, vllm: Any, *, _root_: Any) -> Any:
    """`${by_sampler:HF,VLLM}` in a YAML: the first, or the second where vLLM samples."""
    if OmegaConf.select(_root_, "sampler.name") == "vllm":
        return vllm
    return hf
