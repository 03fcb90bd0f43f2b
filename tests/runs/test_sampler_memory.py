"""What a sampler holds beside the weights: what is counted before they are loaded is what hf and vLLM take."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, config_of
from topr_exp.config.settings import Config
from topr_exp.data.prompts import Prompter, build_prompter
from topr_exp.models import files
from topr_exp.models.loading import SHIPPED
from topr_exp.models.policy import load_policy
from topr_exp.runs import gpu_memory, sampler_memory
from topr_exp.runs.gpu_memory import check_run
from topr_exp.runs.sampler_memory import Asked, beside, token_bytes
from topr_exp.sampling import hf
from topr_exp.sampling.sampler import HFSampler
from topr_exp.types import ConfigError, Problem

TINY = SHIPPED / "tiny"
LLAMA_3 = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
           "max_position_embeddings": 8192}  # fmt: skip
WEIGHTS = 8_030_261_248
ASKED = [Problem(f"p{i}", "Tom has 3 apples and buys 4." + " How many?" * i, "7") for i in range(5)]


def parts(config: Config, *asked: Asked, folder: Path = TINY) -> dict[str, float]:
    found = beside(WEIGHTS, folder, config.model, config.sampler, build_prompter(config.data), asked)
    return {name: round(gib, 4) for name, gib in found.parts.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_are_what_hf_makes_room_for(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shard of 3 problems, 4 completions each."""
    config = config_of(f"model.dtype={dtype}", "sampler.prompts_per_shard=3", "sampler.max_new_tokens=5")
    prompter, policy = build_prompter(config.data), load_policy(config.model, "cpu")
    batches: list[hf.DecodingBatch] = []
    select = hf.DecodingBatch.select

    def noted(batch: hf.DecodingBatch, rows: Any) -> None:
        select(batch, rows)
        batches.append(batch)
        sizes.append(sum(each.all_keys.nbytes + each.all_values.nbytes for each in batch.layers))

    sizes: list[int] = []
    monkeypatch.setattr(hf.DecodingBatch, "select", noted)
    prompts = [policy.encode(prompter.render(problem.question)).tolist() for problem in ASKED]
    HFSampler(config.sampler).sample(policy, prompts[:3], 4, (0,), ())
    counted = beside(0, TINY, config.model, config.sampler, prompter, [Asked("data.n", ASKED, 4)])
    assert counted.parts["keys and values"] * 2**30 == max(sizes)
    assert counted.ways == ["lower sampler.prompts_per_shard or data.n"]


def test_the_shard_that_needs_most_is_named() -> None:
    config = config_of()
    few, many = Asked("data.n", ASKED, 2), Asked("data.eval_n", ASKED[:2], 64)
    for asked in ([few, many], [many, few]):
        found = beside(0, TINY, config.model, config.sampler, build_prompter(config.data), asked)
        assert found.ways == ["lower sampler.prompts_per_shard or data.eval_n"]


def test_prompts_that_leave_no_room_are_left_out() -> None:
    long = Problem("long", "1" * 3000, "1")
    config = config_of("sampler.prompts_per_shard=6")
    assert parts(config, Asked("data.n", [long, *ASKED], 4)) == parts(config, Asked("data.n", ASKED, 4))
    assert parts(config, Asked("data.n", [long], 4)) == {}


def test_weights_that_a_sampler_holds_once_more() -> None:
    lora = "model.lora={rank: 4, alpha: 8, targets: all-linear}"
    assert parts(config_of()) == {}
    assert parts(config_of("model.dtype=bfloat16")) == {"their cast to bfloat16": 14.9575}
    assert parts(config_of("model.dtype=bfloat16", lora)) == {}
    assert parts(config_of("sampler=vllm")) == {"the engine's weights": 29.9151, "its context": 3}
    two = ["sampler=vllm", "model.dtype=bfloat16", "sampler.tensor_parallel=2", "sampler.gpu_memory_utilization=0.5"]
    assert parts(config_of(*two)) == {"the engine's weights": 7.4788}
    found = [
        beside(0, TINY, config.model, config.sampler, build_prompter(config.data), []).ways[0]
        for config in (config_of("sampler=vllm"), config_of("sampler=vllm", lora))
    ]
    assert found[0].startswith("sampler.tensor_parallel=2")
    assert found[1].startswith("take sampler=hf")


def model(folder: Path, **settings: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_bytes_of_a_token(tmp_path: Path) -> None:
    assert token_bytes(model(tmp_path, **LLAMA_3), 2) == 131_072
    assert token_bytes(model(tmp_path, **{**LLAMA_3, "head_dim": 256}), 4) == 524_288
    plain = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    assert token_bytes(model(tmp_path, **plain, num_key_value_heads=4), 2) == 256
    assert token_bytes(model(tmp_path, **plain), 2) == 0  # some have fewer, by another name
    assert token_bytes(model(tmp_path, n_layer=2), 2) == 0


def test_a_tokenizer_that_cannot_be_read_is_left_to_loading(tmp_path: Path) -> None:
    folder = model(tmp_path, **LLAMA_3)
    assert parts(config_of(), Asked("data.n", ASKED, 4), folder=folder) == {}


def commands(page: str) -> list[list[str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^python -m topr_exp (.*)$", text, re.MULTILINE)
    return [shlex.split(block, comments=True) for block in blocks]


def test_the_adapter_of_an_8b_model_on_a_card_of_24_gb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of docs/using.md; prompts of 960 tokens, as with 8 worked examples of GSM8K."""
    (command,) = [words for words in commands("using.md") if any(word.startswith("model.lora=") for word in words)]
    folder = model(tmp_path, **LLAMA_3)
    monkeypatch.setattr(gpu_memory, "model_folder", lambda path, revision: folder)
    monkeypatch.setattr(files, "weight_count", lambda folder: WEIGHTS)
    monkeypatch.setattr(gpu_memory, "free_gib", lambda device: 22.0)  # that a card of 24 GB has at the least
    monkeypatch.setattr(sampler_memory, "prompt_lengths", lambda *given: [960] * len(given[-1]))
    sets = SimpleNamespace(train=ASKED, test=ASKED)
    problems: Any = SimpleNamespace(sets=sets, prompter=Prompter("{question}", (), False, ()))
    check_run(config_of(*command), problems, 1)
    whole = [word for word in command if not word.startswith(("data.eval_n", "sampler.prompts_per_shard"))]
    with pytest.raises(ConfigError, match=r"sampling needs 38.0 GiB .*weights 15.0, keys and values 23.0"):
        check_run(config_of(*whole), problems, 1)
    engine = [word for word in whole if word != "sampler=hf"]
    with pytest.raises(ConfigError, match=r"sampling needs 32.9 GiB .*engine's weights 15.0, its context 3.0"):
        check_run(config_of(*engine), problems, 1)
