"""Load a causal language model and its tokenizer: shipped, from a folder, or from the hub. Safetensors only."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.runtime.checksums import CHECKSUMS, cached_digest, find_damage
from topr_exp.runtime.files import disk_errors, list_files, open_regular
from topr_exp.runtime.json_files import parse_object, read_object
from topr_exp.schema import first_line
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    import torch

SHIPPED = Path(__file__).resolve().parents[1] / "tiny"
ADAPTER = "adapter"  # the part of a trained model's folder that has the adapter alone
PROBE = "1 + 1"  # a text, to see what a tokenizer puts before one
HEADER = 8  # bytes at the beginning of a safetensors file that say how long its header is
# Sizes in config.json, by the names of most models and of GPT-2: at most as many as there are tensors, or as large as
# the largest dimension of one.
LAYERS = ("num_hidden_layers", "n_layer")
SIZES = (
    *("hidden_size", "vocab_size", "intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads"),
    *("n_embd", "n_inner", "n_head"),
)
NO_TOKEN_IDS = "must be a token id, or a list of them"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# What decides a model's numbers and tokens; no pickled weights. A model's code runs only with model.trust_remote_code.
READ_FILES = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "*.jinja", "*.py")


def scaling_of(model: Any) -> str | None:
    """The setting by which a model's logits are more than a linear map of its last states; None where they are not."""
    settings = ("final_logit_softcapping", "logit_scale", "logits_scaling")
    return next((name for name in settings if getattr(model.config, name, None) not in (None, 1.0)), None)


def refuse_scaled_logits(model: Any) -> None:
    """Raise TOPRError for a model of which scoring can't take a linear map of its last states."""
    if (setting := scaling_of(model)) is not None:
        raise TOPRError(f"model.path: {type(model).__name__} changes its logits by {setting}; not supported")


def model_folder(path_or_name: str, revision: str | None = None) -> Path:
    """The folder of a shipped model, a local one or a download from the hub; TOPRError where it is incomplete."""
    if (folder := find_folder(path_or_name)) is not None:
        return folder
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(path_or_name, revision=revision, allow_patterns=list(READ_FILES)))
    except Exception as error:  # the hub client raises many types
        raise TOPRError(hub_refusal(path_or_name, revision, error)) from error
    check_folder(folder, path_or_name)
    return folder


def hub_refusal(name: str, revision: str | None, error: Exception) -> str:
    """The line on a model that the hub did not give: why, and the ways to have it."""
    from huggingface_hub.errors import GatedRepoError

    own_folder = "give a folder in its place, as in model.path=FOLDER"
    if isinstance(error, GatedRepoError) or isinstance(error.__cause__, GatedRepoError):
        page = f"https://huggingface.co/{name}"
        return f"model {name} is gated: ask for access at {page} and run `hf auth login`, or {own_folder}"
    download = f"hf download {name}" if revision is None else f"hf download {name} --revision {revision}"
    reason = f"{type(error).__name__}: {first_line(error)}"
    return (
        f"model {name}: not on this machine, and the hub did not give it ({reason}); run `{download}` where the hub "
        f"can be reached, or {own_folder}"
    )


def find_folder(path_or_name: str, key: str = "model.path") -> Path | None:
    """The folder of a model on this machine, None for a name on the hub; ConfigError names the setting `key`."""
    shipped = SHIPPED / path_or_name
    if "/" not in path_or_name and (shipped / "config.json").is_file():
        return shipped
    folder = Path(path_or_name).expanduser()
    if folder.is_dir():
        check_folder(folder, f"{key}={path_or_name}")
        return folder
    # A name on the hub is "owner/name"; anything else was meant as a folder.
    if path_or_name.count("/") != 1 or path_or_name.startswith((".", "/", "~")):
        names = ", ".join(sorted(path.parent.name for path in SHIPPED.glob("*/config.json")))
        raise ConfigError(f"{key}={path_or_name}: no such folder; shipped models are {names}")
    return None


