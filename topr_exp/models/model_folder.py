"""Folders of models: where they are, what identifies them, and what their JSON says."""

import hashlib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from topr_exp.config.model_choice import find_named_folder
from topr_exp.runtime.checksums import CHECKSUMS, cached_digest, find_damage
from topr_exp.runtime.files import disk_errors, list_files
from topr_exp.runtime.json_files import read_object
from topr_exp.schema import first_line
from topr_exp.types import ConfigError, TOPRError

ADAPTER = "adapter"  # the subfolder of a trained model that has the adapter alone
ADAPTER_CONFIG = "adapter_config.json"  # peft's, beside an adapter's weights
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
    folder = find_named_folder(key, path_or_name)
    if folder is not None:
        check_folder(folder, f"{key}={path_or_name}")
    return folder


def check_folder(folder: Path, label: str) -> None:
    """Raise ConfigError, which begins with `label`, for a folder without configuration, weights or tokenizer."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{label}: the folder has no config.json")
    if (folder / ADAPTER_CONFIG).exists():
        remedy = "remove it if they have it merged in, else merge it into its base first"
        raise ConfigError(f"{label}: by {ADAPTER_CONFIG} transformers would add an adapter to the weights; {remedy}")
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
            f"{folder} is damaged: {fault}; restore it, or remove it and the run's later weights (and DONE of a "
            f"finished run), and the command of the run trains them again; if you changed it yourself, remove its "
            f"{CHECKSUMS}"
        )


# ---- facts by JSON


def config_entry(folder: Path, name: str, kind: type) -> Any:
    """An entry of config.json or, where a model has several parts, of its language model; None unless of this type."""
    config, _ = read_object(folder / "config.json")
    for section in (config, config.get("text_config")):
        if isinstance(section, dict) and isinstance(section.get(name), kind):
            return section[name]
    return None


def has_chat_template(folder: Path) -> bool:
    tokenizer_config, _ = read_object(folder / "tokenizer_config.json")
    if "chat_template" in tokenizer_config:
        return True
    with disk_errors(f"read {folder}"):
        return bool(list_files(folder, "chat_template*"))


def refuse_quantized(folder: Path) -> None:
    """Raise TOPRError for quantized weights, which can't be trained.

    transformers gives them no gradient, so that norms and embeddings alone would learn. Those that it turns back as it
    loads them (float8, on most GPUs) it quantizes again as it saves them, and their config.json no longer says so.
    """
    quantization = config_entry(folder, "quantization_config", dict)
    if quantization is not None:
        method = quantization.get("quant_method", "in a way that it does not name")
        raise TOPRError(
            f"model.path: the weights in {folder} are quantized ({method!s:.60}), which can't be trained; take the "
            "model that they were made from"
        )
