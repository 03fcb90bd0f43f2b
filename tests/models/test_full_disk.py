"""A disk that has no room for one of a model's files: whichever library writes it, one line says so."""

import os
import resource
import signal

import pytest
from safetensors import SafetensorError

from tests.processes import PROCESSES
from topr_exp.config.model_choice import SHIPPED
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runtime.files import disk_reason

# Bytes a file may have: less than each of json, tokenizer.json and the weights
LIMITS = [0, 500, 2_000, 9_000, 1_000_000]


def save_with_limits(folder, answers):
    """Save a model with each limit on the size of a file, and send what is raised and what lies in the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shipped = SHIPPED / "tiny"
    model, tokenizer = (kind.from_pretrained(shipped) for kind in (AutoModelForCausalLM, AutoTokenizer))
    policy = Policy(model, tokenizer, "test", torch.float32)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the call fails instead
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in LIMITS:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard_limit))
        try:
            save_policy(policy, folder / "model")
            ending = "saved"
        except BaseException as error:
            ending = repr(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
        answers.put((ending, os.listdir(folder)))


def test_each_file_of_a_model_may_find_no_room(tmp_path):
    answers = PROCESSES.SimpleQueue()
    process = PROCESSES.Process(target=save_with_limits, args=(tmp_path, answers))

    process.start()
    for limit in LIMITS:
        assert answers.get() == (f"TOPRError('cannot write {tmp_path / 'model'}: File too large')", []), limit
    process.join()


@pytest.mark.parametrize(
    "error, reason",
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("odd"), "odd"),
        (Exception("No space left on device (os error 28)"), "No space left on device"),
        (SafetensorError("I/O error: x (os error 28)"), "No space left on device"),
        (SafetensorError("bad"), "bad"),
        (Exception("something else"), None),
        (ValueError("x (os error 28)"), None),
    ],
)
def test_what_says_that_a_disk_refuses(error, reason):
    assert disk_reason(error) == reason
