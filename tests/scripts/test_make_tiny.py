"""The tiny models: their pre-training texts, a short pre-training, and a tokenizer that loses no text."""

import hashlib
import json
import math
import random
import re
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice

import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scripts.make_tiny import ledgers, tasks, verifications
from scripts.make_tiny.pretrain import pretrain, save
from scripts.make_tiny.recipes import FORMS, RECIPES, examples
from scripts.make_tiny.tokenizer import build_tokenizer
from tests.conftest import ROOT, config_of, read_json
from topr_exp.config.model_choice import SHIPPED
from topr_exp.data.embedded import draw_tasks
from topr_exp.data.ledger import draw
from topr_exp.data.prompts import TEMPLATES
from topr_exp.models.loading import load_model

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
def test_a_recipe_gives_the_texts_of_its_shipped_model(name):
    recipe = replace(RECIPES[name], tasks=300)

    digest = hashlib.sha256()
    for mix in (recipe.clean, recipe.mix):
        for prompt, completion in islice(examples(recipe, mix, random.Random(0)), 2000):
            digest.update(f"{prompt}\n{completion}".encode())

    assert digest.hexdigest()[:16] == TEXT_HASHES[name]


@pytest.mark.parametrize("name", [name for name in RECIPES if (SHIPPED / name).is_dir()])
def test_the_shipped_model_was_made_by_the_recipe(name):
    facts = read_json(SHIPPED / name / "recipe.json")

    assert facts["base"] == name
    assert facts["recipe"] == json.loads(json.dumps(asdict(RECIPES[name])))


def test_the_prompts_are_the_ones_that_runs_use():
    tasks_model = yaml.safe_load((ROOT / "conf/model/tiny_tasks.yaml").read_text())
    templates = {name: form.template for name, form in FORMS.items()}

    assert templates == TEMPLATES
    assert TEMPLATES[config_of("data=ledger").data.grader_name] == ledgers.TEMPLATE
    assert config_of("model=tiny_verifier").task.template == verifications.TEMPLATE
    assert tasks_model["data"]["template"] == tasks.TEMPLATE


@pytest.mark.extended
def test_a_short_pretraining_learns_repeats_and_is_loaded(tmp_path, capsys):
    torch.set_num_threads(1)
    recipe = replace(RECIPES["tiny"], steps=20, clean_steps=10, tasks=300, hidden=32, layers=1, heads=2, mlp=32)

    def pretrained():
        model, tokenizer, _ = pretrain(recipe, log_every=10)
        log = capsys.readouterr().out
        return model, tokenizer, [float(loss) for loss in re.findall(r"loss (\S+)", log)]

    model, tokenizer, losses = pretrained()
    repeated_model, _, repeated_losses = pretrained()

    assert losses[1] < losses[0]
    assert losses == repeated_losses
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, repeated_model.state_dict()[name]), name

    save(model, tokenizer, tmp_path / "model")
    loaded_model, loaded_tokenizer = load_model(str(tmp_path / "model"))

    assert loaded_model.dtype is torch.float32
    assert loaded_tokenizer("Question: 12").input_ids == tokenizer("Question: 12").input_ids


def negative_logp(model, prompt, text):
    """−log π of each token of a text after its prompt."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    return -logits.log_softmax(-1).gather(-1, torch.tensor(text)[:, None])[:, 0]


@pytest.mark.extended
@pytest.mark.parametrize("choices", [2, 128])
def test_a_turn_of_tiny_nats_holds_log_k_nats(choices):
    """Of the words that may vary, in careful texts on stories of the test split, which it was not made from."""
    model, tokenizer = load_model("tiny_nats")

    def ids_of(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    words = torch.tensor([ids_of(f" {word}")[0] for word in chain(*ledgers.WORDS)])
    rng = random.Random(1)
    stories = draw_tasks(partial(draw, turns=10, choices=choices), "test", count=12, seed=7)

    nats = 0.0
    for story in stories:
        prompt = tokenizer(ledgers.TEMPLATE.format(question=story.question)).input_ids
        text = ids_of(ledgers.completion(story, "careful", rng))
        is_word = torch.isin(torch.tensor(text), words)
        nats += float(negative_logp(model, prompt, text)[is_word].sum())

    nats_of_turn = nats / (len(stories) * 10)
    assert nats_of_turn == pytest.approx(math.log(choices), rel=0.05)


# ---- the tokenizer

SAMPLES = ["Question: Anna has 12 of 34 pens.\nAnswer: 12+3=15.", r" The answer is \boxed{\frac{1}{2}}. $x \le 3$"]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(SAMPLES, 2048)


@settings(max_examples=100)
@example(text="a" * 5000)
@example(text="日é" * 300)
@example(text="  two  spaces \r\n \t\x00\u2028\xa0 ①²½٣")
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids

    assert tokenizer.decode(ids) == text
    assert tokenizer.pad_token_id not in ids  # the library's unknown token


def test_digits_are_single_tokens_and_commands_whole(tokenizer):
    assert tokenizer.tokenize(" 123 321") == ["Ġ1", "2", "3", "Ġ3", "2", "1"]
    assert tokenizer.tokenize(r" \boxed{\frac{1}{2}}") == ["Ġ\\boxed", "{", "\\frac", "{", "1", "}{", "2", "}", "}"]
