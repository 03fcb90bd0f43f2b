"""Log-probabilities of a log that no sampler gives are refused; those of samplers, cut ones too, are taken."""

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import refused, small_config, write_lines
from tests.imported.test_imported_runs import FEW_TESTS, PROBLEMS
from topr_exp.imported.given_logprobs import check_given_logprobs
from topr_exp.imported.log_report import inspect_log
from topr_exp.pipeline import run

ZERO = "all 12 log-probabilities are 0"


def check(logprobs, tokens=None, problem_index=None):
    """Check these log-probabilities; by default each completion has other tokens, and all answer one problem."""
    if tokens is None:
        tokens = [[3 + row] * len(values) for row, values in enumerate(logprobs)]
    columns = {
        "sampler_logp": pa.array(logprobs, pa.list_(pa.float32())),
        "tokens": pa.array(tokens, pa.list_(pa.int32())),
    }
    check_given_logprobs(pa.table(columns), np.array(problem_index or [0] * len(logprobs)), "log.jsonl")


@pytest.mark.parametrize(
    "logprobs, line",
    [
        ([[0.0] * 6] * 2, ZERO),
        ([[-0.0] * 6] * 2, "all 12 log-probabilities are -?0"),
        ([[-1.0] * 6] * 2, "all 12 log-probabilities are -1"),
        ([[0.0] * 600 + [-0.1], [0.0] * 600], r"99\.9 % of the log-probabilities are exactly 0"),
        ([[0.0] * 3, [0.0] * 3, [-0.5, -0.1, 0.0]], "2 of 3 completions are all exactly 0"),
    ],
    ids=["zero", "minus zero", "one value", "share", "two certain"],
)
def test_what_no_sampler_gives_is_refused(logprobs, line):
    ending = r", which no sampler gives; mu=NAME .* data\.columns="

    with refused(rf"^data\.completions=log\.jsonl: .*{line}.*{ending}"):
        check(logprobs)


TWO_CERTAIN = [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.1]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"logprobs": [[0.0, -0.1], [0.0, 0.0]]},
        {"logprobs": TWO_CERTAIN, "tokens": [[3, 4], [3, 4], [5, 6]]},
        {"logprobs": TWO_CERTAIN, "problem_index": [0, 1, 0]},
        {"logprobs": [[0.0] * 80 + [-0.1] * 20, [-0.3] * 100]},
        {"logprobs": [[-1.0] * 3]},
    ],
    ids=["one certain", "the same twice", "of two prompts", "cut by top_p", "too few to tell"],
)
def test_what_samplers_give_is_taken(arguments):
    check(**arguments)


@pytest.fixture
def log_of_zeros(tmp_path):
    rows = []
    for problem in PROBLEMS[:3]:
        for token in (4, 5):
            rows.append({"problem_id": problem.id, "completion": "x", "tokens": [3, token], "logprobs": [0.0, 0.0]})
    return write_lines(tmp_path / "zero.jsonl", rows)


@pytest.mark.parametrize("words", [[], ["mu=sampler"], ["algo=dpo"]], ids=str)
def test_a_run_refuses_it_where_the_loss_would_read_it(tmp_path, log_of_zeros, words):
    config = small_config(tmp_path, f"data.completions={log_of_zeros}", "data.n=2", *FEW_TESTS, *words)

    with refused(f"{ZERO}, which no sampler gives; mu=NAME"):
        run(config)

    assert not (config.folder / "metrics.jsonl").exists()


@pytest.mark.parametrize("words", [["mu=tiny_noise"], ["mu=none", "algo=naive"]], ids=str)
def test_a_run_takes_it_where_log_mu_is_not_that_of_the_log(tmp_path, log_of_zeros, words):
    config = small_config(tmp_path, f"data.completions={log_of_zeros}", "data.n=2", *FEW_TESTS, *words)

    assert run(config)["n_train"] == 6


@pytest.mark.parametrize("settings", [[], ["model=tiny"]], ids=str)
def test_the_inspection_of_a_log_refuses_it_too(log_of_zeros, settings):
    with refused(ZERO):
        inspect_log(str(log_of_zeros), settings)
