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
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import ROOT, config_of, lines_of, overrides
from tests.sampling.test_sampler import check_frequencies, exact_probabilities
from tests.sweeps.test_group import assert_same_run, launch
from topr_exp.models.policy import Policy, load_policy
from topr_exp.pipeline import run
from topr_exp.sampling import vllm as vllm_module
from topr_exp.sampling.engine import Engine
from topr_exp.sampling.sampler import Sample
from topr_exp.sampling.vllm import VLLM
from topr_exp.types import TOPRError

ENVIRONMENT = Path(os.environ.get("TOPR_VLLM", ROOT / ".venv-vllm"))
PYTHON = ENVIRONMENT / "bin" / "python"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ENVIRONMENT / ".installed").exists(), reason=f"no vLLM in {ENVIRONMENT}; run `make vllm`"),
]


def settings(*overrides: str) -> list[str]:
    return ["sampler=vllm", f"sampler.python={PYTHON}", *overrides]


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return load_policy(config_of().model, "cpu")


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLM]:
    """A sampler whose engine these tests share; they leave it with the shipped weights or others."""
    torch.set_num_threads(1)
    sampler = VLLM(config_of(*settings()).sampler, tmp_path_factory.mktemp("sampler"), False)
    yield sampler
    sampler.close()


def draw(vllm: VLLM, policy: Policy, n: int, seed: int = 0, stop: tuple[str, ...] = (), **changes: Any) -> Any:
    """n completions of each of PROMPTS."""
    vllm.config = dataclasses.replace(vllm.config, **{"max_new_tokens": 24} | changes)
    prompts = [policy.encode(text).tolist() for text in PROMPTS]
    vllm.prepare(policy, 100)
    return prompts, vllm.sample(policy, prompts, n, (seed,), stop)


PROMPTS = ["Tom has 3 apples. He buys 2 more. How many apples does Tom have?", "Ann has 20 coins"]


def transformers_logp(policy: Policy, prompt: list[int], sample: Sample) -> torch.Tensor:
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *sample.tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(sample.tokens)[:, None]).squeeze(-1)


def assert_same_model(policy: Policy, prompts: list[list[int]], groups: list[list[Sample]]) -> None:
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            expected = transformers_logp(policy, prompt, sample)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def perturbed(policy: Policy, name: str, by: float = 0.05) -> Policy:
    """Other weights of the same model, which lie in no folder."""
    model = copy.deepcopy(policy.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += by * torch.randn(weight.shape, generator=generator)
    return dataclasses.replace(policy, model=model, fingerprint=name, folder=None)


def test_log_probabilities_are_those_of_transformers(vllm: VLLM, tiny: Policy) -> None:
    prompts, groups = draw(vllm, tiny, 16)
    assert_same_model(tiny, prompts, groups)
    finishes = set()
    for sample in chain.from_iterable(groups):
        ends = [index for index, token in enumerate(sample.tokens) if token in tiny.eos_ids]
        assert ends == ([len(sample.tokens) - 1] if sample.finish == "stop" else [])
        assert len(sample.tokens) == 24 or sample.finish == "stop"
        finishes.add(sample.finish)
    assert finishes == {"stop", "length"}
    made_by = vllm.made_by()
    assert (made_by["sampler"], made_by["device"]) == ("vllm", "cpu")
    assert made_by["vllm"]


@pytest.mark.parametrize(
    "changes",
    [{"top_k": 3, "temperature": 1.3, "max_new_tokens": 3}, {"top_p": 0.9, "temperature": 1.5, "max_new_tokens": 2}],
    ids=str,
)
def test_frequencies_follow_the_exact_probabilities(vllm: VLLM, tiny: Policy, changes: dict[str, Any]) -> None:
    draws = 2000
    prompts, groups = draw(vllm, tiny, draws, **{"top_p": 1.0, "top_k": 0} | changes)
    assert tiny.eos_ids == [2]
    cells = 0
    for prompt, group in zip(prompts, groups, strict=True):
        # Under the distribution that they were drawn from: after temperature, top-k and top-p.
        cells += check_frequencies(group, exact_probabilities(tiny.model, prompt, vllm.config, eos=2), 1e-3)
    assert cells >= 5
    vllm.config = dataclasses.replace(vllm.config, top_p=1.0, top_k=0, temperature=1.0)


def test_the_same_seed_gives_the_same_completions_after_any_other_request(vllm: VLLM, tiny: Policy) -> None:
    groups, groups_of_another_seed, repeated = (draw(vllm, tiny, 8, seed)[1] for seed in (3, 4, 3))
    assert groups == repeated  # log-probabilities too, to the last digit
    assert groups != groups_of_another_seed
    assert len({tuple(sample.tokens) for sample in groups[0]}) > 1  # the completions of a prompt have different seeds


def test_stop_strings_end_completions_as_in_the_reference_sampler(vllm: VLLM, tiny: Policy) -> None:
    _, groups = draw(vllm, tiny, 16, stop=("=", "answer"))
    ends_in_stop_string = tiny.stop_check(("=", "answer"))
    finishes = set()
    for sample in chain.from_iterable(groups):
        prefixes = [sample.tokens[:length] for length in range(1, len(sample.tokens) + 1)]
        assert sum(map(ends_in_stop_string, prefixes)) <= 1
        assert (sample.finish == "stop_string") == ends_in_stop_string(sample.tokens)
        finishes.add(sample.finish)
    assert "stop_string" in finishes


COUNT_DECODED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import vllm_worker
sys.path.pop(0)  # another `vllm` lies there
worker = vllm_worker.Worker(None)
worker.start({"model": sys.argv[2], "dtype": "float32", "trust_remote_code": False, "length": 128, "eager": True,
              "sleep": False, "float32_head": False})
from vllm.v1.engine import logprobs
kind, calls = type(worker.llm.get_tokenizer()), []
def counted(owner, name):
    original = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: calls.append(name) or original(*given, **named))
