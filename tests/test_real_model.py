"""A pretrained model on real problems: SmolLM2-135M-Instruct, which the package index has, on GSM8K."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scripts.real_model import write_real_model
from tests.conftest import SHARED_DATA, config_of, last_of_each, lines_of, needs_peft, write_lines
from tests.sampling.test_vllm import ENVIRONMENT, PYTHON, assert_same_model
from tests.sweep_tools import records
from tests.training.broken_runs import break_off
from tests.training.test_packing import LAYOUTS, assert_same, one_by_one, scored, use_layout
from topr_exp.data.benchmarks import gsm8k_gold
from topr_exp.data.prompts import CHAT_TEMPLATES, Prompter
from topr_exp.evaluate import main
from topr_exp.models.policy import Policy, load_policy
from topr_exp.pipeline import run
from topr_exp.sampling.vllm import VLLM
from topr_exp.types import TOPRError

GSM8K = SHARED_DATA / "gsm8k"
pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]
needs_gsm8k = pytest.mark.skipif(not (GSM8K / "train.jsonl").exists(), reason=f"no GSM8K in {GSM8K}")


@pytest.fixture(scope="module")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder: the one that TOPR_REAL_MODEL names, else a new one of this module."""
    if folder := os.environ.get("TOPR_REAL_MODEL"):
        return Path(folder)
    made = tmp_path_factory.mktemp("real") / "smollm2"
    try:
        write_real_model(made)
    except TOPRError as error:
        pytest.skip(str(error))
    return made


@pytest.fixture(scope="module")
def policy(real_model: Path) -> Policy:
    torch.set_num_threads(1)
    return load_policy(config_of("model=smollm2_135m", f"model.path={real_model}", "model.dtype=float32").model, "cpu")


def question_prompt(policy: Policy, question: str) -> list[int]:
    """The ids of a question as a GSM8K run asks it."""
    text = Prompter(CHAT_TEMPLATES["gsm8k"], (), True, ()).render(question, policy.tokenizer)
    return policy.encode(text, chat=True).tolist()


QUESTIONS = ["Tom has 3 apples and buys 2 more. How many has he?", "A robe takes 2 bolts. How many do 3 robes take?"]
ANSWERS = ["He has 3 + 2 = 5 apples. The answer is 5.", "3 robes take 3 * 2 = 6 bolts. The answer is 6.", "It is 7."]


# ---- the model


def test_its_shape_is_the_published_one_with_grouped_heads_and_tied_embeddings(policy: Policy) -> None:
    config = policy.model.config
    assert sum(weight.numel() for weight in policy.model.parameters()) == 134_515_008
    assert (config.num_attention_heads, config.num_key_value_heads, config.num_hidden_layers) == (9, 3, 30)
    embeddings, output = policy.model.get_input_embeddings(), policy.model.get_output_embeddings()
    assert output.weight.data_ptr() == embeddings.weight.data_ptr()
    assert (policy.vocabulary, policy.context) == (49_152, 8192)


def test_its_weights_are_a_language_models(policy: Policy) -> None:
    """A wrong order of heads or a lost layer would leave tokens little likelier than chance, −10.8 nats."""
    ids = policy.encode("The capital of France is Paris. The capital of Germany is Berlin.")
    with torch.no_grad():
        logp = policy.model(torch.tensor(ids[None].astype("int64"))).logits[0].log_softmax(-1)
    of_next = logp[:-1].gather(-1, torch.tensor(ids[1:, None].astype("int64")))
    assert float(of_next.mean()) > -3


def test_a_chat_prompt_is_the_templates_and_its_end_is_also_the_padding(policy: Policy) -> None:
    tokenizer: Any = policy.tokenizer
    assert policy.eos_ids == [tokenizer.eos_token_id] == [tokenizer.pad_token_id] == [2]
    ids = question_prompt(policy, QUESTIONS[0])
    message = {"role": "user", "content": CHAT_TEMPLATES["gsm8k"].replace("{question}", QUESTIONS[0])}
    assert ids == tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
    assert policy.text_of(np.array(ids)) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", *LAYOUTS])
def test_every_layout_gives_the_log_probabilities_and_gradients_of_single_rows(layout, policy, monkeypatch):
    """With grouped heads, tied embeddings and logits of a trained model."""
    sequences = []
    for question in QUESTIONS:
        prompt = np.array(question_prompt(policy, question))
        sequences += [(prompt, policy.encode(f" {answer}")) for answer in ANSWERS[:2]]
    use_layout(monkeypatch, layout)
    assert_same(scored(policy.model, sequences), one_by_one(policy.model, sequences), tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not (ENVIRONMENT / ".installed").exists(), reason=f"no vLLM in {ENVIRONMENT}; run `make vllm`")
