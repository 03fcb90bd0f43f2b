"""A model and its optimizer's state on disk by rows: each process writes those it has, and reads those it needs.

`shard-00001-of-00004.safetensors` holds tensors named `weight/NAME` and `KEY/NAME` (KEY of the optimizer's state);
its metadata say at which row of the whole tensor the file's rows begin. What is the same on every process, such as a
number of steps, is in the first file alone, without such a mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from topr_exp.models.adapter import trained_weights
from topr_exp.runtime import distributed
from topr_exp.runtime.files import disk_errors, flushed_sha256, library_errors
from topr_exp.training.optimizers import Adafactor, follows_rows, local_part, sharding_dimension

WHOLE = "model.safetensors"  # of a checkpoint that one process wrote
WEIGHT = "weight"
Reader = Callable[[str, Tensor, range], dict[str, Tensor]]  # (a weight's name, the weight, rows) -> those rows by key


def is_sharded(model: Any) -> bool:
    """Check that this process holds only a part of each weight."""
    return any(isinstance(weight, DTensor) for weight in model.parameters())


def own_rows(weight: Tensor) -> range:
    """The rows of a weight that this process holds: parts of equal size, the last ones smaller or empty."""
    rows = weight.shape[0]
    if not isinstance(weight, DTensor):
        return range(rows)
    along = sharding_dimension(weight)
    size = -(-rows // weight.device_mesh.size(along))
    first = min(weight.device_mesh.get_local_rank(along) * size, rows)
    return range(first, first + weight.to_local().shape[0])


def place_of(weight: Tensor) -> tuple[int, int, bool]:
    """Which part this process holds, of how many, and whether another machine's process writes the same one."""
    assert isinstance(weight, DTensor)
    mesh, along = weight.device_mesh, sharding_dimension(weight)
    copies = [mesh.get_local_rank(i) for i in range(mesh.ndim) if i != along]
    return mesh.get_local_rank(along), mesh.size(along), any(copies)


def save(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Write this process's rows of what is trained; returns the checksums of the files of all processes."""
    index, parts, is_copy = place_of(next(model.parameters()))
    if is_copy:
        return dict(one for one in distributed.all_gather(("", "")) if one[0])
    tensors: dict[str, Tensor] = {}
    first: dict[str, int] = {}
    for name, weight in trained_weights(model):
        for key, value in {WEIGHT: weight.detach(), **optimizer.state.get(weight, {})}.items():
            value = torch.as_tensor(value)
            by_rows = key == WEIGHT or follows_rows(key, value, weight)
            if by_rows:
                first[f"{key}/{name}"] = own_rows(weight).start
            if by_rows or distributed.is_main_process():
                tensors[f"{key}/{name}"] = local_part(value).contiguous().cpu()
    path = folder / f"shard-{index + 1:05d}-of-{parts:05d}.safetensors"
    with disk_errors(f"write {path}"), library_errors():
        save_file(tensors, path, metadata={"first": json.dumps(first)})
        digest = flushed_sha256(path)
    return dict(one for one in distributed.all_gather((path.name, digest)) if one[0])


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Restore what this process holds of a checkpoint, whichever number of processes wrote it and in which form."""
    whole = (folder / WHOLE).exists()
    read = read_whole(folder, model) if whole else read_shards(folder)
    for name, weight in trained_weights(model):
        values = read(name, weight, own_rows(weight))
        with torch.no_grad():
            local_part(weight).copy_(values.pop(WEIGHT))
        optimizer.state[weight] = {key: as_made(value, weight, optimizer) for key, value in values.items()}


def as_made(value: Tensor, weight: Tensor, optimizer: torch.optim.Optimizer) -> Any:
    """An entry of the optimizer's state as the type that the optimizer itself gives it."""
    if value.ndim == 0:
        return value if value.is_floating_point() else int(value)
    value = value.to(weight.device)
    if not isinstance(weight, DTensor) or isinstance(optimizer, Adafactor):
        return value
    shape, stride = weight.shape, weight.stride()
    return DTensor.from_local(value, weight.device_mesh, weight.placements, shape=shape, stride=stride)


def read_shards(folder: Path) -> Reader:
    """A reader of the rows that `save` wrote."""
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("shard-*.safetensors"))]
    firsts: list[dict[str, int]] = [json.loads(file.metadata()["first"]) for file in files]
    keys: dict[str, list[str]] = {}
    for full in files[0].keys():  # noqa: SIM118 (it is no dictionary)
        key, name = full.split("/", 1)
        keys.setdefault(name, []).append(key)

    def stored(full: str, rows: range) -> Tensor:
        if full not in firsts[0]:
            return files[0].get_tensor(full)
        parts = []
        for file, first in zip(files, firsts, strict=True):
            part = file.get_slice(full)
            start, end = rows.start - first[full], rows.stop - first[full]
            parts.append(part[max(start, 0) : max(min(end, part.get_shape()[0]), 0)])
        return torch.cat(parts)

    return lambda name, weight, rows: {key: stored(f"{key}/{name}", rows) for key in keys[name]}


def read_whole(folder: Path, model: Any) -> Reader:
    """A reader of some rows of what one process wrote."""
    weights = safe_open(folder / WHOLE, framework="pt")
    shared = weights.metadata() or {}  # the other name under which a tensor that has two is stored
    state = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu", mmap=True)["state"]
    index = {name: number for number, (name, _) in enumerate(trained_weights(model))}

    def read(name: str, weight: Tensor, rows: range) -> dict[str, Tensor]:
        values = {WEIGHT: weights.get_slice(shared.get(name, name))[rows.start : rows.stop]}
        for key, value in state.get(index[name], {}).items():
            tensor = torch.as_tensor(value)
            values[key] = tensor[rows.start : rows.stop].clone() if follows_rows(key, tensor, weight) else tensor
        return values

    return read