def check_folder(folder: Path, what: str) -> None:
    """Raise ConfigError, which begins with `what`, for a folder without configuration, weights or tokenizer."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{what}: the folder has no config.json")
    if not any(folder.glob("*.safetensors")):
        others = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))
        hint = "; its weights are pickled, which can run code: convert them to safetensors" if others else ""
        raise ConfigError(f"{what}: the folder has no weights (*.safetensors){hint}")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(f"{what}: the folder has no tokenizer ({', '.join(TOKENIZER_FILES)})")


def load_model(
    path_or_name: str,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """Load a model (dtype None: float32, no dropout) and its tokenizer; TOPRError for a folder that can't be used."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder(path_or_name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype or torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            # On a GPU each tensor goes there as it is read: eight processes of an 8B model would else hold 256 GB.
            device_map=None if str(device) == "cpu" else {"": device},
        )
    except Exception as error:
        # transformers raises many types for damaged folders; the user needs to know which folder and why.
        raise TOPRError(f"model folder {folder} can't be loaded: {first_line(error)}") from error
    ends = getattr(model.generation_config, "eos_token_id", None)
    if not is_token_ids(ends):
        raise TOPRError(f"model folder {folder}: eos_token_id={ends!r:.60} {NO_TOKEN_IDS}")
    if missing := sorted(found["missing_keys"]):  # which transformers draws at random
        raise TOPRError(f"model folder {folder}: its files lack {len(missing)} weights of the model, as {missing[0]}")
    for name in ("is_local", "local_files_only"):  # which transformers would save: of this machine, not of the model
        tokenizer.init_kwargs.pop(name, None)
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise TOPRError(f"model folder {folder}: the tokenizer has {len(tokenizer)} tokens, the model only {rows}")
    return model.eval(), tokenizer


def weights_fingerprint(folder: Path) -> str:
    """A hash of everything in a model folder that decides its outputs: weights, configuration, tokenizer.

    About a second for 2 GB. Raises TOPRError where the folder has checksums, as a trained model does, and differs.
    """
    with disk_errors(f"read {folder}"):
        files = [path for path in list_files(folder, *READ_FILES) if path.name != CHECKSUMS]
        digests = {path.name: cached_digest(path) for path in files}
    refuse_damage(folder, digests)
    return hashlib.sha256("".join(f"{name}:{digest}\n" for name, digest in digests.items()).encode()).hexdigest()[:32]


