"""Token ids of texts, as a model's tokenizer makes them, with the tokens that it puts before a text."""

from pathlib import Path
from typing import Any

from topr_exp.schema import first_line
from topr_exp.types import TOPRError

SAME_TOKENS = 0.95  # least share of a vocabulary; another version of a model renames special tokens
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


def refuse_other_tokens(tokenizer: Any, folder: Path, *, trust_remote_code: bool) -> None:
    """Raise TOPRError for a model whose tokenizer gives other ids: it would score other texts than were sampled.

    tokenizer: of the model in training. folder: of the model that is to score its completions.
    """
    from transformers import AutoTokenizer

    try:
        other_ids = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code).get_vocab()
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {first_line(error)}") from error
    ids = tokenizer.get_vocab()
    matches = sum(other_ids.get(token) == token_id for token, token_id in ids.items())
    if matches < SAME_TOKENS * len(ids):
        raise TOPRError(
            f"model folder {folder}: its tokenizer has {matches} of the {len(ids)} tokens of the model in training "
            "under the same ids, too few to score completions"
        )
