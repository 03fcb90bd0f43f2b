"""Folders of models: where they are, what identifies them, and damage that shows without loading them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from topr_exp.config.model_choice import SHIPPED, is_hub_name, is_shipped, no_such_folder
from topr_exp.models.weight_headers import (
    HEADER_ERRORS,
    HEADER_SIZE,
    indexed_files,
    read_header,
    shapes_of,
    weight_files,
)
from topr_exp.runtime.checksums import CHECKSUMS, cached_digest, find_damage
from topr_exp.runtime.files import disk_errors, list_files
from topr_exp.runtime.json_files import read_object
from topr_exp.schema import first_line
from topr_exp.types import ConfigError, TOPRError

ADAPTER = "adapter"  # the subfolder of a trained model that has the adapter alone
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
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
PICKLED = ("*.bin", "*.pt", "*.pth")
# Files that decide a model's numbers and tokens; no pickled weights. A model's code runs only with
# model.trust_remote_code.
READ_FILES = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "*.jinja", "*.py")


# ---- finding


def fetch_model_folder(path_or_name: str, revision: str | None = None) -> Path:
    """The folder of a shipped model, a local one or a download from the hub; TOPRError where it is incomplete."""
    folder = find_folder(path_or_name)
    if folder is not None:
        return folder
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(path_or_name, revision=revision, allow_patterns=list(READ_FILES)))
    except Exception as error:  # the hub client raises many types
        raise TOPRError(hub_refusal(path_or_name, revision, error)) from error
    check_folder(folder, path_or_name)
    return folder


def hub_refusal(name: str, revision: str | None, error: Exception) -> str:
    """Say in a line why the hub did not give a model, and the ways to have it."""
    from huggingface_hub.errors import GatedRepoError

    local_way = "give a folder in its place, as in model.path=FOLDER"
    if isinstance(error, GatedRepoError) or isinstance(error.__cause__, GatedRepoError):
        page = f"https://huggingface.co/{name}"
        return f"model {name} is gated: ask for access at {page} and run `hf auth login`, or {local_way}"
    command = f"hf download {name}"
    if revision is not None:
        command += f" --revision {revision}"
    reason = f"{type(error).__name__}: {first_line(error)}"
    return (
        f"model {name}: not on this machine, and the hub did not give it ({reason}); run `{command}` where the hub "
        f"can be reached, or {local_way}"
    )


def find_folder(path_or_name: str, key: str = "model.path") -> Path | None:
    """The folder of a model on this machine, None for a name on the hub; ConfigError names the setting `key`."""
    if is_shipped(path_or_name):
        return SHIPPED / path_or_name
    folder = Path(path_or_name).expanduser()
    if folder.is_dir():
        check_folder(folder, f"{key}={path_or_name}")
        return folder
    if not is_hub_name(path_or_name):  # so it was meant as a folder
        raise no_such_folder(key, path_or_name)
    return None


def check_folder(folder: Path, label: str) -> None:
    """Raise ConfigError, which begins with `label`, for a folder without configuration, weights or tokenizer."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{label}: the folder has no config.json")
    if not any(folder.glob("*.safetensors")):
        hint = ""
        pickled_files = chain.from_iterable(map(folder.glob, PICKLED))
        if any(pickled_files):
            hint = "; its weights are pickled, which can run code: convert them to safetensors"
        raise ConfigError(f"{label}: the folder has no weights (*.safetensors){hint}")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(f"{label}: the folder has no tokenizer ({', '.join(TOKENIZER_FILES)})")


# ---- identity


def weights_fingerprint(folder: Path) -> str:
    """Hash the files in a model folder that decide its outputs: weights, configuration, tokenizer.

    About a second for 2 GB. Raises TOPRError where the folder has checksums, as a trained model does, and differs.
    """
    digests = {}
    with disk_errors(f"read {folder}"):
        for path in list_files(folder, *READ_FILES):
            if path.name != CHECKSUMS:
                digests[path.name] = cached_digest(path)
    refuse_damage(folder, digests)
    fingerprint = hashlib.sha256()
    for name, digest in digests.items():
        fingerprint.update(f"{name}:{digest}\n".encode())
    return fingerprint.hexdigest()[:32]


def refuse_damage(folder: Path, known_digests: Mapping[str, str] | None = None) -> None:
    """Raise TOPRError where a folder has checksums and a file differs; known_digests: SHA-256 of files read before."""
    if not (folder / CHECKSUMS).exists():
        return
    if fault := find_damage(folder, known_digests):
        raise TOPRError(
            f"{folder} is damaged: {fault}; restore it, or remove it (and DONE of a finished run), and the command of "
            f"the run trains it again; if you changed it yourself, remove its {CHECKSUMS}"
        )


# ---- facts by JSON and headers, so that mistakes are told before torch is loaded


def config_number(folder: Path, name: str) -> int | None:
    """A whole number of config.json or, where a model has several parts, of its language model; None without one."""
    config, _ = read_object(folder / "config.json")
    for section in (config, config.get("text_config")):
        if isinstance(section, dict) and isinstance(section.get(name), int):
            number: int = section[name]
            return number
    return None


def has_chat_template(folder: Path) -> bool:
    tokenizer_config, _ = read_object(folder / "tokenizer_config.json")
    if "chat_template" in tokenizer_config:
        return True
    with disk_errors(f"read {folder}"):
        return bool(list_files(folder, "chat_template*"))


def model_damage(folder: Path) -> str | None:
    """Describe damage to a model folder that its JSON and the headers of its weights show; None for none.

    TOPRError for what can't be read.
    """
    return (
        irregular_file(folder)
        or missing_weights(folder)
        or damaged_weights(folder)
        or size_beyond_weights(folder)
        or bad_end_token(folder)
    )


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
    """Name a file of weights whose header can't be read, or whose size is not as the header says."""
    for path in weight_files(folder):
        try:
            with disk_errors(f"read {path}"):
                header_length, tensors = read_header(path)
            data_length = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            expected = HEADER_SIZE + header_length + data_length
            shapes_of(tensors)  # raises where a tensor has none
        except HEADER_ERRORS:
            return f"{path.name} is no safetensors file (a pointer of Git LFS?)"
        size = path.stat().st_size
        if size != expected:
            return f"{path.name} is damaged: {size} bytes instead of {expected}"
    return None


def size_beyond_weights(folder: Path) -> str | None:
    """Name a size of config.json that exceeds the weights': building such a model would take for ever."""
    shapes: list[Sequence[int]] = []
    for path in weight_files(folder):
        with disk_errors(f"read {path}"):
            _, tensors = read_header(path)
            shapes += shapes_of(tensors)
    largest_dimension = max(chain.from_iterable(shapes), default=0)
    for name in LAYER_COUNTS:
        count = config_number(folder, name)
        if count is not None and count > len(shapes):
            return f"config.json has {name}={count}, and the weights have {len(shapes)} tensors"
    for name in DIMENSIONS:
        size = config_number(folder, name)
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
