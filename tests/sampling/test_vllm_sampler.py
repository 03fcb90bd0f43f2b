"""The sampler's engines, with a stand-in for vLLM: when one starts, what reaches it, which weights it has."""

import contextlib
import hashlib
import math
import re
from array import array

import pytest
import torch

from tests.conftest import config_of, make_model, refused
from tests.sampling.conftest import uniform_policy
from tests.sweep_tools import wait_for
from topr_exp.models.policy import stored_weights
from topr_exp.sampling.sampler import Sample
from topr_exp.sampling.vllm import VLLM
from topr_exp.types import TOPRError

OPTIONS = {
    "dtype": "float32",
    "trust_remote_code": False,
    "max_model_len": 128,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "max_num_batched_tokens": 16384,
    "logprobs_mode": "processed_logprobs",  # of the distribution that was drawn from
    "generation_config": "vllm",
    "seed": 0,
    "enable_chunked_prefill": False,
    "kv_cache_memory_bytes": 2**30,
}
TOKEN_SETTINGS = ["sampler.temperature=0.7", "sampler.top_p=0.9", "sampler.top_k=5", "sampler.max_new_tokens=13"]
TOKEN_OPTIONS = {
    "n": 3,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "max_tokens": 13,
    "logprobs": 0,
    "ignore_eos": True,
    "stop_token_ids": [1],
    "stop": ["Q:", "\n"],
    "detokenize": True,
}


def open_vllm(stand_in, *settings, kind=VLLM, trust_remote_code=False, **options):
    config = config_of("sampler=vllm", stand_in.setting, *settings).sampler
    return kind(config, stand_in.folder / "sampler", trust_remote_code, **options)


def sample(sampler, policy, prompts=((0, 5),), n=1, stop=()):
    sampler.prepare(policy, 20)
    sampler.sample(policy, prompts, n, (4, 2), stop)


@pytest.fixture
def sampler(stand_in):
    with contextlib.closing(open_vllm(stand_in)) as sampler:
        yield sampler


# ---- requests


def test_every_setting_reaches_vllm(stand_in, policy):
    sampler = open_vllm(stand_in, *TOKEN_SETTINGS)
    with contextlib.closing(sampler):
        sample(sampler, policy, [[0, 5], [0, 6], [0, 5]], 3, ["Q:", "\n"])

    assert stand_in.notes("options") == [{"model": str(policy.folder), **OPTIONS}]
    requests = stand_in.notes("sampling")[-3:]
    for index, request in enumerate(requests):
        digest = hashlib.blake2b(f"4 2 {index}".encode(), digest_size=8).digest()
        assert request.pop("seed") == int.from_bytes(digest, "little") >> 2
        assert request == TOKEN_OPTIONS


def test_the_defaults_ask_vllm_for_all_tokens_and_no_text(stand_in, tmp_path):
    policy = uniform_policy(folder=tmp_path, compute_dtype=torch.bfloat16)
    sampler = open_vllm(stand_in, "sampler.top_k=500", trust_remote_code=True)  # of a vocabulary of 11
    with contextlib.closing(sampler):
        sample(sampler, policy)

    request = stand_in.notes("sampling")[-1]
    assert request["top_k"] == 11
    assert request["temperature"] == 1.0
    assert request["top_p"] == 1.0
    assert request["stop"] == []
    assert request["detokenize"] is False
    (options,) = stand_in.notes("options")
    assert options["trust_remote_code"]
    assert options["hf_overrides"] == {"head_dtype": "float32"}


# ---- what is noted beside the tokens


def draw(sampler, policy):
    """One completion of a prompt whose completion is token 5."""
    sampler.prepare(policy, 20)
    ((sample,),) = sampler.sample(policy, [[0, 5]], 1, (4, 2), [])
    return sample


