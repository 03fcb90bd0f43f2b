"""A process that samples with vLLM: what it answers, how it fails in one line, and when it ends."""

import math
import signal
import subprocess
import sys

import pytest

from tests.conftest import refused
from tests.processes import is_running
from tests.sampling.conftest import BREAKS, FAILS, HANGS, PLAIN, REPORTS, STOPS, VANISHES, StandIn, uniform_policy
from tests.sweep_tools import wait_for
from topr_exp.sampling.engine import Engine
from topr_exp.sampling.engine_completions import completions_of
from topr_exp.sampling.engine_weights import send_weights
from topr_exp.sampling.sampler import Sample

START = {
    "model": "m",
    "dtype": "float32",
    "length": 8,
    "sleep": False,
    "trust_remote_code": False,
    "float32_head": False,
    "top_logprobs": 0,
    "keeps_drawable": False,
}
SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "max_new_tokens": 8,
    "stop": [],
    "eos": [1],
    "n": 2,
    "top_logprobs": 0,
    "keeps_drawable": False,
}


def start_engine(stand_in, log):
    engine = Engine(str(stand_in.python), log, threads=1, gpu=None, timeout_minutes=5)
    engine.ask("start", **START)
    return engine


def generate(engine, *prompts):
    seeds = [0] * len(prompts)
    answer = engine.ask("generate", prompts=prompts, seeds=seeds, **SAMPLING)
    return completions_of(answer, 11)


@pytest.fixture(scope="module")
def shared_stand_in(tmp_path_factory):
    return StandIn(tmp_path_factory.mktemp("engine") / "stand_in")


@pytest.fixture(scope="module")
def engine(shared_stand_in):
    """An engine that survives these tests."""
    engine = start_engine(shared_stand_in, shared_stand_in.folder / "engine.log")
    yield engine
    engine.close()


@pytest.fixture
def own_engine(stand_in, tmp_path):
    """An engine that a test may end."""
    engine = start_engine(stand_in, tmp_path / "engine.log")
    yield engine
    engine.close()


# ---- answers


def test_completions_come_in_the_order_of_prompts_from_an_empty_cache(engine, shared_stand_in):
    groups = generate(engine, (PLAIN, 5), (STOPS, 6))

    logprobs = [pytest.approx(-math.log(11))]
    by_eos = Sample([5], logprobs, "stop")
    by_string = Sample([6], logprobs, "stop_string")
    assert groups == [[by_eos, by_eos], [by_string, by_string]]
    assert len(shared_stand_in.notes("reset")) == len(shared_stand_in.notes("generate"))


def test_drawn_tokens_are_reported_before_the_answer(engine):
    reported_counts = []
    prompts = [(REPORTS, 5), (PLAIN, 6)]

    answer = engine.ask("generate", report=reported_counts.append, prompts=prompts, seeds=[0, 0], **SAMPLING)

    assert reported_counts == [1, 1, 1, 1]
    assert len(completions_of(answer, 11)) == 2
    assert len(generate(engine, (PLAIN, 5))) == 1, "reports of a request without a reader are left out"


def test_an_engine_computes_in_full_float32_and_draws_by_its_seeds(engine, shared_stand_in):
    generate(engine, (PLAIN, 5))

    environment = shared_stand_in.notes("environment")[-1]
    assert environment["TRITON_F32_DEFAULT"] == "ieee"
    assert environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


@pytest.mark.parametrize(
    "act, message",
    [(FAILS, "ValueError: no such prompt; its log is"), (VANISHES, "vLLM lost requests;")],
)
def test_what_vllm_says_is_one_line_and_the_engine_goes_on(engine, act, message):
    with refused(f"^vLLM could not generate: {message}"):
        generate(engine, (PLAIN, 4), (act, 5))

    assert len(generate(engine, (PLAIN, 4))) == 1


def test_a_cache_that_stays_and_weights_that_do_not_fit_are_one_line(engine, shared_stand_in):
    shared_stand_in.refuse("empty", "weights")

    with refused("vLLM could not generate: vLLM did not empty its prefix cache"):
        generate(engine, (PLAIN, 5))
    with refused("vLLM could not take: RuntimeError: out of room; its log is"):
        send_weights(engine, uniform_policy())
    engine.ask("reload")
    with refused(r"vLLM could not take: RuntimeError: (?!out of room)"):
        engine.ask("take", name="weight", dtype="float32", shape=[-7], content=bytes(8), shared=None)

    shared_stand_in.refuse()


# ---- ends


def test_an_engine_that_breaks_says_why_and_stays_ended(own_engine):
    for act in (BREAKS, PLAIN):
        with refused("the vLLM engine ended: RuntimeError: no memory left"):
            generate(own_engine, (act, 5))


def test_an_engine_that_hangs_is_an_error_and_is_killed(own_engine):
    own_engine.timeout_minutes = 0.01

    with refused(r"no answer to generate within 0.01 minutes; look"):
        generate(own_engine, (HANGS, 5))
    own_engine.close()

    assert own_engine.process.returncode == -signal.SIGKILL


def test_a_failing_import_is_reported_by_the_start(stand_in, tmp_path):
    (stand_in.folder / "vllm/__init__.py").write_text("raise ImportError('libcudart.so.13: not found')\n")

    with refused(r"vLLM could not start: ImportError: libcudart.so.13: not found; its log"):
        start_engine(stand_in, tmp_path / "engine.log")


def test_a_busy_engine_ends_with_its_parent(stand_in, tmp_path):
    program = f"""
from pathlib import Path
from topr_exp.sampling.engine import Engine
engine = Engine({str(stand_in.python)!r}, Path({str(tmp_path)!r}) / "log", threads=1, gpu=None, timeout_minutes=5)
engine.ask("start", **{START!r})
print(engine.process.pid, flush=True)
engine.ask("generate", prompts=[[{HANGS}, 5]], seeds=[0], **{SAMPLING!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        worker = int(parent.stdout.readline())
        wait_for(lambda: bool(stand_in.notes("generate")))
        parent.send_signal(signal.SIGKILL)

    assert wait_for(lambda: not is_running(worker))
