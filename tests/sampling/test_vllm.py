"""Real vLLM, on the CPU, in the environment that `make vllm` makes: it samples from the model that training has."""

import contextlib
import copy
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import ROOT, column, config_of, lines_of, normal, overrides, small_config
from tests.plain_scoring import completion_logits, cut_to_top_k, logp_at
from tests.sampling.test_sampler import check_frequencies, exact_probabilities
from tests.sweep_tools import wait_for
from tests.sweeps.test_group import assert_same_run, launch
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.sampling.sampler import Sample
from topr_exp.sampling.vllm import VLLM

ENVIRONMENT = Path(os.environ.get("TOPR_VLLM", ROOT / ".venv-vllm"))
PYTHON = ENVIRONMENT / "bin/python"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ENVIRONMENT / ".installed").exists(), reason=f"no vLLM in {ENVIRONMENT}; run `make vllm`"),
]
PROMPTS = ["Tom has 3 apples. He buys 2 more. How many apples does Tom have?", "Ann has 20 coins"]


def settings(*overrides):
    return ["sampler=vllm", f"sampler.python={PYTHON}", *overrides]


@pytest.fixture(scope="module")
def tiny():
    return load_policy(config_of().model, "cpu")


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """A sampler whose engine these tests share; they leave it with the shipped weights or others."""
    torch.set_num_threads(1)
    sampler = VLLM(config_of(*settings()).sampler, tmp_path_factory.mktemp("sampler"), False)
    yield sampler
    sampler.close()


def draw(vllm, policy, n, seed=0, stop=(), **changes):
    """n completions of each of PROMPTS."""
    settings = {"max_new_tokens": 24} | changes
    vllm.config = dataclasses.replace(vllm.config, **settings)
    prompts = [policy.encode(text).tolist() for text in PROMPTS]
    vllm.prepare(policy, 100)
    groups = vllm.sample(policy, prompts, n, (seed,), stop)
    return prompts, groups


@torch.no_grad()
def tempered_logits(policy, prompt, sample, temperature=1.0):
    """[T, V] what transformers would draw each token from, before top-k and top-p."""
    return completion_logits(policy.model, prompt, sample.tokens) / temperature


def transformers_logp(policy, prompt, sample):
    return logp_at(tempered_logits(policy, prompt, sample), sample.tokens)


def perturbed(policy, name, by):
    """Other weights of the same model, which lie in no folder."""
    model = copy.deepcopy(policy.model)
    for weight in model.parameters():
        weight.data += by * normal(*weight.shape)
    return dataclasses.replace(policy, model=model, fingerprint=name, folder=None)


def test_log_probabilities_are_those_of_transformers(vllm, tiny):
    prompts, groups = draw(vllm, tiny, 16)

    finishes = set()
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            expected = transformers_logp(tiny, prompt, sample)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)
            *inner_tokens, last_token = sample.tokens
            assert not set(inner_tokens) & set(tiny.eos_ids)
            assert (sample.finish == "stop") == (last_token in tiny.eos_ids)
            assert len(sample.tokens) == 24 or sample.finish == "stop"
            finishes.add(sample.finish)
    assert finishes == {"stop", "length"}
    made_by = vllm.made_by()
    assert made_by["sampler"] == "vllm"
    assert made_by["device"] == "cpu"


@pytest.mark.parametrize(
    "changes",
    [{"top_k": 3, "temperature": 1.3, "max_new_tokens": 3}, {"top_p": 0.9, "temperature": 1.5, "max_new_tokens": 2}],
    ids=str,
)
def test_frequencies_follow_the_exact_probabilities(vllm, tiny, changes):
    """Under the distribution that they were drawn from: after temperature, top-k and top-p."""
    prompts, groups = draw(vllm, tiny, 2000, **{"top_p": 1.0, "top_k": 0} | changes)

    cells = 0
    for prompt, group in zip(prompts, groups, strict=True):
        cells += check_frequencies(group, exact_probabilities(tiny.model, prompt, vllm.config, eos=2), 1e-3)
    assert cells >= 5
    vllm.config = dataclasses.replace(vllm.config, top_p=1.0, top_k=0, temperature=1.0)


def test_the_same_seed_gives_the_same_completions_after_any_other_request(vllm, tiny):
    groups, groups_of_another_seed, repeated = (draw(vllm, tiny, 8, seed)[1] for seed in (3, 4, 3))

    assert groups == repeated  # log-probabilities too, to the last digit
    assert groups != groups_of_another_seed
    assert len({tuple(sample.tokens) for sample in groups[0]}) > 1  # the completions of a prompt have different seeds


