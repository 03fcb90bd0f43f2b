"""Damage to a model folder that its JSON and the headers of its weights show, before torch is loaded."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from topr_exp.models.model_folder import READ_FILES, config_entry
from topr_exp.models.weight_headers import (
    HEADER_ERRORS,
    HEADER_SIZE,
    indexed_files,
    read_header,
    shapes_of,
    weight_files,
)
from topr_exp.runtime.files import disk_errors, list_files
from topr_exp.runtime.json_files import read_object

LARGEST_TEXT = 1 << 30  # bytes of a file without weights; tokenizers have some 10 million
TEMPLATES = "additional_chat_templates"  # a subfolder that transformers reads
# Sizes in config.json, by the names of most models and of GPT-2. A count of layers is at most the number of tensors, a
# dimension at most the largest of any tensor.
LAYER_COUNTS = ("num_hidden_layers", "n_layer")
DIMENSIONS = (
    *("hidden_size", "vocab_size", "intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads"),
    *("n_embd", "n_inner", "n_head"),
)
TOKEN_IDS_RULE = "must be a token id, or a list of them"


def model_damage(folder: Path) -> str | None:
    """Describe the first damage that is found, None for none; TOPRError for what can't be read."""
    return irregular_file(folder) or missing_weights(folder) or damaged_weights(folder) or bad_end_token(folder)


def irregular_file(folder: Path) -> str | None:
    """Name an entry that is no regular file, since a FIFO would block and a device may not end; or too large a text."""
    with disk_errors(f"read {folder}"):
        paths = list_files(folder, "*")
        if (folder / TEMPLATES).is_dir():
            paths += list_files(folder / TEMPLATES, "*")
        for path in paths:
            is_read_here = any(map(path.match, READ_FILES))
            if path.is_file():
                size = path.stat().st_size
                if is_read_here and path.suffix != ".safetensors" and size > LARGEST_TEXT:
                    return f"{path.name} has {size:,} bytes"
            elif is_read_here or (path.exists() and not path.is_dir()):  # some tokenizers' classes read other files
                return f"{path.name} is no regular file"
    return None


def missing_weights(folder: Path) -> str | None:
    """Name a file of weights that an index lists and that is not there."""
    with disk_errors(f"read {folder}"):
        indices = list_files(folder, "*.safetensors.index.json")
    for index in indices:
        names = indexed_files(index)
        if names is None:
            return f"{index.name} has a weight_map that is no object of file names"
        missing = sorted(name for name in names if not (folder / name).is_file())
        if missing:
            return f"{missing[0]}, which {index.name} names, is not there"
    return None


def damaged_weights(folder: Path) -> str | None:
    """Name a file of weights whose header can't be read, or whose size differs from it; else a size beyond these."""
    shapes: list[Sequence[int]] = []
    for path in weight_files(folder):
        try:
            with disk_errors(f"read {path}"):
                header_length, tensors = read_header(path)
            data_length = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            expected = HEADER_SIZE + header_length + data_length
            shapes += shapes_of(tensors)  # raises where a tensor has none
        except HEADER_ERRORS:
            return f"{path.name} is no safetensors file (a pointer of Git LFS?)"
        size = path.stat().st_size
        if size != expected:
            return f"{path.name} is damaged: {size} bytes instead of {expected}"
    return size_beyond_weights(folder, shapes)


def size_beyond_weights(folder: Path, shapes: Sequence[Sequence[int]]) -> str | None:
    """Name a size of config.json that exceeds the weights': building such a model would take for ever."""
    largest_dimension = max(chain.from_iterable(shapes), default=0)
    for name in LAYER_COUNTS:
        count = config_entry(folder, name, int)
        if count is not None and count > len(shapes):
            return f"config.json has {name}={count}, and the weights have {len(shapes)} tensors"
    for name in DIMENSIONS:
        size = config_entry(folder, name, int)
        if size is not None and size > largest_dimension:
            return f"config.json has {name}={size}, and the weights have no dimension above {largest_dimension}"
    return None


def bad_end_token(folder: Path) -> str | None:
    """Name a file of settings in which the tokens that end a completion are no token ids."""
    for name in ("config.json", "generation_config.json"):
        config, _ = read_object(folder / name)
        end_tokens = config.get("eos_token_id")
        if not is_token_ids(end_tokens):
            return f"{name} has eos_token_id={end_tokens!r:.60}, which {TOKEN_IDS_RULE}"
    return None


def is_token_ids(value: Any) -> bool:
    """True for an id, a list of them, or None."""
    if value is None:
        return True
    ids = value if isinstance(value, list) else [value]
    return all(type(token) is int for token in ids)