def refuse_damage(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Raise TOPRError when a folder has checksums and a file that differs; known: SHA-256 of files read before."""
    if (folder / CHECKSUMS).exists() and (fault := find_damage(folder, known)):
        raise TOPRError(
            f"{folder} is damaged: {fault}; restore it, or remove it (and DONE of a finished run), and the command of "
            f"the run trains it again; if you changed it yourself, remove its {CHECKSUMS}"
        )


# ---- facts about a model folder by JSON and headers, so that mistakes are told before torch is loaded


def setting(folder: Path, name: str) -> int | None:
    """A whole number of config.json, of the language model where a model has several parts."""
    stored = read_object(folder / "config.json")[0]
    parts = [part for part in (stored, stored.get("text_config")) if isinstance(part, dict)]
    return next((part[name] for part in parts if isinstance(part.get(name), int)), None)


def has_chat_template(folder: Path) -> bool:
    if "chat_template" in read_object(folder / "tokenizer_config.json")[0]:
        return True
    with disk_errors(f"read {folder}"):
        return bool(list_files(folder, "chat_template*"))


def damage(folder: Path) -> str | None:
    """Describe damage to a model folder, as far as its JSON and the headers of its weights show; None for none.

    TOPRError for what can't be read.
    """
    with disk_errors(f"read {folder}"):
        indices, weights = list_files(folder, "*.safetensors.index.json"), list_files(folder, "*.safetensors")
        irregular = [path for path in list_files(folder, *READ_FILES) if not path.is_file()]
    if irregular:  # a FIFO would block, a device may not end
        return f"{irregular[0].name} is no regular file"
    for index in indices:
        names = indexed_files(index)
        if names is None:
            return f"{index.name} has a weight_map that is no object of file names"
        if missing := sorted(name for name in names if not (folder / name).is_file()):
            return f"{missing[0]}, which {index.name} names, is not there"
    shapes = []
    for path in weights:
        try:
            with disk_errors(f"read {path}"):
                length, tensors = header(path)
            expected = HEADER + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            shapes += [[int(size) for size in tensor["shape"]] for tensor in tensors.values()]
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"{path.name} is no safetensors file (a pointer of Git LFS?)"
        if (size := path.stat().st_size) != expected:
            return f"{path.name} is damaged: {size} bytes instead of {expected}"
    return size_beyond_weights(folder, shapes) or next(filter(None, map(end_token_fault, settings_files(folder))), None)


def indexed_files(index: Path) -> set[str] | None:
    """The names of the files that an index of weights lists; None where it lists none, or what is no file's name."""
    listed = read_object(index)[0].get("weight_map", {})
    if not isinstance(listed, dict):
        return None
    names = set()
    for name in listed.values():
        if not isinstance(name, str) or name in ("", "..") or "/" in name:
            return None
        names.add(name)
    return names


def size_beyond_weights(folder: Path, shapes: Sequence[Sequence[int]]) -> str | None:
    """Name a size of config.json for which the weights have no room, in words: to build such a model takes for ever.

    shapes: of all tensors of the folder.
    """
    largest = max((size for shape in shapes for size in shape), default=0)
    for name in (*LAYERS, *SIZES):
        value, most = setting(folder, name), len(shapes) if name in LAYERS else largest
        if value is not None and value > most:
            what = f"{most} tensors" if name in LAYERS else f"no dimension above {most}"
            return f"config.json has {name}={value}, and the weights have {what}"
    return None


def settings_files(folder: Path) -> list[Path]:
    return [path for name in ("config.json", "generation_config.json") if (path := folder / name).exists()]


def end_token_fault(path: Path) -> str | None:
    """Say what is wrong with the tokens that end a completion, in a model's settings; None for nothing."""
    value = read_object(path)[0].get("eos_token_id")
    return None if is_token_ids(value) else f"{path.name} has eos_token_id={value!r:.60}, which {NO_TOKEN_IDS}"


def is_token_ids(value: Any) -> bool:
    """True for an id, a list of them, or None."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return all(type(token) is int for token in ids)


def linear_layers(folder: Path) -> list[str]:
    """The modules of a model folder that have a matrix as weight, by the headers of the files of its weights.

    (Of those that transformers reads: others may hold the weights once more, under other names.)
    TOPRError where they can't be read.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    parts = sorted(folder / name for name in indexed_files(index) or ()) if index.exists() else []
    with disk_errors(f"read {folder}"):
        files = [whole] if whole.exists() else parts or list_files(folder, "*.safetensors")
        try:
            tensors = {name: tensor for path in files for name, tensor in header(path)[1].items()}
            matrices = [name for name, tensor in tensors.items() if len(tensor["shape"]) == 2]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise TOPRError(f"model folder {folder}: its weights are no whole safetensors files") from None
    return [name.removesuffix(".weight") for name in matrices]


def header(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The length of a safetensors file's header, and what that says of each tensor by name; ValueError, OSError."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(HEADER), "little")
        stored = parse_object(file.read(min(length, 1 << 28)))
    if stored is None:
        raise ValueError("no header of a safetensors file")
    return length, {name: tensor for name, tensor in stored.items() if name != "__metadata__"}


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


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a plain text as its tokenizer makes them, except that nothing is put behind it.

    Most Llamas' put a beginning-of-sequence token before it; GPT-2's, Qwen's and SmolLM2's don't, though two of these
    name one. A text that begins with what would be put before it does not get that twice.
    """
    ids, prefix = encode_chat(tokenizer, text), prefix_of(tokenizer)
    return ids if ids[: len(prefix)] == prefix else [*prefix, *ids]


def encode_chat(tokenizer: Any, text: str) -> list[int]:
    """Token ids of what a chat template made, which holds all special tokens that it wants."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # of no length it warns
    return ids


def prefix_of(tokenizer: Any) -> list[int]:
    """The token ids that a tokenizer itself puts before a text."""
    ids, whole = encode_chat(tokenizer, PROBE), tokenizer(PROBE)["input_ids"]
    starts = range(len(whole) - len(ids) + 1)
    start = next((start for start in starts if whole[start : start + len(ids)] == ids), 0)
    return list(whole[:start])
