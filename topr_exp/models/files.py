"""Facts about a model folder without loading it: vocabulary, context length, damaged weights, layers for LoRA.

Only JSON and headers are read, so that mistakes are told before torch is loaded; what can't be read so is None.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.types import ConfigError

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
ADAPTER = "adapter"  # the part of a trained model's folder that has the adapter alone
HEADER = 8  # bytes at the beginning of a safetensors file that say how long its header is
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def setting(folder: Path, name: str) -> int | None:
    """A whole number of config.json, of the language model where a model has several parts."""
    stored = read_json(folder / "config.json")
    parts = (stored, stored.get("text_config") or {})
    return next((part[name] for part in parts if isinstance(part.get(name), int)), None)


def has_chat_template(folder: Path) -> bool:
    return "chat_template" in read_json(folder / "tokenizer_config.json") or any(folder.glob("chat_template*"))


def tokenizer_size(folder: Path) -> int | None:
    """Tokens of a tokenizer, those included that its settings add to its vocabulary."""
    paths = [folder / name for name in TOKENIZER]
    return count_tokens(folder, tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths))


@functools.lru_cache
def count_tokens(folder: Path, changed: tuple[int, ...]) -> int | None:
    """The same of files that were last changed then: the runs of a sweep ask for one and the same."""
    stored, settings = (read_json(folder / name) for name in TOKENIZER)
    vocabulary = stored.get("model", {}).get("vocab")
    if not vocabulary:
        return None
    names = set(vocabulary) if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
    added = [*stored.get("added_tokens", []), *settings.get("added_tokens_decoder", {}).values()]
    added += [settings.get(name) for name in SPECIAL]
    more = settings.get("extra_special_tokens") or []
    added += [*(more.values() if isinstance(more, dict) else more), *(settings.get("additional_special_tokens") or [])]
    return len(names | {token["content"] if isinstance(token, dict) else token for token in added if token})


def damage(folder: Path) -> str | None:
    """Describe damage to the weights of a model folder, as far as their headers show; None for none."""
    for index in folder.glob("*.safetensors.index.json"):
        named = set(read_json(index).get("weight_map", {}).values())
        if missing := sorted(name for name in named if not (folder / name).is_file()):
            return f"{missing[0]}, which {index.name} names, is not there"
    for path in sorted(folder.glob("*.safetensors")):
        size, expected = path.stat().st_size, expected_size(path)
        if expected is None:
            return f"{path.name} is no safetensors file (a pointer of Git LFS?)"
        if size != expected:
            return f"{path.name} is damaged: {size} bytes instead of {expected}"
    return None


def expected_size(path: Path) -> int | None:
    """Bytes that a safetensors file has by its header; None where that can't be read."""
    try:
        length, tensors = header(path)
        return HEADER + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def linear_layers(folder: Path) -> list[str]:
    """The modules of a model folder that have a matrix as weight, by the headers of its files."""
    return [name.removesuffix(".weight") for name, shape in shapes(folder).items() if len(shape) == 2]


def shapes(folder: Path) -> dict[str, list[int]]:
    """The shapes of the tensors of a model folder by name."""
    tensors = {name: one for path in weight_files(folder) for name, one in header(path)[1].items()}
    return {name: tensor["shape"] for name, tensor in tensors.items()}


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads of a model folder; some hold the weights once more, under other names."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if whole.exists():
        return [whole]
    if index.exists():
        return sorted({folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    return sorted(folder.glob("*.safetensors"))


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


MARKS = "⟦{}⟧"
# Of these classes transformers takes tokenizer.json as it is; others it may build in another way, so that it is asked.
AS_STORED = ("PreTrainedTokenizerFast", "TokenizersBackend")


@dataclass(frozen=True)
class PromptTokenizer:
    """Parts of a tokenizer that a prompt needs."""

    encode: Callable[[str], list[int]]  # without special tokens
    decode: Callable[[Sequence[int]], str]  # with special tokens as text
    special: frozenset[int]
    bos: int | None
    tokenizer: Any  # as transformers has it, for the chat template; None where it was not loaded


def load_words(folder: Path, *, chat: bool, trust_remote_code: bool = False) -> PromptTokenizer:
    """The tokenizer of a model's folder: in 0.1 seconds where nothing of transformers is needed, else in a few."""
    settings = read_json(folder / "tokenizer_config.json")
    if not chat and settings.get("tokenizer_class") in AS_STORED and (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
        bos = settings.get("bos_token")
        name = bos["content"] if isinstance(bos, dict) else bos
        special = frozenset(number for number, token in stored.get_added_tokens_decoder().items() if token.special)
        return PromptTokenizer(
            lambda text: stored.encode(text, add_special_tokens=False).ids,
            lambda ids: stored.decode(ids, skip_special_tokens=False),
            special,
            stored.token_to_id(name) if name else None,
            None,
        )
    from transformers import AutoTokenizer

    return words_of(AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code))


def words_of(tokenizer: Any) -> PromptTokenizer:
    """The same of a tokenizer that is loaded."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return PromptTokenizer(
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        frozenset({*special, *tokenizer.all_special_ids}),
        tokenizer.bos_token_id,
        tokenizer,
    )


def with_bos(ids: list[int], bos: int | None) -> list[int]:
    """Token ids that begin with one beginning-of-sequence token where the model has one."""
    return [bos, *ids] if bos is not None and (not ids or ids[0] != bos) else ids


def marked(ids: Sequence[int], words: PromptTokenizer) -> str:
    """Token ids as text in which special tokens stand between marks, so that text that looks like one can't pass."""
    parts, plain = [], list[int]()
    for number in [*ids, None]:
        if number is not None and number not in words.special:
            plain.append(number)
            continue
        parts.append(words.decode(plain) if plain else "")
        plain = []
        if number is not None:
            parts.append(MARKS.format(words.decode([number])))
    return "".join(parts)
