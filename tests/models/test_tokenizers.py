"""Prompts begin as the tokenizer itself begins a text, and messages as the model's chat template does."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.conftest import config_of
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import Prompter, build_prompter
from topr_exp.imported.encoding import LoggedPrompt, encode_prompt, tokenize_completions
from topr_exp.models.model_folder import SHIPPED
from topr_exp.models.policy import Policy
from topr_exp.runs.first_prompt import format_prompt, preview_prompt

TEXTS = ("Question: 2 + 2?\nAnswer:", "a", " 7", "é 数")
MESSAGES = [{"role": "user", "content": "2 + 2?"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = "<bos>{% for m in messages %}<h>{{ m['role'] }}<h>{{ m['content'] }}<eos>{% endfor %}<h>assistant<h>"
# name -> class, special tokens by role, whether one is put before a text, and one behind it, and the chat template
KINDS: dict[str, tuple[str, dict[str, str], bool, bool, str | None]] = {
    "llama": ("PreTrainedTokenizerFast", {"bos": "<bos>", "eos": "<eos>"}, True, False, LLAMA),
    "base llama": ("LlamaTokenizer", {"bos": "<bos>", "eos": "<eos>"}, True, False, None),
    "qwen": ("Qwen2Tokenizer", {"eos": "<|im_end|>", "pad": "<|endoftext|>"}, False, False, CHATML),
    "gpt2": ("GPT2Tokenizer", {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, False, False, None),
    "smollm2": ("GPT2Tokenizer", {"bos": "<|im_start|>", "eos": "<|im_end|>"}, False, False, CHATML),
    "bos, not by its template": ("PreTrainedTokenizerFast", {"bos": "<bos>", "eos": "<eos>"}, True, False, CHATML),
    "eos behind a text": ("PreTrainedTokenizerFast", {"bos": "<bos>", "eos": "<eos>"}, True, True, None),
}


@pytest.fixture(params=[*KINDS, *(path.name for path in sorted(SHIPPED.iterdir()) if path.is_dir())])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a tokenizer: a shipped one, or a made-up one of bytes."""
    name = request.param
    return write_tokenizer(name, tmp_path / "model") if name in KINDS else SHIPPED / name


def write_tokenizer(name: str, folder: Path) -> Path:
    kind, special, before, behind, template = KINDS[name]
    words = [*dict.fromkeys([*special.values(), "<|im_start|>", "<|im_end|>", "<h>"])]
    alphabet = [*words, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words])
    if before:
        ends = f" {special['eos']}" * behind
        ids = [(special[role], alphabet.index(special[role])) for role in ("bos", "eos")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{special['bos']} $A{ends}", pair=f"{special['bos']} $A $B{ends}", special_tokens=ids
        )
    roles = {f"{role}_token": word for role, word in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(folder)
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    stored |= {"tokenizer_class": kind} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def policy_of(folder: Path) -> tuple[Policy, Any]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return Policy(None, tokenizer, "", torch.float32), tokenizer


def test_a_text_begins_as_the_tokenizer_begins_it(folder: Path) -> None:
    policy, tokenizer = policy_of(folder)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        if ids[-1] == tokenizer.eos_token_id:  # a completion would follow an end
            ids = ids[:-1]
        prompt = policy.encode(text)
        assert prompt.tolist() == ids
        assert policy.text_of(prompt) == text
        begins = tokenizer.decode(policy.encode("")) + text
        assert policy.encode(begins).tolist() == ids, "a beginning that the text has is not put there once more"


def test_messages_begin_as_the_chat_template_says(folder: Path) -> None:
    policy, tokenizer = policy_of(folder)
    if tokenizer.chat_template is None:
        pytest.skip("no chat template")
    wanted = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    text = Prompter("{question}", (), True, ()).render("2 + 2?", tokenizer)
    assert policy.encode(text, chat=True).tolist() == wanted
    assert encode_prompt(LoggedPrompt("messages", json.dumps(MESSAGES)), policy).tolist() == wanted


def test_a_dry_run_shows_these_tokens(folder: Path) -> None:
    policy, tokenizer = policy_of(folder)
    config = config_of(f"output_dir={folder.parent}")
    chat = tokenizer.chat_template is not None
    model, data = dataclasses.replace(config.model, path=str(folder)), dataclasses.replace(config.data, chat=chat)
    first, prompter = load_problems(data).train[0], build_prompter(data)
    ids = policy.encode(prompter.render(first.question, tokenizer), chat=chat).tolist()
    shown = preview_prompt(dataclasses.replace(config, model=model, data=data))
    assert shown == format_prompt(ids, tokenizer, prompter.stop)


def test_a_long_text_is_no_reason_for_a_warning_of_the_library(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    """That it is longer than the model's context "will result in indexing errors": such prompts are left out here."""
    folder = write_tokenizer("qwen", tmp_path)
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(stored | {"model_max_length": 5}))
    policy, tokenizer = policy_of(folder)
    assert tokenizer.model_max_length == 5
    log = pa.table({"text": ["x" * 99], "finish": ["stop"]})
    assert len(policy.encode("x" * 99)) == len(policy.encode("x" * 99, chat=True)) == 99
    assert len(tokenize_completions(log, policy)[0]) == 100
    assert "indexing errors" not in "".join((caplog.text, *capsys.readouterr()))
    tokenizer("x" * 99)
    assert "indexing errors" in "".join((caplog.text, *capsys.readouterr())), "what the library says by itself"


@pytest.mark.parametrize("name", KINDS)
def test_a_text_begins_with_bos_where_tokenizers_of_the_kind_put_one(name: str, tmp_path: Path) -> None:
    policy, tokenizer = policy_of(write_tokenizer(name, tmp_path))
    assert (policy.encode("Question:")[0] == tokenizer.bos_token_id) == KINDS[name][2]
