"""Checkpoints of a run in training: atomic folders that are checked before they are trusted."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model

from topr_exp.files import new_folder, write_json
from topr_exp.store.files import file_digest

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
    """Write `folder`/step-N with weights, optimizer, `state` and the files `extra`; only the last two are kept."""
    with new_folder(folder / f"step-{step:08d}") as target:
        save_model(model, str(target / "model.safetensors"))
        with (target / "optimizer.pt").open("wb") as file:  # a file of Python's says why it can't be written
            torch.save(optimizer.state_dict(), file)
        write_json(target / "state.json", state)
        for name, content in extra.items():
            (target / name).write_bytes(content)
        digests = {path.name: file_digest(path) for path in sorted(target.iterdir())}
        write_json(target / "checksums.json", digests)
    for old in sorted(folder.glob("step-????????"))[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], Path] | None:
    """Restore the newest whole checkpoint below `folder`; return its state and folder, or None when there is none.

    Weights are read by safetensors, the optimizer with weights_only: nothing in a checkpoint can run code.
    """
    for path in sorted(folder.glob("step-????????"), reverse=True):
        if fault := damage(path):
            log.warning("%s is damaged (%s) and is skipped", path, fault)
            continue
        load_model(model, str(path / "model.safetensors"))
        optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True, map_location="cpu"))
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return state, path
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None when it is whole."""
    try:
        digests = json.loads((path / "checksums.json").read_text(encoding="utf-8"))
        for name, digest in digests.items():
            if file_digest(path / name) != digest:
                return f"{name} has another checksum"
    except (OSError, ValueError) as error:
        return str(error)
    return None