def test_stop_strings_end_completions_as_in_the_reference_sampler(vllm, tiny):
    _, groups = draw(vllm, tiny, 16, stop=("=", "answer"))

    ends_in_stop_string = tiny.stop_check(("=", "answer"))
    finishes = set()
    for sample in chain.from_iterable(groups):
        prefixes = [sample.tokens[:length] for length in range(1, len(sample.tokens))]
        assert not any(map(ends_in_stop_string, prefixes))
        assert (sample.finish == "stop_string") == ends_in_stop_string(sample.tokens)
        finishes.add(sample.finish)
    assert "stop_string" in finishes


# ---- what is noted beside the tokens


def closing_sampler(folder, *words):
    """A sampler of its own engine, closed at the end of the block."""
    config = config_of(*settings(*words)).sampler
    return contextlib.closing(VLLM(config, folder, False))


def assert_noted(expected, sample, count):
    """The `count` largest log-probabilities of each row of [T, V] are noted, and the drawn token's is one of them."""
    for place, row in enumerate(expected):
        logp, ids = sample.top_tokens[place]
        if ids is None:
            assert len(logp) == len(row)
            ids = np.arange(len(row))
        else:
            largest = row.sort(descending=True).values[:count]
            np.testing.assert_allclose(logp, largest, atol=1e-4)
        assert len(set(ids.tolist())) == len(ids) == len(logp)
        np.testing.assert_allclose(logp, row[ids], atol=1e-4)
        noted_by_id = dict(zip(ids.tolist(), logp.tolist(), strict=True))
        logprob = sample.logprobs[place]
        assert noted_by_id.get(sample.tokens[place], logprob) == logprob, "the same in both columns"


@pytest.mark.parametrize("count", [4, 1000], ids=["the likeliest", "all"])
def test_noted_log_probabilities_are_those_of_transformers(tiny, tmp_path, count):
    drawn_beside = 0
    with closing_sampler(tmp_path, f"sampler.top_logprobs={count}") as sampler:
        for temperature, top_k in ((1.0, 0), (2.0, 0), (1.3, 3)):
            prompts, groups = draw(sampler, tiny, 8, temperature=temperature, top_k=top_k)
            for prompt, group in zip(prompts, groups, strict=True):
                for sample in group:
                    logits = tempered_logits(tiny, prompt, sample, temperature)
                    if top_k:
                        logits = cut_to_top_k(logits, top_k)
                    assert_noted(logits.log_softmax(-1), sample, count)
                    for token, (_, ids) in zip(sample.tokens, sample.top_tokens, strict=True):
                        drawn_beside += ids is not None and token not in ids
        _, evaluated_groups = draw(sampler.without_mismatch(), tiny, 8, temperature=1.3, top_k=3)

    assert (drawn_beside > 0) == (count == 4), "some drawn tokens are none of the likeliest four"
    for group, evaluated_group in zip(groups, evaluated_groups, strict=True):
        for sample, evaluated_sample in zip(group, evaluated_group, strict=True):
            assert evaluated_sample == Sample(sample.tokens, sample.logprobs, sample.finish)


# Passes what a step gives, in vLLM's own classes, through vLLM's own processing of outputs and the worker.
PROCESS_OUTPUTS = """
import json, runpy, sys, types
import numpy as np

worker = types.SimpleNamespace(**runpy.run_path(sys.argv[1], run_name="worker"))
counts = []
worker.pack_log_probabilities(counts.append)
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists, SamplingMaskLists

params = SamplingParams(logprobs=2, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
request = EngineCoreRequest(request_id="0", prompt_token_ids=[1], mm_features=None, sampling_params=params,
                            pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None,
                            data_parallel_rank=None, external_req_id="0")
processor = OutputProcessor(None, log_stats=False)
processor.add_request(request, None)
masks = SamplingMaskLists(np.array([5, 7, 9, 2], np.int32), np.array([0, 3, 4], np.int64))
for step, (token, end) in enumerate([(7, None), (2, FinishReason.STOP)]):
    ids, logp = np.array([[token, 5, 7]]), np.array([[-1.0, -0.25, -1.0]], np.float32)
    output = EngineCoreOutput(request_id="0", new_token_ids=[token], finish_reason=end, stop_reason=2 if end else None,
                              new_logprobs=LogprobsLists(ids, logp, np.array([2])),
                              new_sampling_mask=masks.slice_request(step, 1))
    results = processor.process_outputs([output]).request_outputs
answer = worker.completion(results[0].outputs[0], top_count=2, keeps_drawable=True)
print(json.dumps([counts, {key: getattr(value, "tolist", lambda: value)() for key, value in answer.items()}]))
"""