def test_vllm_samples_by_the_log_probabilities_of_transformers(policy: Policy, tmp_path: Path) -> None:
    words = ["sampler=vllm", f"sampler.python={PYTHON}", "sampler.max_new_tokens=12"]
    sampler = VLLM(config_of(*words).sampler, tmp_path / "sampler", False)
    prompts = [question_prompt(policy, question) for question in QUESTIONS]
    try:
        sampler.prepare(policy, 200)
        groups = sampler.sample(policy, prompts, 2, (0,), ())
    finally:
        sampler.close()
    assert [len(group) for group in groups] == [2, 2]
    assert_same_model(policy, prompts, groups)


# ---- runs on GSM8K's problems


def words(folder: Path, real_model: Path, *more: str) -> list[str]:
    """A run of two updates; `more` replaces what is given before it."""
    return last_of_each([
        "model=smollm2_135m", f"model.path={real_model}", "model.dtype=float32", "sampler=hf", "data=gsm8k",
        f"data.source={GSM8K}", "data.train_problems=4", "data.test_problems=2", "data.n=2", "data.eval_n=1",
        "sampler.max_new_tokens=24", "sampler.prompts_per_shard=4", "optim.batch_size=4", "optim.micro_batch_size=4",
        "optim.lr=1e-5", f"output_dir={folder}", "cluster.threads=1", *more,
    ])  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder that the runs share, so that the base is sampled once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def imitation(folder: Path, real_model: Path) -> Any:
    """The settings of a finished run of SFT: two passes over GSM8K's own solutions to eight problems, in one batch."""
    rows = []
    for line in lines_of(GSM8K / "train.jsonl")[:8]:
        solution = line["answer"].partition("####")[0].strip()
        answer = gsm8k_gold(line["answer"])
        rows.append(
            {"question": line["question"], "completion": f"{solution}\nThe answer is {answer}.", "gold": answer}
        )
    log = write_lines(folder / "solutions.jsonl", rows)
    more = [f"data.completions={log}", "algo=sft", "mu=none", "optim.batch_size=8", "optim.epochs=2", "name=sft"]
    config = config_of(*words(folder, real_model, *more))
    run(config)
    return config


@pytest.mark.slow
@needs_gsm8k
def test_sft_on_imported_solutions_makes_them_likelier(imitation: Any) -> None:
    first, second = lines_of(imitation.folder / "metrics.jsonl")
    assert second["loss"] < first["loss"]
    assert json.loads((imitation.folder / "summary.json").read_text())["positive_share"] == 1


@pytest.mark.slow
@needs_gsm8k
def test_topr_from_there_breaks_off_and_goes_on_bit_for_bit_and_is_evaluated(imitation: Any, folder: Path) -> None:
    start = imitation.folder / "model"
    every = ["algo=topr", "checkpoint.every_seconds=0"]
    undisturbed, broken = (config_of(*words(folder, start, *every, f"name={name}")) for name in ("whole", "broken"))
    summary = run(undisturbed)
    assert len(records(undisturbed.folder)) == 2
    break_off(broken, lambda trainer: trainer.step == 1)
    run(broken)
    assert records(broken.folder) == records(undisturbed.folder)
    weights = [config.folder / "model" / "model.safetensors" for config in (undisturbed, broken)]
    assert weights[0].read_bytes() == weights[1].read_bytes() != (start / "model.safetensors").read_bytes()
    assert main([f"model={undisturbed.folder}", f"output_dir={folder}", "cluster.threads=1"]) == 0
    (evaluated,) = folder.glob("evaluations/*/eval.json")
    assert json.loads(evaluated.read_text())["figures"]["pass@1"] == summary["final"]["pass@1"]


@pytest.mark.slow
@needs_gsm8k
@needs_peft
def test_lora_trains_the_adapter_alone(folder: Path, real_model: Path) -> None:
    more = ["model.lora={rank: 4, alpha: 8, targets: all-linear}", "algo=topr", "optim.lr=1e-3", "name=lora"]
    config = config_of(*words(folder, real_model, *more))
    run(config)
    adapter = config.folder / "model" / "adapter"
    assert (adapter / "adapter_model.safetensors").stat().st_size < 10e6  # of all weights 538 MB
    first, second = records(config.folder)
    assert abs(first["kl_mu"]) < 1e-6 < second["kl_mu"], "the adapter starts at 0, and then moves the policy"
