"""Tapered Off-Policy REINFORCE (arXiv 2503.14286) as an experiment framework; start reading at `pipeline.py`."""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topr_exp.api import (
        compare_runs,
        compose,
        grade_answers,
        load_policy,
        loss,
        plan_runs,
        prompt_ids,
        read_completions,
        read_config,
        read_curves,
        read_runs,
        run,
        run_sweep,
        settings_by_key,
    )  # fmt: skip
    from topr_exp.composition.training_set import baseline_for
    from topr_exp.config.settings import Config
    from topr_exp.runs.plan import Job
    from topr_exp.runtime.exit_status import exit_status
    from topr_exp.training.example_scores import example_gradients, loss_coefficients, score_completions
    from topr_exp.training.own_loop import batch_from_logits, completion_logprobs
    from topr_exp.types import Batch, ConfigError, PairBatch, TOPRError

__all__ = [
    "Batch", "Config", "ConfigError", "Job", "PairBatch", "TOPRError", "baseline_for", "batch_from_logits",
    "compare_runs", "completion_logprobs", "compose", "example_gradients", "exit_status", "grade_answers",
    "load_policy", "loss", "loss_coefficients", "plan_runs", "prompt_ids", "read_completions", "read_config",
    "read_curves", "read_runs", "run", "run_sweep", "score_completions", "settings_by_key",
]  # fmt: skip

MODULES = {  # of public names; all others are in `api`
    "types": ("Batch", "ConfigError", "PairBatch", "TOPRError"),
    "composition.training_set": ("baseline_for",),
    "config.settings": ("Config",),
    "runs.plan": ("Job",),
    "runtime.exit_status": ("exit_status",),
    "training.example_scores": ("example_gradients", "loss_coefficients", "score_completions"),
    "training.own_loop": ("batch_from_logits", "completion_logprobs"),
}

# torch.cuda.is_available() then counts GPUs without taking one, so that each process of a run can still choose its own.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# OpenMP's threads wait for each other by spinning, for milliseconds: on cores that others use too that takes five times
# the time of the computation. After a few turns they sleep instead; the results are the same. (Read when torch loads.)
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = next((module for module, names in MODULES.items() if name in names), "api")
    globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return globals()[name]


def leave_out_current_folder() -> None:
    """Have no file of the current folder stand in for a library, here and in the processes that this one starts.

    Being last on `sys.path` is not enough: plugins (hydra_plugins, entry points) are taken from all of it.
    """
    here = os.getcwd()
    if here != os.path.dirname(__path__[0]):  # the package's home, where it may be found in no other way
        sys.path[:] = [path for path in sys.path if path not in ("", here)]
        os.environ["PYTHONSAFEPATH"] = "1"


def import_own(module: str, *, runs_here: bool = True) -> ModuleType:
    """Import a module that the settings name: of this package, installed, or else a file of the current folder.

    runs_here: raise ImportError where its file changed since: the old code would run under the new file's hash.
    """
    own = not module.startswith(f"{__name__}.")
    if own and not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    found = importlib.import_module(module)
    if own and runs_here and found.__file__ is not None:
        with open(found.__file__, "rb") as file:
            content = file.read()
        if vars(found.__spec__).setdefault("content", content) != content:  # a reloaded module has another spec
            raise ImportError(f"{found.__file__} has changed since this process imported it; start a new one")
    return found


if sys.argv[:1] == ["-m"]:  # python -m looks for a command of ours, and nothing heavy is imported yet
    leave_out_current_folder()