counted(kind, "decode"), counted(kind, "convert_ids_to_tokens"), counted(logprobs, "convert_ids_list_to_tokens")
answer = worker.generate({"n": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 24, "eos": [2],
                          "stop": json.loads(sys.argv[3]), "seeds": [0, 1], "prompts": [[1, 5, 6], [1, 7]]})
print(json.dumps([len(calls), [len(one[0]) for group in answer["completions"] for one in group]]))
"""


@pytest.mark.parametrize("stop", [[], ["=", "answer"]], ids=str)
def test_sampled_tokens_are_not_decoded_one_by_one(tiny: Policy, stop: list[str]) -> None:
    arguments = [str(Path(vllm_module.__file__).parent), str(tiny.folder), json.dumps(stop)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [PYTHON, "-c", COUNT_DECODED, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert process.returncode == 0, process.stderr[-2000:]
    calls, lengths = json.loads(process.stdout.splitlines()[-1])
    assert sum(lengths) > 3 * len(lengths)
    assert calls <= len(lengths)


def test_logits_are_rounded_to_bfloat16_only_where_the_output_layer_is(tiny: Policy, tmp_path: Path) -> None:
    """Differences of log-probabilities after a prompt are those of logits: most are steps of 2^-9 in bfloat16."""
    flat = perturbed(tiny, "flat", 0.0)
    with torch.no_grad():
        flat.model.model.norm.weight *= 0.3  # several first tokens are likely
    assert tiny.folder is not None
    folder = tmp_path / "model"
    shutil.copytree(tiny.folder, folder)
    flat.model.save_pretrained(folder)

    def distance_to_steps(float32_head: bool) -> float:
        policy = dataclasses.replace(flat, folder=folder, compute_dtype=torch.bfloat16, float32_head=float32_head)
        sampler = VLLM(config_of(*settings()).sampler, tmp_path / str(float32_head), False)
        try:
            _, groups = draw(sampler, policy, 64)
        finally:
            sampler.close()
        differences = []
        for group in groups:
            logprob_by_token = {sample.tokens[0]: sample.logprobs[0] for sample in group}
            differences.append(np.diff(sorted(logprob_by_token.values())))
        steps = np.concatenate(differences) * 2**9
        return float(np.median(np.abs(steps - np.round(steps))))

    assert distance_to_steps(float32_head=True) > 0.1
    assert distance_to_steps(float32_head=False) < 0.01  # steps are finer near 0


def test_weights_are_reloaded_and_checked(vllm: VLLM, tiny: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(vllm, tiny, 1)
    engine = vllm.engine
    changed = perturbed(tiny, "changed")
    prompts, groups = draw(vllm, changed, 8)
    assert_same_model(changed, prompts, groups)
    with pytest.raises(AssertionError):
        assert_same_model(tiny, prompts, groups)
    monkeypatch.setattr(vllm_module, "send_weights", lambda engine, policy: None)
    with pytest.raises(TOPRError, match=r"differ from transformers' by [\d.]+ a token after weights were loaded"):
        draw(vllm, tiny, 1)
    monkeypatch.undo()
    prompts, groups = draw(vllm, tiny, 8)
    assert_same_model(tiny, prompts, groups)
    assert vllm.engine is engine  # one process all along


ROUNDS = ["algo=rloo", "schedule.rounds=3", "schedule.prompts=4", "optim.lr=1e-3"]
SHARDS = ["sampler.prompts_per_shard=1"]  # 8 of the evaluation and 16 to train on: a kill finds some of them to go


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """A whole run and its summary."""
    config = config_of(*overrides(tmp_path_factory.mktemp("run"), *settings(*SHARDS)))
    return config, run(config)


def test_the_whole_pipeline(finished: tuple[Any, dict[str, Any]]) -> None:
    config, summary = finished
    assert summary["n_train"] == 16 * 4
    assert summary["tokens"]["tokens_sampled"] > 0
    for ratio in summary["sampler_mismatch"]["sequence_ratio"].values():
        assert ratio == pytest.approx(1, abs=1e-3)  # nothing is cut off, so vLLM's log-probabilities are μ's
    made_by = json.loads((config.folder / "iteration-1" / "training_set.json").read_text())["sampler"]
    assert made_by["sampler"] == "vllm"
    assert "vllm" in made_by
    # The engine ended before training; a second one sampled from the trained weights.
    assert not engines_of(config.folder)


def engines_of(folder: Path) -> list[int]:
    """Processes whose output goes into a folder's log."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if str(folder) in os.readlink(entry):
                pids.append(int(entry.parts[2]))
    return pids


