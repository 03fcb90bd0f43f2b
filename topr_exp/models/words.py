"""A tokenizer without torch: enough of it to show a prompt as the model gets it, special tokens marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.models.files import read_json

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
