"""Checkpoints of a run in training: atomic folders that are checked before they are trusted.

What is trained is in them, with LoRA the adapter alone. Where every process has all weights, process 0 writes them
(`model.safetensors`, `optimizer.pt`). Where they are sharded, every process writes its own rows (`shards`). A run may
go on from either, in any number of processes.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file, save_model

from topr_exp.models.adapter import is_frozen, trained_weights
from topr_exp.runtime import distributed
from topr_exp.runtime.files import find_damage, new_folder, write_checksums, write_json
from topr_exp.training import shards
from topr_exp.training.shards import WHOLE as WEIGHTS

KEEP = 2  # the newest, and the one before it in case the newest turns out to be damaged
log = logging.getLogger(__name__)


def save(
    folder: Path,
    step: int,
    model: Any,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    extra: dict[str, bytes],
) -> None:
    """Write `folder`/step-N with weights, optimizer, `state` and the files `extra`; only the last two are kept.

    Every process of the run has to call it.
    """
    path = folder / f"step-{step:08d}"
    if not shards.is_sharded(model):
        if distributed.is_main_process():
            with new_folder(path) as target:
                save_weights(model, target / WEIGHTS)
                with (target / "optimizer.pt").open("wb") as file:  # torch would not say why it can't be written
                    torch.save(optimizer.state_dict(), file)
                write_state(target, state, extra)
    elif distributed.is_main_process():
        with new_folder(path) as target:
            write_state(target, state, extra, shards.save(distributed.broadcast(target), model, optimizer))
    else:
        shards.save(distributed.broadcast(path), model, optimizer)
    if distributed.is_main_process():
        there = sorted(folder.glob("step-????????"))
        later = [each for each in there if each > path]  # was found damaged when the run went on from an earlier one
        for old in [*later, *[each for each in there if each <= path][:-KEEP]]:
            shutil.rmtree(old, ignore_errors=True)
    distributed.barrier()


def write_state(
    target: Path, state: dict[str, Any], extra: dict[str, bytes], known: dict[str, str] | None = None
) -> None:
    """Write the state, the files `extra`, and the checksums of all files there; those that are `known` as given."""
    write_json(target / "state.json", state)
    for name, content in extra.items():
        (target / name).write_bytes(content)
    write_checksums(target, known)


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], Path] | None:
    """Restore the newest whole checkpoint below `folder`; return its state and folder, or None when there is none.

    Weights are read by safetensors, the optimizer with weights_only: nothing in a checkpoint can run code. Every
    process of the run has to call it.
    """
    for path in distributed.broadcast(sorted(folder.glob("step-????????"), reverse=True)):
        share = slice(distributed.rank(), None, distributed.world_size())  # the processes share the files among them
        faults = distributed.all_gather(find_damage(path, part=share))
        if fault := next(filter(None, faults), None):
            if distributed.is_main_process():
                log.warning("%s is damaged (%s) and is skipped", path, fault)
            continue
        if shards.is_sharded(model) or not (path / WEIGHTS).exists():
            shards.load(path, model, optimizer)
        else:
            load_weights(model, path / WEIGHTS)
            optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True, map_location="cpu"))
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return state, path
    return None


def save_weights(model: Any, path: Path) -> None:
    """Write what is trained of a model, all or its adapter."""
    if is_frozen(model):
        save_file({name: weight.detach() for name, weight in trained_weights(model)}, path)
    else:
        save_model(model, str(path))


def load_weights(model: Any, path: Path) -> None:
    """Read what `save_weights` wrote."""
    if not is_frozen(model):
        load_model(model, str(path))
        return
    stored = load_file(path)
    with torch.no_grad():
        for name, weight in trained_weights(model):
            weight.copy_(stored[name])
