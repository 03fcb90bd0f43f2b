"""Checkpoints of a run in training: atomic folders that are checked before they are trusted.

A checkpoint holds what is trained (with LoRA the adapter alone) and the optimizer's state by rows: where weights are
sharded each process writes the rows that it has, else process 0 writes all. Each process reads the rows that it needs,
so a run goes on in any number of processes. `part-00001-of-00004.safetensors` holds tensors named `weight/NAME` and
`KEY/NAME` (KEY of the optimizer's state). What is the same on every process is in the first file alone.

Not torch.distributed.checkpoint: it reads by pickle, which can run code, and holds all twice more to write safetensors.
"""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from topr_exp.models.adapter import trained_weights
from topr_exp.runtime import distributed
from topr_exp.runtime.checksums import file_digest, find_damage, write_checksums
from topr_exp.runtime.files import atomic_folder, disk_errors, list_files, sync
from topr_exp.runtime.terminal import warn
from topr_exp.training.optimizers import Adafactor, follows_rows, local_part, sharding_dimension

KEEP = 2  # the newest, and the one before it in case the newest turns out to be damaged
WEIGHT = "weight"


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
    path, leads = folder / f"step-{step:08d}", distributed.is_main_process()
    with atomic_folder(path) if leads else disk_errors(f"write {path}") as target:
        checksums = write_rows(distributed.broadcast(target or path), model, optimizer)
        if target is not None:
            for name, content in {**extra, "state.json": json.dumps(state).encode()}.items():
                (target / name).write_bytes(content)
            write_checksums(target, checksums)
    if leads:
        there = checkpoints(folder)
        later = [each for each in there if each > path]  # was found damaged when the run went on from an earlier one
        for old in [*later, *[each for each in there if each <= path][:-KEEP]]:
            shutil.rmtree(old, ignore_errors=True)
    distributed.barrier()


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], Path] | None:
    """Restore the newest whole checkpoint below `folder`; return its state and folder, or None when there is none.

    Read by safetensors: nothing in a checkpoint can run code. Every process of the run has to call it.
    """
    for path in distributed.broadcast(checkpoints(folder)[::-1]):
        share = slice(distributed.rank(), None, distributed.world_size())  # the processes share the files among them
        faults = distributed.all_gather(find_damage(path, part=share))
        if fault := next(filter(None, faults), None):
            warn(f"{path} is damaged ({fault}) and is skipped")
            continue
        with disk_errors(f"read {path}"):
            read_rows(path, model, optimizer)
        with disk_errors(f"read {path}"):
            return json.loads((path / "state.json").read_text(encoding="utf-8")), path
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints below a folder, the oldest first; TOPRError where it can't be read."""
    with disk_errors(f"read {folder}"):
        return list_files(folder, "step-????????") if folder.exists() else []


def place_of(weight: Tensor) -> tuple[int, int, bool]:
    """The part of a weight's rows that this process holds, of how many, and whether this process writes it."""
    if not isinstance(weight, DTensor):
        return 0, 1, distributed.is_main_process()
    mesh, along = weight.device_mesh, sharding_dimension(weight)
    copies = [mesh.get_local_rank(i) for i in range(mesh.ndim) if i != along]  # on other machines
    return mesh.get_local_rank(along), mesh.size(along), not any(copies)


def write_rows(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Write this process's rows of what is trained; returns the checksums of the files of all processes."""
    index, parts, writes = place_of(next(model.parameters()))
    written: dict[str, str] = {}
    if writes:
        tensors: dict[str, Tensor] = {}
        for name, weight in trained_weights(model):
            for key, value in {WEIGHT: weight.detach(), **optimizer.state.get(weight, {})}.items():
                value = torch.as_tensor(value)
                if index == 0 or follows_rows(key, value.ndim, weight):
                    tensors[f"{key}/{name}"] = local_part(value).contiguous().cpu()
        path = folder / f"part-{index + 1:05d}-of-{parts:05d}.safetensors"
        save_file(tensors, path)
        sync(path)
        written[path.name] = file_digest(path)
    return {name: digest for each in distributed.all_gather(written) for name, digest in each.items()}


def read_rows(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Restore the rows that this process holds, whichever processes wrote them."""
    files = [safe_open(path, framework="pt") for path in list_files(folder, "part-*.safetensors")]
    keys = defaultdict(list)
    for full in files[0].keys():  # noqa: SIM118 (it is no dictionary)
        key, name = full.split("/", 1)
        keys[name].append(key)

    for name, weight in trained_weights(model):
        values = {key: stored_rows(files, key, name, weight) for key in keys[name]}
        with torch.no_grad():
            local_part(weight).copy_(values.pop(WEIGHT))
        optimizer.state[weight] = {key: as_made(value, weight, optimizer) for key, value in values.items()}


def stored_rows(files: list[Any], key: str, name: str, weight: Tensor) -> Tensor:
    """This process's rows of a tensor: processes and files have as many rows each, the last ones fewer or none."""
    full, rows, (index, processes, _) = f"{key}/{name}", weight.shape[0], place_of(weight)
    if not follows_rows(key, len(files[0].get_slice(full).get_shape()), weight):
        return files[0].get_tensor(full)
    own, size, parts = -(-rows // processes), -(-rows // len(files)), [file.get_slice(full) for file in files]
    first, last = min(index * own, rows), min((index + 1) * own, rows)
    spans = [(first - i * size, min(last - i * size, part.get_shape()[0])) for i, part in enumerate(parts)]
    return torch.cat([part[max(start, 0) : max(end, 0)] for part, (start, end) in zip(parts, spans, strict=True)])


def as_made(value: Tensor, weight: Tensor, optimizer: torch.optim.Optimizer) -> Any:
    """An entry of the optimizer's state as the type that the optimizer itself gives it."""
    if value.ndim == 0:
        if not value.is_floating_point():
            return int(value)
        return value.to(weight.device) if optimizer.defaults.get("fused") else value  # the kernel reads AdamW's steps
    value = value.to(weight.device)
    if not isinstance(weight, DTensor) or isinstance(optimizer, Adafactor):
        return value
    shape, stride = weight.shape, weight.stride()
    return DTensor.from_local(value, weight.device_mesh, weight.placements, shape=shape, stride=stride)
