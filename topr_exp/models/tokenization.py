"""Token ids of texts, as a model's tokenizer makes them, with the tokens that it puts before a text."""

from typing import Any

PROBE = "1 + 1"  # a text, to see what a tokenizer puts before one


def encode_prompt(tokenizer: Any, text: str, *, chat: bool) -> list[int]:
    """Encode a prompt as its tokenizer does, but put nothing behind it.

    Most Llamas' put a beginning-of-sequence token before it; GPT-2's, Qwen's and SmolLM2's don't, though two of these
    name one. A text that begins with these tokens does not get them twice. chat: the output of a chat template, which
    holds all special tokens that it wants.
    """
    ids = encode_bare(tokenizer, text)
    if chat:
        return ids
    prefix = prefix_of(tokenizer)
    if ids[: len(prefix)] == prefix:
        return ids
    return [*prefix, *ids]


def encode_bare(tokenizer: Any, text: str) -> list[int]:
    """Encode a text without tokens around it."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # no warnings of length


def prefix_of(tokenizer: Any) -> list[int]:
    """The token ids that a tokenizer puts before a text."""
    ids = encode_bare(tokenizer, PROBE)
    ids_with_special = tokenizer(PROBE)["input_ids"]
    for start in range(len(ids_with_special) - len(ids) + 1):
        if ids_with_special[start : start + len(ids)] == ids:
            return ids_with_special[:start]
    return []
