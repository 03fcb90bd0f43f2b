"""The tiny models: their pre-training texts, a short pre-training, and a tokenizer that loses no text."""

import hashlib
import json
import math
import random
import statistics
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.make_tiny import ledgers, tasks, verifications
from scripts.make_tiny.pretrain import pretrain, save
from scripts.make_tiny.recipes import FORMS, RECIPES, examples
from scripts.make_tiny.tokenizer import BOS, EOS, PAD, build_tokenizer
from tests.conftest import ROOT, config_of
from topr_exp.data import ledger
from topr_exp.data.embedded import draw_tasks
from topr_exp.data.prompts import TEMPLATES
from topr_exp.models.loading import load_model
from topr_exp.models.model_folder import SHIPPED

SMALL = replace(RECIPES["tiny"], steps=30, clean_steps=20, tasks=300, hidden=32, layers=1, heads=2, mlp=32)

# Hashes of 2,000 clean and 2,000 mixed texts, from the time when the shipped models were made.
TEXT_HASHES = {
    "tiny": "786188823f5fd31f",
    "tiny_noise": "1435f69367501b3e",
    "tiny_verifier": "71c4a52360909b43",
    "tiny_long": "ec83c0b23a87f92b",
    "tiny_nats": "4eab584d44062bc8",
    "tiny_tasks": "97694ee7ecdb981b",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_the_texts_of_its_shipped_model(name: str) -> None:
    recipe = replace(RECIPES[name], tasks=300)
    digest = hashlib.sha256()
    for mix in (recipe.clean, recipe.mix):
        for prompt, completion in islice(examples(recipe, mix, random.Random(0)), 2000):
            digest.update(f"{prompt}\n{completion}".encode())
    assert digest.hexdigest()[:16] == TEXT_HASHES[name]


def test_the_prompts_are_the_ones_that_runs_use() -> None:
    assert {name: form.template for name, form in FORMS.items()} == TEMPLATES
    assert TEMPLATES[config_of("data=ledger").data.grader_name] == ledgers.TEMPLATE
    assert config_of("model=tiny_verifier").task.template == verifications.TEMPLATE
    model = yaml.safe_load((ROOT / "conf" / "model" / "tiny_tasks.yaml").read_text())
    assert model["data"]["template"] == tasks.TEMPLATE


@pytest.mark.parametrize("name", [name for name in RECIPES if (SHIPPED / name).is_dir()])
def test_the_shipped_model_was_made_by_the_recipe(name: str) -> None:
    facts = json.loads((SHIPPED / name / "recipe.json").read_text())
    assert facts["base"] == name
    assert facts["recipe"] == json.loads(json.dumps(RECIPES[name].__dict__))


def test_a_short_pretraining_learns_and_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, tokenizer, token_count = pretrain(SMALL, log_every=10)
        second, _, _ = pretrain(SMALL, log_every=10)
    finally:
        torch.set_num_threads(threads)
    losses = [float(line.split("loss ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert losses[1] < losses[0]
    assert losses[:3] == losses[3:]
    assert token_count > 30 * 32 * 20
    second_weights = dict(second.named_parameters())
    for name, weight in first.named_parameters():
        assert torch.equal(weight, second_weights[name]), name
    save(first, tokenizer, tmp_path / "model")
    model, loaded = load_model(str(tmp_path / "model"))
    assert model.dtype is torch.float32
    assert loaded("Question: 12").input_ids == tokenizer("Question: 12").input_ids
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize("choices", [2, 16, 128])
def test_a_turn_of_tiny_nats_holds_log_k_nats(choices: int) -> None:
    """Of the words that may vary, in careful texts on stories of the test split, which it was not made from."""
    model, tokenizer = load_model("tiny_nats")
    word_ids = {tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in chain(*ledgers.WORDS)}
    rng, turns = random.Random(1), 10
    nats_by_story = []
    for story in draw_tasks(partial(ledger.draw, turns=turns, choices=choices), "test", count=12, seed=7):
        prompt = tokenizer(ledgers.TEMPLATE.format(question=story.question)).input_ids
        text = tokenizer(ledgers.completion(story, "careful", rng), add_special_tokens=False).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
        logp = logits.log_softmax(-1).gather(-1, torch.tensor(text)[:, None])[:, 0]
        word_logp = logp[torch.isin(torch.tensor(text), torch.tensor(list(word_ids)))]
        assert len(word_logp) == len(ledgers.WORDS) * turns
        nats_by_story.append(-float(word_logp.sum()) / turns)
    assert statistics.mean(nats_by_story) == pytest.approx(math.log(choices), rel=0.05)


def test_wordings_are_equally_likely() -> None:
    counts = Counter(tuple(ledgers.wording(8, random.Random(seed))) for seed in range(4000))
    assert len(counts) == 8
    assert min(counts.values()) > 400
    assert max(counts.values()) < 600


# ---- the tokenizer

SAMPLES = ["Question: Anna has 12 of 34 pens.\nAnswer: 12+3=15.", r" The answer is \boxed{\frac{1}{2}}. $x \le 3$"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(SAMPLES, 2048)


@settings(max_examples=500, deadline=None)
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
    ids = tokenizer(SAMPLES[0]).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.eos_token_id not in ids
