"""Headers of a model's safetensors files: shapes and layers, known without loading a weight."""

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.runtime.files import disk_errors, list_files, open_regular
from topr_exp.runtime.json_files import parse_object, read_object
from topr_exp.types import ConfigError, TOPRError

HEADER_SIZE = 8  # bytes at the beginning of a file that hold its header's length
LONGEST_HEADER = 1 << 28  # bytes
MOST_NUMBERS_A_BYTE = 8  # as if each took one bit, the least that a type could
HEADER_ERRORS = (ValueError, LookupError, TypeError, AttributeError)  # of a file that is no safetensors file

TensorHeaders = dict[str, dict[str, Any]]  # a tensor's name -> its shape, data_offsets, ...


def read_header(path: Path) -> tuple[int, TensorHeaders]:
    """The length of a safetensors file's header in bytes, and its tensors, by name.

    Raises ValueError for another file, OSError where it can't be read.
    """
    with open_regular(path) as file:
        length = int.from_bytes(file.read(HEADER_SIZE), "little")
        header = parse_object(file.read(min(length, LONGEST_HEADER)))
    if header is None:
        raise ValueError("no header of a safetensors file")
    header.pop("__metadata__", None)
    return length, header


def weight_files(folder: Path) -> list[Path]:
    with disk_errors(f"read {folder}"):
        return list_files(folder, "*.safetensors")


def loaded_weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads; others may hold the weights once more, under other names."""
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    index = folder / "model.safetensors.index.json"
    names = indexed_files(index) if index.exists() else None
    if names:
        return sorted(folder / name for name in names)
    return weight_files(folder)


def indexed_files(index: Path) -> set[str] | None:
    """The names of the files that an index of weights lists; None where a name is no file's name."""
    content, _ = read_object(index)
    weight_map = content.get("weight_map", {})
    if not isinstance(weight_map, dict):
        return None
    names = set()
    for name in weight_map.values():
        if not isinstance(name, str) or name in ("", "..") or "/" in name:
            return None
        names.add(name)
    return names


def shapes_of(tensors: TensorHeaders) -> list[list[int]]:
    """The shapes of tensors that hold numbers; ValueError for one whose numbers its bytes could not hold."""
    shapes = []
    for tensor in tensors.values():
        shape = list(map(int, tensor["shape"]))
        start, end = tensor["data_offsets"]
        number_count = math.prod(shape)
        if number_count > MOST_NUMBERS_A_BYTE * (end - start):
            raise ValueError("a tensor of more numbers than its bytes hold")
        if number_count > 0:
            shapes.append(shape)
    return shapes


def linear_layers(folder: Path) -> list[str]:
    """The names of the modules that have a matrix as weight, embeddings too, by the headers that transformers reads.

    TOPRError where they can't be read.
    """
    tensors: TensorHeaders = {}
    with disk_errors(f"read {folder}"):
        try:
            for path in loaded_weight_files(folder):
                _, tensors_of_file = read_header(path)
                tensors |= tensors_of_file
            return [name.removesuffix(".weight") for name, tensor in tensors.items() if len(tensor["shape"]) == 2]
        except HEADER_ERRORS:
            raise TOPRError(f"model folder {folder}: its weights are no whole safetensors files") from None


def check_targets(lora: LoRA, layers: Iterable[str]) -> None:
    """Raise ConfigError for a target that is no linear layer of a block, with the nearest one that is.

    layers: the names of the model's modules that have a matrix. As for peft, a target is a module's full name or its
    end.
    """
    block_layers = list(filter(is_in_block, layers))
    ends = sorted({name.rpartition(".")[2] for name in block_layers})
    for target in lora.target_names:
        if any(name == target or name.endswith(f".{target}") for name in block_layers):
            continue
        nearest = difflib.get_close_matches(target, ends, n=1) or difflib.get_close_matches(target, block_layers, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(
            f"model.lora.targets={target}: no linear layer of the model's blocks{hint} (allowed: {ALL_LINEAR}, or "
            f"some of {', '.join(ends)})"
        )


def is_in_block(name: str) -> bool:
    """True for a module or weight of a block: its name has a number, which embeddings and output layer lack."""
    return any(map(str.isdigit, name.split(".")))