def test_what_a_sampler_notes_is_asked_for_and_by_an_evaluation_is_not(stand_in, policy):
    settings = ["sampler.top_logprobs=3", "sampler.top_k=5", "algo.center_scores=true", "mu=sampler"]
    with contextlib.closing(open_vllm(stand_in, *settings, keeps_drawable=True)) as sampler:
        noted = draw(sampler, policy)
        evaluated = draw(sampler.without_mismatch(), policy)

    assert stand_in.notes("options") == [
        {"model": str(policy.folder), **OPTIONS, "max_logprobs": 3, "return_sampling_mask": True}
    ]
    check_request, request, request_of_evaluation = stand_in.notes("sampling")
    assert (check_request["logprobs"], check_request["top_k"]) == (0, 11), "it refuses requests without a top_k"
    assert request["logprobs"] == 3
    assert request["top_k"] == 5
    assert request_of_evaluation == {**request, "logprobs": 0}
    ((_, ids),) = noted.top_tokens
    assert ids.tolist() == [8, 9, 10]
    assert noted.drawable_ids == [[3, 5]]
    assert evaluated == Sample(noted.tokens, noted.logprobs, noted.finish)


def test_a_sampler_that_notes_nothing_evaluates_with_its_own_engine(sampler):
    assert sampler.without_mismatch() is sampler


def test_a_build_that_can_not_note_what_could_be_drawn_is_one_line(stand_in, policy):
    (stand_in.folder / "vllm/triton_utils.py").write_text("HAS_TRITON = False\n")
    line = r"vLLM could not start: vLLM notes the tokens that could be drawn on a GPU alone \(algo\.renormalize\)"

    with (
        contextlib.closing(open_vllm(stand_in, "sampler.top_k=5", keeps_drawable=True)) as sampler,
        refused(f"^{line}; its log is"),
    ):
        draw(sampler, policy)


# ---- engines and their weights


def test_vllm_is_imported_before_there_is_a_model(sampler, stand_in, policy, capsys):
    """So an engine's start takes only its remaining seconds; it is a separate stage."""
    stages = []
    sampler.time_stages_with(lambda stage: contextlib.nullcontext(stages.append(stage)))

    for _ in range(2):
        sampler.warm_up()
    wait_for((stand_in.folder / "imported").exists)
    process = sampler.next_engine.process
    assert not stand_in.notes("start")

    for _ in range(2):
        sample(sampler, policy)
    assert sampler.engine.process is process
    assert stages == ["engine"]
    line = capsys.readouterr().err
    assert re.search(r"engine +started in \d+ s: \d+ import.*, \d+ load, profile and compile\n", line)

    sampler.release()  # the policy trains; the next engine imports meanwhile
    assert process.returncode == 0, "without the long end of vLLM and CUDA"
    assert sampler.engine is None
    next_process = sampler.next_engine.process
    sampler.close()
    assert next_process.returncode is not None


def test_an_engine_starts_from_a_folder_and_takes_later_weights_in_its_precision(sampler, stand_in, tmp_path):
    first = uniform_policy("first", tmp_path, compute_dtype=torch.bfloat16)
    second = uniform_policy("second", compute_dtype=torch.bfloat16)
    last = uniform_policy("the last", compute_dtype=torch.bfloat16)

    for policy in (first, first, second, last, last):
        sample(sampler, policy)
    assert stand_in.notes("start") == [str(tmp_path)]
    assert len(stand_in.notes("weights")) == 2

    sampler.close()
    sample(sampler, last)  # of another engine, which starts with the folder's weights
    expected = {}
    for name, weight in last.model.named_parameters():
        expected[name] = ["torch.bfloat16", weight.bfloat16().double().sum().item()]
    assert stand_in.notes("weights")[1:] == [expected, expected]


# ---- engines on a GPU that has little memory


class FakeEngine:
    """Notes requests, and refuses those that `refusals` names."""

    def __init__(self):
        self.requests = []
        self.refusals = {}

    def ask(self, request, *, prompts=(), n=1, **values):
        self.requests.append(request)
        if request in self.refusals:
            raise TOPRError(f"vLLM could not {request}: {self.refusals[request]}")
        completion = {
            "tokens": array("i", [3]),
            "logprobs": array("f", [-math.log(11)]),
            "finish": "stop",
            "top_ids": array("i"),
            "top_logp": array("f"),
        }
        completions = [[completion] * n] * len(prompts)
        return {"made_by": {}, "import_seconds": 1.0, "imported_at": 0.0, "completions": completions}

    def close(self):
        self.requests.append("close")


