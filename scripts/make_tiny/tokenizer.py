"""Tokenizer of the tiny models: whole words, single digits, LaTeX commands; bytes for all other text, without loss.

Text is cut into words, commands, digits and signs (each with the space before it), written in the byte alphabet of
byte-level BPE, and matched against the vocabulary, longest piece first. All 256 bytes are in the vocabulary, so every
text has tokens and decodes to itself.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
# A LaTeX command, a word, one digit, "}{" (the middle of a fraction), one other sign, one white space.
# Words are cut at 24 letters, since the matching is quadratic in the length of a piece.
PIECES = r" ?\\[A-Za-z]{1,24}| ?\p{L}{1,24}| ?\p{N}|\}\{| ?[^\s\p{L}\p{N}]|\s"


def build_tokenizer(texts: Iterable[str], max_length: int) -> PreTrainedTokenizerFast:
    """Build the tokenizer whose vocabulary is the special tokens, the bytes and every piece of `texts`."""
    splitter = _with_splitting(Tokenizer(models.WordPiece({"?": 0}, unk_token="?")))
    pieces = set()
    for text in texts:
        for piece, _ in splitter.pre_tokenizer.pre_tokenize_str(text):
            if len(piece) > 1:
                pieces.add(piece)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [PAD, BOS, EOS, *alphabet, *sorted(pieces)]
    vocabulary = {word: index for index, word in enumerate(words)}
    # No piece can be unknown, so the unknown token is never made; the library asks for one.
    model = models.WordPiece(vocabulary, unk_token=PAD, continuing_subword_prefix="", max_input_chars_per_word=1000)
    tokenizer = _with_splitting(Tokenizer(model))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, vocabulary[BOS])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _with_splitting(tokenizer: Tokenizer) -> Tokenizer:
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