def shards(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.glob("rollouts/*/*.arrow"))}


def test_a_run_killed_while_it_samples_goes_on_to_the_same_bits(finished, tmp_path):
    arguments = overrides(tmp_path, *settings(*SHARDS))
    config = config_of(*arguments)
    command = [sys.executable, "-m", "topr_exp", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = tmp_path / "store"
    deadline = time.monotonic() + 900
    while len(shards(store)) < 9 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    finished_shards = shards(Path(finished[0].output_dir) / "store")
    assert len(finished_shards) == 24
    assert 9 <= len(shards(store)) < len(finished_shards)
    deadline = time.monotonic() + 300
    while engines_of(config.folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not engines_of(config.folder)  # the engine does not outlive the run

    run(config)
    assert shards(store) == finished_shards
    weights = [folder / "model" / "model.safetensors" for folder in (config.folder, finished[0].folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_two_processes_with_an_engine_each_make_the_rounds_that_one_makes(tmp_path: Path) -> None:
    arguments = settings("sampler.prompts_per_shard=2", *ROUNDS)
    one_process = config_of(*overrides(tmp_path / "one", *arguments))
    run(one_process)
    process = launch(tmp_path / "two", *arguments, "cluster.processes=2")
    assert process.returncode == 0, process.stderr
    two_processes = config_of(*overrides(tmp_path / "two", *arguments))
    assert shards(tmp_path / "two" / "store") == shards(tmp_path / "one" / "store")
    assert_same_run(two_processes.folder, one_process.folder)
    assert len(list(two_processes.folder.glob("sampler/*/engine.log"))) == 2
    assert not engines_of(two_processes.folder)


LORA = "model.lora={rank: 4, alpha: 8, targets: all-linear}"


LATE = ["algo=topr", "schedule=async", "schedule.lag=1"]


@pytest.mark.parametrize(("changes", "draws"), [([], 3), ([LORA], 3), (LATE, 2)], ids=["", "lora", "lag"])
def test_rounds_use_one_engine_and_give_it_the_weights(tmp_path, monkeypatch, changes, draws):
    requests: list[str] = []
    ask = Engine.ask

    def spy(self: Engine, request: str, **values: Any) -> Any:
        requests.append(request)
        return ask(self, request, **values)

    monkeypatch.setattr(Engine, "ask", spy)
    config = config_of(*overrides(tmp_path, *settings(*ROUNDS, *changes)))
    run(config)
    assert requests.count("start") == 2  # to evaluate the base, and for the rounds, in the memory left by training
    assert requests.count("reload") == draws + 1  # for the rounds, and the trained model
    lines = lines_of(config.folder / "metrics.jsonl")
    assert [line["round"] for line in lines] == [0, 1, 2]
    for line in lines:  # vLLM drew from the weights that the round began with
        assert line["sampler_gap"] is None or line["sampler_gap"] < 1e-4
    assert sum(line["sampler_gap"] is not None for line in lines) == draws
    assert (changes == [LORA]) == (config.folder / "model" / "adapter" / "adapter_model.safetensors").is_file()