class SamplerOfFakeEngine(VLLM):
    """A sampler whose engines are all the same fake one."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.fake = FakeEngine()

    def new_engine(self):
        return self.fake

    def requests_to_sample(self, policy):
        self.fake.requests.clear()
        sample(self, policy)
        return [*self.fake.requests]


@pytest.fixture
def fake_sampler(stand_in):
    return open_vllm(stand_in, kind=SamplerOfFakeEngine)


def reload_requests(policy):
    """What hands weights to an engine, one after the other."""
    weight_count = len(list(stored_weights(policy.model)))
    return ["reload", *["take"] * weight_count, "done"]


CHECK = "generate"  # two completions that transformers scores too


def test_an_engine_stays_where_there_is_room_to_train_beside_it(fake_sampler, policy, gpu):
    gpu.free = 100
    fake_sampler.requests_to_sample(policy)

    fake_sampler.release()
    requests = fake_sampler.requests_to_sample(uniform_policy("trained"))

    assert requests == [*reload_requests(policy), CHECK, "generate"]


def test_an_engine_that_fits_wakes_and_another_one_is_replaced(stand_in, policy):
    sampler = open_vllm(stand_in, "sampler.sleep=true", kind=SamplerOfFakeEngine, beside_training=True)
    reload = reload_requests(policy)

    assert sampler.requests_to_sample(policy) == ["start", CHECK, "generate"]
    assert sampler.requests_to_sample(policy) == ["generate"]
    sampler.sleep()
    assert sampler.requests_to_sample(policy) == ["wake", *reload, CHECK, "generate"]
    assert sampler.requests_to_sample(uniform_policy("later")) == [*reload, CHECK, "generate"]

    sampler.sleep()
    sampler.fake.refusals = {"wake": "out of memory"}  # AdamW's state came meanwhile
    assert sampler.requests_to_sample(policy) == ["wake", "close", "start", CHECK, "generate"]
    sampler.max_length = 2048
    assert sampler.requests_to_sample(policy) == ["close", "start", CHECK, "generate"]


def test_an_engine_that_samples_from_another_model_is_refused(fake_sampler, policy):
    policy.model = make_model(11)  # not uniform, as the engine says

    with refused("it samples from another model"):
        sample(fake_sampler, policy)


NO_MEMORY = "ValueError: Free memory on device (3.1/79.1 GiB) on startup is less than"
NO_CACHE = "ValueError: No available memory for"
GIVEN_BACK = "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB."


@pytest.mark.parametrize(
    "message, runs, tries",
    [(NO_MEMORY, 4, 3), (NO_CACHE, 4, 3), (GIVEN_BACK, 4, 3), ("no such file", 4, 1), (NO_MEMORY, 1, 1)],
)
def test_an_engine_without_memory_waits_for_the_other_runs(
    fake_sampler, gpu, policy, message, runs, tries, monkeypatch, capsys
):
    """It warns once; any other refusal, and a GPU that no other run uses, ends the run."""
    free_later = iter([100.0, 140.0])  # the other runs leave after the second try
    monkeypatch.setattr("time.sleep", lambda seconds: setattr(gpu, "free", next(free_later)))
    gpu.free = 100.0
    gpu.share_among(runs)
    fake_sampler.fake.refusals = {"start": message}

    with refused("vLLM could not start"):
        sample(fake_sampler, policy)

    assert fake_sampler.fake.requests.count("start") == tries
    assert capsys.readouterr().err.count("it waits until they leave some") == int(tries > 1)


def test_an_engine_also_waits_for_memory_that_was_taken_while_it_started(fake_sampler, gpu, policy, monkeypatch):
    """A start takes a minute, in which another run may grow or leave."""
    answers = iter([False, True, True])  # before and after a start, before the next
    monkeypatch.setattr("topr_exp.sampling.vllm.others_hold_memory", lambda: next(answers))
    monkeypatch.setattr("time.sleep", lambda seconds: fake_sampler.fake.refusals.clear())
    gpu.share_among(2)
    fake_sampler.fake.refusals = {"start": NO_MEMORY}

    assert fake_sampler.requests_to_sample(policy) == ["start", "close", "start", CHECK, "generate"]
