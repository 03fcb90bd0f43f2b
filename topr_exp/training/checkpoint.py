"""Checkpoints of a run in training: atomic folders that are checked before they are trusted.

A checkpoint holds what is trained (with LoRA the adapter alone) and the optimizer's state by rows: where weights are
sharded each process writes the rows that it has, else process 0 writes all. Each process reads the rows that it needs,
so a run goes on in any number of processes. `part-00001-of-00004.safetensors` holds tensors named `weight/NAME` and
`KEY/NAME` (KEY of the optimizer's state). What is the same on every process is in the first file alone.

Not torch.distributed.checkpoint: it reads by pickle, which can run code, and holds all twice more to write safetensors.
"""

import json
import math
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from topr_exp.models.adapter import trained_weights
from topr_exp.runtime import distributed
from topr_exp.runtime.checksums import file_digest, find_damage, write_checksums
from topr_exp.runtime.files import atomic_folder, disk_errors, list_files, sync
from topr_exp.runtime.json_files import read_typed_object
from topr_exp.runtime.terminal import warn
from topr_exp.training.optimizers import Adafactor, follows_rows, local_part, sharding_dimension

KEPT_CHECKPOINTS = 2  # the newest, and the one before it in case the newest turns out to be damaged
WEIGHT = "weight"
STATE = "state.json"


class Counters(TypedDict, total=False):
    """state.json of a checkpoint: what the trainer has counted."""

    step: int  # updates done
    samples: int  # examples of the updates so far
    sampled: int  # completion tokens of the rounds so far
    moved: int  # 1 if any update had a gradient


class RowShare(NamedTuple):
    """The part of the weights' rows that this process holds."""

    part_index: int
    part_count: int  # parts that the rows are divided into
    is_written_here: bool  # False where another machine has a copy and writes it


def save(
    folder: Path,
    model: Any,
    optimizer: torch.optim.Optimizer,
    counters: Counters,
    extra: dict[str, bytes],
) -> None:
    """Write `folder`/step-N with weights, optimizer, `counters` and the files `extra`; the last two checkpoints stay.

    Every process of the run has to call it.
    """
    path = folder / f"step-{counters['step']:08d}"
    is_main = distributed.is_main_process()
    # The main process makes a temporary folder; the others, whose context gives None, get its path from there.
    writing = atomic_folder(path) if is_main else disk_errors(f"write {path}")
    with writing as folder_of_main:
        temporary_folder = distributed.broadcast(folder_of_main)
        assert temporary_folder is not None
        checksums = write_rows(temporary_folder, model, optimizer)
        if is_main:
            for name, content in extra.items():
                (temporary_folder / name).write_bytes(content)
            (temporary_folder / STATE).write_text(json.dumps(counters), encoding="utf-8")
            write_checksums(temporary_folder, checksums)
    if is_main:
        remove_superseded(folder, path)
    distributed.barrier()


def remove_superseded(folder: Path, newest: Path) -> None:
    """Remove old checkpoints, and later ones: found damaged, so that the run went on from an earlier one."""
    paths = checkpoints(folder)
    later_start = bisect_right(paths, newest)
    kept_start = max(later_start - KEPT_CHECKPOINTS, 0)
    for path in paths[:kept_start] + paths[later_start:]:
        shutil.rmtree(path, ignore_errors=True)


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], Path | None]:
    """Restore the newest whole checkpoint below `folder`; return its counters and folder, {} and None without one.

    Read by safetensors: nothing in a checkpoint can run code. Every process of the run has to call it.
    """
    files_of_process = slice(distributed.rank(), None, distributed.world_size())  # each process checks some
    for path in distributed.broadcast(checkpoints(folder)[::-1]):
        damages = distributed.all_gather(find_damage(path, part=files_of_process))
        counters, fault = read_typed_object(path / STATE, Counters)
        if fault:
            damages.append(f"{STATE} {fault}")
        damage = next(filter(None, damages), None)
        if damage is not None:
            warn(f"{path} is damaged ({damage}) and is skipped")
            continue
        with disk_errors(f"read {path}"):
            read_rows(path, model, optimizer)
        return counters, path
    return {}, None


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints below a folder, the oldest first; TOPRError where it can't be read."""
    with disk_errors(f"read {folder}"):
        if folder.exists():
            return list_files(folder, "step-????????")
        return []


