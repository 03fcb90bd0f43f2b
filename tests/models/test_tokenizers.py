"""Prompts begin as the tokenizer itself begins a text, and messages as the model's chat template does."""

import dataclasses
import json

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.conftest import config_of, refused, update_json
from topr_exp.config.model_choice import SHIPPED
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import Prompter, build_prompter
from topr_exp.imported.encoding import encode_prompt
from topr_exp.models.policy import Policy
from topr_exp.models.tokenization import refuse_other_tokens
from topr_exp.runs.first_prompt import format_prompt, preview_prompt

MESSAGES = [{"role": "user", "content": "2 + 2?"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = "<bos>{% for m in messages %}<h>{{ m['role'] }}<h>{{ m['content'] }}<eos>{% endfor %}<h>assistant<h>"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A tokenizer as models have it. form: of a text, where the library puts tokens around it."""

    tokenizer_class: str
    special_tokens: dict[str, str]
    form: str | None = None
    chat_template: str | None = None


BOS_EOS = {"bos": "<bos>", "eos": "<eos>"}
KINDS = {
    "llama": Kind("PreTrainedTokenizerFast", BOS_EOS, "<bos> $A", LLAMA),
    "base llama": Kind("LlamaTokenizer", BOS_EOS, "<bos> $A"),
    "qwen": Kind("Qwen2Tokenizer", {"eos": "<|im_end|>", "pad": "<|endoftext|>"}, chat_template=CHATML),
    "gpt2": Kind("GPT2Tokenizer", {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}),
    "smollm2": Kind("GPT2Tokenizer", {"bos": "<|im_start|>", "eos": "<|im_end|>"}, chat_template=CHATML),
    "bos, not by its template": Kind("PreTrainedTokenizerFast", BOS_EOS, "<bos> $A", CHATML),
    "eos behind a text": Kind("PreTrainedTokenizerFast", BOS_EOS, "<bos> $A <eos>"),
}
SHIPPED_NAMES = sorted(path.name for path in SHIPPED.iterdir() if path.is_dir())


def write_tokenizer(kind, folder):
    """Write a tokenizer of bytes with the special tokens of a kind."""
    special_words = list(dict.fromkeys([*kind.special_tokens.values(), "<|im_start|>", "<|im_end|>", "<h>"]))
    words = special_words + sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special_words])
    if kind.form is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=kind.form,
            pair=kind.form.replace("$A", "$A $B"),
            special_tokens=[(word, ids[word]) for word in kind.special_tokens.values()],
        )
    roles = {f"{role}_token": word for role, word in kind.special_tokens.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(folder)
    settings = {"tokenizer_class": kind.tokenizer_class}
    if kind.chat_template is not None:
        settings["chat_template"] = kind.chat_template
    update_json(folder / "tokenizer_config.json", **settings)
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.fixture(params=[*KINDS, *SHIPPED_NAMES])
def folder(request, tmp_path):
    """A folder with a tokenizer: a shipped one, or a made-up one."""
    if request.param in SHIPPED_NAMES:
        return SHIPPED / request.param
    return write_tokenizer(KINDS[request.param], tmp_path / "model")


def policy_of(folder):
    return Policy(None, AutoTokenizer.from_pretrained(folder), "", torch.float32)


@pytest.mark.parametrize("text", ["Question: 2 + 2?\nAnswer:", "a", " 7", "é 数"])
def test_a_text_begins_as_the_tokenizer_begins_it(folder, text):
    policy = policy_of(folder)
    ids = policy.tokenizer(text)["input_ids"]
    if ids[-1] == policy.tokenizer.eos_token_id:  # a completion would follow an end
        ids = ids[:-1]

    prompt = policy.encode(text)

    assert prompt.tolist() == ids
    assert policy.text_of(prompt) == text
    beginning = policy.tokenizer.decode(policy.encode(""))
    assert policy.encode(beginning + text).tolist() == ids, "a beginning that the text has is not put there once more"


def test_messages_begin_as_the_chat_template_says(folder):
    policy = policy_of(folder)
    if policy.tokenizer.chat_template is None:
        pytest.skip("no chat template")
    ids = policy.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)

    text = Prompter("{question}", chat=True).render("2 + 2?", policy.tokenizer)

    assert policy.encode(text, chat=True).tolist() == ids
    assert encode_prompt(("messages", json.dumps(MESSAGES)), policy, {}).tolist() == ids


def test_a_dry_run_shows_these_tokens(folder):
    policy = policy_of(folder)
    settings = config_of(f"output_dir={folder.parent}")
    data = dataclasses.replace(settings.data, chat=policy.tokenizer.chat_template is not None)
    model = dataclasses.replace(settings.model, path=str(folder))

    preview = preview_prompt(dataclasses.replace(settings, model=model, data=data))

    problem = load_problems(data).train[0]
    prompter = build_prompter(data)
    text = prompter.render(problem.question, policy.tokenizer)
    ids = policy.encode(text, chat=data.chat).tolist()
    assert preview == format_prompt(ids, policy.tokenizer, stop=prompter.stop, split="training")


def test_a_model_with_other_token_ids_scores_nothing(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "tiny_long")
    refuse_other_tokens(tokenizer, SHIPPED / "tiny_long", trust_remote_code=False)

    with refused(
        "its tokenizer has 260 of the 310 tokens of the model in training under the same ids, too few to score"
    ):
        refuse_other_tokens(tokenizer, SHIPPED / "tiny", trust_remote_code=False)
    (tmp_path / "tokenizer.json").write_text("{}")
    with refused("its tokenizer can't be loaded"):
        refuse_other_tokens(tokenizer, tmp_path, trust_remote_code=False)
