"""The tiny models' tokenizer: no text is lost, digits and commands are tokens, one beginning of sequence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.make_tiny.tokenizer import BOS, EOS, PAD, build_tokenizer

TEXTS = ["Question: Anna has 12 of 34 pens.\nAnswer: 12+3=15.", r" The answer is \boxed{\frac{1}{2}}. $x \le 3$"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(TEXTS, 2048)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", ["a" * 5000, "日" * 300, "é" * 300, "\r\n \t\x00\u2028\xa0", "  two  spaces ", "①²½٣"])
def test_long_and_odd_texts_come_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.pad_token_id not in ids  # the library's unknown token


def test_digits_are_single_tokens_and_commands_whole(tokenizer: Any) -> None:
    assert tokenizer.tokenize(" 123 321") == ["Ġ1", "2", "3", "Ġ3", "2", "1"]
    assert tokenizer.tokenize(r" \boxed{\frac{1}{2}}") == ["Ġ\\boxed", "{", "\\frac", "{", "1", "}{", "2", "}", "}"]


def test_special_tokens_are_distinct_and_begin_once(tokenizer: Any) -> None:
    assert [tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token] == [PAD, BOS, EOS]
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    ids = tokenizer(TEXTS[0]).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in ids