def test_an_output_of_vllm_passes_through_the_worker():
    worker = ROOT / "topr_exp/sampling/vllm_worker.py"

    process = subprocess.run([PYTHON, "-c", PROCESS_OUTPUTS, worker], capture_output=True, text=True)

    assert process.returncode == 0, process.stderr
    counts, answer = json.loads(process.stdout.splitlines()[-1])
    assert counts == [1, 1]
    assert answer == {
        "tokens": [7, 2],
        "logprobs": [-1.0, -1.0],
        "finish": "stop",
        "top_ids": [5, 7, 5, 7],
        "top_logp": [-0.25, -1.0, -0.25, -1.0],
        "drawable_ids": [5, 7, 9, 2],
        "drawable_counts": [3, 1],
    }


# ---- precision and weights


def test_in_bfloat16_the_engine_computes_logits_in_float32(tiny, tmp_path):
    """Differences of log-probabilities after a prompt are those of logits: most would be steps of 2^-9 in bfloat16."""
    flat = perturbed(tiny, "flat", 0.0)
    flat.model.model.norm.weight.data *= 0.3  # several first tokens are likely
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    flat.model.save_pretrained(folder)
    changes = {"folder": folder, "compute_dtype": torch.bfloat16}

    with closing_sampler(tmp_path) as sampler:
        _, groups = draw(sampler, dataclasses.replace(flat, **changes), 64)

    differences = []
    for group in groups:
        logprob_by_token = {sample.tokens[0]: sample.logprobs[0] for sample in group}
        differences.append(np.diff(sorted(logprob_by_token.values())))
    steps = np.concatenate(differences) * 2**9
    assert float(np.median(np.abs(steps - np.round(steps)))) > 0.1


# ---- whole runs


ROUNDS = ["algo=rloo", "schedule.rounds=3", "schedule.prompts=4", "optim.lr=1e-3"]
SHARDS = ["sampler.prompts_per_shard=1"]  # 8 of the evaluation and 16 to train on: a kill finds some of them to go


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run and its summary."""
    config = small_config(tmp_path_factory.mktemp("run"), *settings(*SHARDS))
    return config, run(config)


def engine_pids(folder):
    """Processes whose output goes into a folder's log."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if str(folder) in os.readlink(entry):
                pids.append(int(entry.parts[2]))
    return pids


def shards(store):
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.glob("rollouts/*/*.arrow"))}


def test_a_run_trains_on_what_vllm_sampled_from_its_model(finished):
    config, summary = finished

    assert summary["n_train"] == 16 * 4
    for ratio in summary["sampler_mismatch"]["sequence_ratio"].values():
        assert ratio == pytest.approx(1, abs=1e-3)  # nothing is cut off, so vLLM's log-probabilities are μ's
    wait_for(lambda: not engine_pids(config.folder))


def test_a_run_killed_while_it_samples_goes_on_to_the_same_bits(finished, tmp_path):
    arguments = overrides(tmp_path, *settings(*SHARDS))
    config = config_of(*arguments)
    finished_config = finished[0]
    store = tmp_path / "store"
    command = [sys.executable, "-m", "topr_exp", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: len(shards(store)) >= 9, 900)
        process.send_signal(signal.SIGKILL)
    assert len(shards(store)) < 24
    wait_for(lambda: not engine_pids(config.folder))  # the engine does not outlive the run

    run(config)

    assert len(shards(store)) == 24
    assert shards(store) == shards(Path(finished_config.output_dir) / "store")
    weights = [run_config.folder / "model/model.safetensors" for run_config in (config, finished_config)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_two_processes_with_an_engine_each_make_the_rounds_that_one_makes(tmp_path):
    arguments = settings("sampler.prompts_per_shard=2", *ROUNDS)
    one_process, two_processes = (small_config(tmp_path / name, *arguments) for name in ("one", "two"))

    run(one_process)
    process = launch(tmp_path / "two", *arguments, "cluster.processes=2")

    assert process.returncode == 0, process.stderr
    assert shards(tmp_path / "two/store") == shards(tmp_path / "one/store")
    assert_same_run(two_processes.folder, one_process.folder)
    assert len(list(two_processes.folder.glob("sampler/*/engine.log"))) == 2
    wait_for(lambda: not engine_pids(two_processes.folder))


LORA = ["model.lora={rank: 4, alpha: 8, targets: all-linear}"]
LAGGED = ["algo=topr", "schedule=async", "schedule.lag=1"]


@pytest.mark.parametrize("changes, draws", [([], 3), (LORA, 3), (LAGGED, 2)], ids=["", "lora", "lag"])
def test_rounds_draw_from_the_weights_that_they_begin_with(tmp_path, changes, draws):
    config = small_config(tmp_path, *settings(*ROUNDS, *changes))

    run(config)

    lines = lines_of(config.folder / "metrics.jsonl")
    assert column(lines, "round") == [0, 1, 2]
    gaps = [line["sampler_gap"] for line in lines if line["sampler_gap"] is not None]
    assert len(gaps) == draws
    assert max(gaps) < 1e-4
    assert (changes == LORA) == (config.folder / "model/adapter/adapter_model.safetensors").is_file()
