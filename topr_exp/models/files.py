"""Facts about a model folder without loading it: vocabulary, context length, damaged weights, layers for LoRA.

Only JSON and headers are read, so that mistakes are told before torch is loaded; what can't be read so is None.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.runtime.jsonfiles import read_object
from topr_exp.types import ConfigError

ADAPTER = "adapter"  # the part of a trained model's folder that has the adapter alone
HEADER = 8  # bytes at the beginning of a safetensors file that say how long its header is


def setting(folder: Path, name: str) -> int | None:
    """A whole number of config.json, of the language model where a model has several parts."""
    stored = read_object(folder / "config.json")[0]
    parts = (stored, stored.get("text_config") or {})
    return next((part[name] for part in parts if isinstance(part.get(name), int)), None)


def has_chat_template(folder: Path) -> bool:
    return "chat_template" in read_object(folder / "tokenizer_config.json")[0] or any(folder.glob("chat_template*"))


def damage(folder: Path) -> str | None:
    """Describe damage to the weights of a model folder, as far as their headers show; None for none."""
    for index in folder.glob("*.safetensors.index.json"):
        named = set(read_object(index)[0].get("weight_map", {}).values())
        if missing := sorted(name for name in named if not (folder / name).is_file()):
            return f"{missing[0]}, which {index.name} names, is not there"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            length, tensors = header(path)
            expected = HEADER + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return f"{path.name} is no safetensors file (a pointer of Git LFS?)"
        if (size := path.stat().st_size) != expected:
            return f"{path.name} is damaged: {size} bytes instead of {expected}"
    return None


def linear_layers(folder: Path) -> list[str]:
    """The modules of a model folder that have a matrix as weight, by the headers of the files of its weights.

    (Of those that transformers reads: others may hold the weights once more, under other names.)
    """
    whole, index = folder / "model.safetensors", read_object(folder / "model.safetensors.index.json")[0]
    parts = sorted({folder / name for name in index.get("weight_map", {}).values()})
    files = [whole] if whole.exists() else parts or sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for path in files for name, tensor in header(path)[1].items()}
    return [name.removesuffix(".weight") for name, tensor in tensors.items() if len(tensor["shape"]) == 2]


def header(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The length of a safetensors file's header, and what that says of each tensor by name."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER), "little")
        found = json.loads(file.read(min(length, 1 << 28)))
    return length, {name: tensor for name, tensor in found.items() if name != "__metadata__"}


def check_targets(lora: LoRA, layers: Iterable[str]) -> None:
    """Raise ConfigError for a target that is no linear layer of a block, with the nearest one that is.

    layers: the names of the model's modules that have a matrix. Those of blocks have a number in them, which embeddings
    and the output layer lack. Like peft, a target is a module's whole name or its end.
    """
    names = [name for name in layers if any(part.isdigit() for part in name.split("."))]
    ends = sorted({name.rpartition(".")[2] for name in names})
    for target in lora.names:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            near = difflib.get_close_matches(target, ends, n=1) or difflib.get_close_matches(target, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"model.lora.targets={target}: no linear layer of the model's blocks{hint} (allowed: {ALL_LINEAR}, or "
                f"some of {', '.join(ends)})"
            )


def with_bos(ids: list[int], bos: int | None) -> list[int]:
    """Token ids that begin with one beginning-of-sequence token where the model has one."""
    return [bos, *ids] if bos is not None and (not ids or ids[0] != bos) else ids
