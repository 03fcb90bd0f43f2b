"""A disk that has no room for one of a model's files: whichever library writes it, one line says so."""

import multiprocessing
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from topr_exp.models.model_folder import SHIPPED
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runtime.files import disk_reason
from topr_exp.types import TOPRError

LIMITS = [*range(0, 9_000, 500), 100_000, 1_000_000]  # below the sizes of json, tokenizer.json and the weights


def save_with_limits(folder: Path, answers: Any, with_weights: bool) -> None:
    """Save with each limit on the size of a file, and send what is raised: TOPRError's text, or a kind."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not with_weights:  # which are written first, and are larger than the tokenizer
        save_policy.__globals__["save_model"] = lambda model, target: None
    shipped = SHIPPED / "tiny"
    model, tokenizer = (kind.from_pretrained(shipped) for kind in (AutoModelForCausalLM, AutoTokenizer))
    policy = Policy(model, tokenizer, "test", torch.float32)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the call fails instead
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in LIMITS:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            save_policy(policy, folder / "model")
            ending = "saved"
        except TOPRError as error:
            ending = str(error)
        except BaseException as error:
            ending = type(error).__name__
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        answers.put((limit, ending, sorted(path.name for path in folder.iterdir())))


@pytest.mark.parametrize("with_weights", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_each_of_a_models_files_may_find_no_room(with_weights: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=save_with_limits, args=(tmp_path, answers, with_weights))
    process.start()
    for limit in LIMITS:
        number, ending, names = answers.get()
        saved = not with_weights and limit > 9_000
        assert number == limit
        assert ending == ("saved" if saved else f"cannot write {tmp_path / 'model'}: File too large")
        assert names == (["model"] if saved else [])
    process.join()


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd"),
     (Exception("No space left on device (os error 28)"), "No space left on device"),
     (SafetensorError("I/O error: x (os error 28)"), "No space left on device"), (SafetensorError("bad"), "bad"),
     (Exception("something else"), None), (ValueError("x (os error 28)"), None)],
)  # fmt: skip
def test_what_says_that_a_disk_refuses(error: Exception, reason: str | None) -> None:
    assert disk_reason(error) == reason
