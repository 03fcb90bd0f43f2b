"""A pretrained model on real problems: SmolLM2-135M-Instruct, which the package index has, on GSM8K."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.real_model import write_real_model
from tests.conftest import SHARED_DATA, config_of, lines_of, read_json, write_lines
from tests.plain_scoring import completion_logp
from tests.sweep_tools import result
from tests.training.broken_runs import break_off
from topr_exp.data.benchmarks import gsm8k_gold
from topr_exp.data.prompts import CHAT_TEMPLATES, Prompter
from topr_exp.evaluate import main
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.types import TOPRError

GSM8K = SHARED_DATA / "gsm8k"
pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]
needs_gsm8k = pytest.mark.skipif(not (GSM8K / "train.jsonl").exists(), reason=f"no GSM8K in {GSM8K}")


@pytest.fixture(scope="module")
def real_model(tmp_path_factory):
    """The model's folder: the one that TOPR_REAL_MODEL names, else a new one of this module."""
    if given_folder := os.environ.get("TOPR_REAL_MODEL"):
        return Path(given_folder)
    folder = tmp_path_factory.mktemp("real") / "smollm2"
    try:
        write_real_model(folder)
    except TOPRError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def policy(real_model):
    torch.set_num_threads(1)
    return load_policy(config_of("model=smollm2_135m", f"model.path={real_model}", "model.dtype=float32").model, "cpu")


# ---- the model


def test_the_shape_is_the_published_one_with_grouped_heads_and_tied_embeddings(policy):
    config = policy.model.config
    model = policy.model
    weight_counts = [weight.numel() for weight in model.parameters()]
    embeddings = model.get_input_embeddings().weight
    output_layer = model.get_output_embeddings().weight

    assert sum(weight_counts) == 134_515_008
    assert config.num_attention_heads == 9
    assert config.num_key_value_heads == 3
    assert config.num_hidden_layers == 30
    assert output_layer.data_ptr() == embeddings.data_ptr()
    assert policy.vocabulary == 49_152
    assert policy.context == 8192


def test_the_weights_are_a_language_models(policy):
    """A wrong order of heads or a lost layer would leave tokens little likelier than chance, −10.8 nats."""
    first_token, *tokens = policy.encode("The capital of France is Paris. The capital of Germany is Berlin.").tolist()

    with torch.no_grad():
        logp = completion_logp(policy.model, [first_token], tokens)

    assert float(logp.mean()) > -3


def test_a_chat_prompt_is_the_templates_and_its_end_is_also_the_padding(policy):
    tokenizer = policy.tokenizer
    question = "Tom has 3 apples and buys 2 more. How many has he?"
    content = CHAT_TEMPLATES["gsm8k"].replace("{question}", question)
    messages = [{"role": "user", "content": content}]

    text = Prompter(CHAT_TEMPLATES["gsm8k"], chat=True).render(question, tokenizer)
    ids = policy.encode(text, chat=True).tolist()

    assert policy.eos_ids == [tokenizer.eos_token_id] == [tokenizer.pad_token_id] == [2]
    assert ids == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert policy.text_of(np.array(ids)).endswith(f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n")


# ---- runs of two updates on GSM8K's problems


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An output folder that the runs share, so that the base is sampled once."""
    return tmp_path_factory.mktemp("runs")


SHORT = """
model=smollm2_135m model.dtype=float32 sampler=hf data=gsm8k data.train_problems=4 data.test_problems=2 data.n=2
data.eval_n=1 sampler.max_new_tokens=24 sampler.prompts_per_shard=4 optim.batch_size=4 optim.micro_batch_size=4
optim.lr=1e-5 cluster.threads=1
"""


def short_run(folder, model, *words):
    """The settings of a run of two updates; `words` replace what is given before them."""
    places = [f"model.path={model}", f"data.source={GSM8K}", f"output_dir={folder}"]
    return config_of(*SHORT.split(), *places, *words)


@pytest.fixture(scope="module")
def imitation(folder, real_model):
    """A finished run of SFT: two passes over GSM8K's own solutions to eight problems, in one batch."""
    rows = []
    for line in lines_of(GSM8K / "train.jsonl")[:8]:
        solution = line["answer"].partition("####")[0].strip()
        answer = gsm8k_gold(line["answer"])
        completion = f"{solution}\nThe answer is {answer}."
        rows.append({"question": line["question"], "completion": completion, "gold": answer})
    log = write_lines(folder / "solutions.jsonl", rows)
    words = ("algo=sft", "mu=none", "optim.batch_size=8", "optim.epochs=2", "name=sft")
    config = short_run(folder, real_model, f"data.completions={log}", *words)
    run(config)
    return config


@pytest.mark.slow
@needs_gsm8k
def test_topr_from_there_breaks_off_and_goes_on_bit_for_bit_and_is_evaluated(imitation, folder):
    start = imitation.folder / "model"
    words = ("algo=topr", "checkpoint.every_seconds=0")
    undisturbed, broken = (short_run(folder, start, *words, f"name={name}") for name in ("undisturbed", "broken"))

    summary = run(undisturbed)
    break_off(broken, updates=1)
    run(broken)
    status = main([f"model={undisturbed.folder}", f"output_dir={folder}", "cluster.threads=1"])

    first, second = lines_of(imitation.folder / "metrics.jsonl")
    assert second["loss"] < first["loss"], "imitation makes solutions likelier"
    assert result(broken.folder) == result(undisturbed.folder)
    assert result(undisturbed.folder)["weights"] != result(imitation.folder)["weights"]
    assert status == 0
    (evaluation,) = folder.glob("evaluations/*/eval.json")
    assert read_json(evaluation)["figures"]["pass@1"] == summary["final"]["pass@1"]