def row_share(weight: Tensor) -> RowShare:
    """Return the part of a weight's rows that this process holds."""
    if not isinstance(weight, DTensor):
        return RowShare(0, 1, is_written_here=distributed.is_main_process())
    mesh = weight.device_mesh
    row_dimension = sharding_dimension(weight)
    is_first_copy = True
    for dimension in range(mesh.ndim):  # along all but one processes hold copies
        if dimension != row_dimension and mesh.get_local_rank(dimension) > 0:
            is_first_copy = False
    part_index = mesh.get_local_rank(row_dimension)
    return RowShare(part_index, mesh.size(row_dimension), is_written_here=is_first_copy)


def write_rows(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Write this process's rows of what is trained; returns the checksums of the files of all processes."""
    share = row_share(next(model.parameters()))
    checksums: dict[str, str] = {}
    if share.is_written_here:
        path = folder / f"part-{share.part_index + 1:05d}-of-{share.part_count:05d}.safetensors"
        save_file(rows_to_write(model, optimizer, share), path)
        sync(path)
        checksums[path.name] = file_digest(path)
    checksums_of_all: dict[str, str] = {}
    for checksums_of_process in distributed.all_gather(checksums):
        checksums_of_all |= checksums_of_process
    return checksums_of_all


def rows_to_write(model: Any, optimizer: torch.optim.Optimizer, share: RowShare) -> dict[str, Tensor]:
    """Collect this process's rows of weights and optimizer state; the first part also has what all processes share."""
    tensors: dict[str, Tensor] = {}
    for name, weight in trained_weights(model):
        entries = {WEIGHT: weight.detach()}
        entries |= optimizer.state.get(weight, {})
        for key, value in entries.items():
            tensor = torch.as_tensor(value)
            is_by_rows = follows_rows(key, tensor.ndim, weight)
            if is_by_rows or share.part_index == 0:
                part = local_part(tensor)
                tensors[f"{key}/{name}"] = part.contiguous().cpu()
    return tensors


def read_rows(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Restore the rows that this process holds, whichever processes wrote them."""
    paths = list_files(folder, "part-*.safetensors")
    files = [safe_open(path, framework="pt") for path in paths]
    keys_by_weight = defaultdict(list)  # WEIGHT and those of the optimizer's state
    for tensor_name in files[0].keys():  # noqa: SIM118 (it is no dictionary)
        key, name = tensor_name.split("/", 1)
        keys_by_weight[name].append(key)

    for name, weight in trained_weights(model):
        state = {}
        for key in keys_by_weight[name]:
            rows = stored_rows(files, key, name, weight)
            if key == WEIGHT:
                local_part(weight.detach()).copy_(rows)
            else:
                state[key] = state_entry(rows, weight, optimizer)
        optimizer.state[weight] = state


def stored_rows(files: Sequence[Any], key: str, name: str, weight: Tensor) -> Tensor:
    """Read this process's rows of a tensor, a piece of each file.

    Rows are split evenly among processes, and were among files: each has as many, the last ones fewer or none.
    """
    tensor_name = f"{key}/{name}"
    dimension_count = len(files[0].get_slice(tensor_name).get_shape())
    if not follows_rows(key, dimension_count, weight):
        return files[0].get_tensor(tensor_name)
    row_count = weight.shape[0]
    share = row_share(weight)
    rows_per_process = math.ceil(row_count / share.part_count)
    rows_per_file = math.ceil(row_count / len(files))
    start = min(share.part_index * rows_per_process, row_count)
    end = min(start + rows_per_process, row_count)
    pieces = []
    for file_index, file in enumerate(files):
        rows_of_file = file.get_slice(tensor_name)
        file_start = file_index * rows_per_file
        piece_start = max(start - file_start, 0)
        piece_end = min(end - file_start, rows_of_file.get_shape()[0])
        pieces.append(rows_of_file[piece_start : max(piece_end, 0)])
    return torch.cat(pieces)


def state_entry(value: Tensor, weight: Tensor, optimizer: torch.optim.Optimizer) -> Any:
    """Convert a stored entry to the optimizer's type: a whole number, a float tensor without dimensions, or rows."""
    if value.ndim == 0:
        if not value.is_floating_point():
            return int(value)
        if optimizer.defaults.get("fused"):  # its kernel reads the number of AdamW's steps
            return value.to(weight.device)
        return value
    value = value.to(weight.device)
    if not isinstance(weight, DTensor) or isinstance(optimizer, Adafactor):
        return value
    shape = weight.shape
    stride = weight.stride()
    return DTensor.from_local(value, weight.device_mesh, weight.placements, shape=shape, stride=stride)
