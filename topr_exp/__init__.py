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
        read_problems,
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
    from topr_exp.training.own_loop import batch_from_logits, completion_logprobs, group_fields
    from topr_exp.types import Batch, ConfigError, PairBatch, TOPRError

__all__ = [
    "Batch", "Config", "ConfigError", "Job", "PairBatch", "TOPRError", "baseline_for", "batch_from_logits",
    "compare_runs", "completion_logprobs", "compose", "example_gradients", "exit_status", "grade_answers",
    "group_fields", "load_policy", "loss", "loss_coefficients", "plan_runs", "prompt_ids", "read_completions",
    "read_config", "read_curves", "read_problems", "read_runs", "run", "run_sweep", "score_completions",
    "settings_by_key",
]  # fmt: skip

MODULES = {  # of public names; all others are in `api`
    "types": ("Batch", "ConfigError", "PairBatch", "TOPRError"),
    "composition.training_set": ("baseline_for",),
    "config.settings": ("Config",),
    "runs.plan": ("Job",),
    "runtime.exit_status": ("exit_status",),
    "training.example_scores": ("example_gradients", "loss_coefficients", "score_completions"),
    "training.own_loop": ("batch_from_logits", "completion_logprobs", "group_fields"),
}

__version__ = "0.1.0"

if sys.platform == "win32":
    sys.exit("error: Windows is not supported (locks, signals and the grader's processes are Unix's); use WSL")


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module_name = next((module for module, names in MODULES.items() if name in names), "api")
    value = getattr(importlib.import_module(f"{__name__}.{module_name}"), name)
    globals()[name] = value  # the next time Python does not ask here
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not, for the completion of a prompt."""
    return sorted({*globals(), *__all__})


def prepare_command() -> None:
    """Set what a command and the processes that it starts need before torch loads; `import topr_exp` sets nothing.

    No file of the current folder may stand in for a library. Being last on `sys.path` is not enough: plugins
    (hydra_plugins, entry points) are taken from all of it.
    """
    current_folder = os.getcwd()
    if current_folder != os.path.dirname(__path__[0]):  # the package's home, where it may be found in no other way
        sys.path[:] = [path for path in sys.path if path not in ("", current_folder)]
        os.environ["PYTHONSAFEPATH"] = "1"
    # torch.cuda.is_available() then counts GPUs without taking one, so that each process can still choose its own.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # OpenMP's threads wait for each other by spinning, for milliseconds: on cores that others use too that takes five
    # times the time of the computation. After a few turns they sleep instead; the results are the same.
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


def import_named_module(module: str, *, runs_here: bool = True) -> ModuleType:
    """Import a module that the settings name: of this package, installed, or else a file of the current folder.

    runs_here: raise ImportError where its file changed since: the old code would run under the new file's hash.
    """
    is_users = not module.startswith(f"{__name__}.")
    if is_users and not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    imported = importlib.import_module(module)
    if is_users and runs_here and imported.__file__ is not None:
        with open(imported.__file__, "rb") as file:
            content = file.read()
        # The content at the first import stays with the module's spec, of which a reloaded module has another.
        imported_content = vars(imported.__spec__).setdefault("content", content)
        if imported_content != content:
            raise ImportError(f"{imported.__file__} has changed since this process imported it; start a new one")
    return imported


if sys.argv[:1] == ["-m"]:  # python -m looks for a command of ours, and nothing heavy is imported yet
    prepare_command()
