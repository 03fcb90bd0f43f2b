"""Checkpoints of a run in training: atomic folders that are checked before they are trusted.

Where every process has all weights, process 0 writes them (`model.safetensors`, `optimizer.pt`). Where they are
sharded, every process writes its own rows (`shards`). A run may go on from either, in any number of processes.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model

from topr_exp import world
from topr_exp.files import new_folder, write_json
from topr_exp.store.files import file_digest
from topr_exp.training import shards

KEEP = 2  # the one before the newest, in case that turns out to be damaged
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
    if not shards.sharded(model):
        if world.leads():
            with new_folder(path) as target:
                save_model(model, str(target / "model.safetensors"))
                with (target / "optimizer.pt").open("wb") as file:  # a file of Python's says why it can't be written
                    torch.save(optimizer.state_dict(), file)
                finish(target, state, extra)
    elif world.leads():
        with new_folder(path) as target:
            finish(target, state, extra, shards.save(world.from_leader(target), model, optimizer))
    else:
        shards.save(world.from_leader(path), model, optimizer)
    if world.leads():
        there = sorted(folder.glob("step-????????"))
        later = [each for each in there if each > path]  # was found damaged when the run went on from an earlier one
        for old in [*later, *[each for each in there if each <= path][:-KEEP]]:
            shutil.rmtree(old, ignore_errors=True)
    world.wait()


def finish(target: Path, state: dict[str, Any], extra: dict[str, bytes], known: dict[str, str] | None = None) -> None:
    """Add what is small, and the checksums of all files but those whose checksum is `known`."""
    write_json(target / "state.json", state)
    for name, content in extra.items():
        (target / name).write_bytes(content)
    digests = known or {}
    for path in sorted(target.iterdir()):
        if path.name not in digests:
            digests[path.name] = file_digest(path)
    write_json(target / "checksums.json", digests)


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], Path] | None:
    """Restore the newest whole checkpoint below `folder`; return its state and folder, or None when there is none.

    Weights are read by safetensors, the optimizer with weights_only: nothing in a checkpoint can run code. Every
    process of the run has to call it.
    """
    for path in world.from_leader(sorted(folder.glob("step-????????"), reverse=True)):
        if fault := damage(path):
            if world.leads():
                log.warning("%s is damaged (%s) and is skipped", path, fault)
            continue
        if shards.sharded(model) or not (path / "model.safetensors").exists():
            shards.load(path, model, optimizer)
        else:
            load_model(model, str(path / "model.safetensors"))
            optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True, map_location="cpu"))
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return state, path
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None when it is whole. The processes share the files among them."""
    fault = None
    try:
        digests = json.loads((path / "checksums.json").read_text(encoding="utf-8"))
        for name, digest in list(digests.items())[world.rank() :: world.size()]:
            if file_digest(path / name) != digest:
                fault = f"{name} has another checksum"
                break
    except (OSError, ValueError) as error:
        fault = str(error)
    return next((one for one in world.gather(fault) if one is not None), None)
