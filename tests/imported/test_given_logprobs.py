"""Log-probabilities of a log that no sampler gives are refused; those of samplers, cut ones too, are taken."""

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import each_row, refused, small_config, write_lines
from tests.imported.test_imported_runs import FEW_TESTS, PROBLEMS
from topr_exp.imported.given_logprobs import check_given_logprobs
from topr_exp.imported.log_report import inspect_log
from topr_exp.pipeline import run

ZERO = "all 12 log-probabilities are 0"


def check(logprobs, tokens=None, problem_index=None):
    """Check these log-probabilities; by default each completion has other tokens, and all answer one problem."""
    if tokens is None:
        tokens = [[3 + row] * len(values) for row, values in enumerate(logprobs)]
    if problem_index is None:
        problem_index = [0] * len(logprobs)
    table = pa.table({"sampler_logp": logprobs, "tokens": tokens})
    check_given_logprobs(table, np.array(problem_index), "log.jsonl")


# Log-probabilities of completions | what is said of them
REFUSED = """
[[0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]] | "all 12 log-probabilities are 0"
[[-0.0, -0.0, -0.0, -0.0, -0.0, -0.0], [-0.0, -0.0, -0.0, -0.0, -0.0, -0.0]] | "all 12 log-probabilities are -?0"
[[-1.0, -1.0, -1.0, -1.0, -1.0, -1.0], [-1.0, -1.0, -1.0, -1.0, -1.0, -1.0]] | "all 12 log-probabilities are -1"
[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-0.5, -0.1, 0.0]] | "2 of 3 completions are all exactly 0"
"""
ENDING = r", which no sampler gives; mu=NAME .* data\.columns="


@each_row("logprobs line", REFUSED, literals=True)
def test_what_no_sampler_gives_is_refused(logprobs, line):
    with refused(rf"^data\.completions=log\.jsonl: .*{line}.*{ENDING}"):
        check(logprobs)


def test_a_share_of_zeros_that_no_sampler_gives_is_refused():
    with refused(r"99\.9 % of the log-probabilities are exactly 0"):
        check([[0.0] * 600 + [-0.1], [0.0] * 600])


# Log-probabilities | tokens | problems
TAKEN = """
[[0.0, -0.1], [0.0, 0.0]] | None | None
[[0.0, 0.0], [0.0, 0.0], [-0.5, -0.1]] | [[3, 4], [3, 4], [5, 6]] | None
[[0.0, 0.0], [0.0, 0.0], [-0.5, -0.1]] | None | [0, 1, 0]
[[-1.0, -1.0, -1.0]] | None | None
"""  # one is certain; the same twice; of two prompts; too few to tell


@each_row("logprobs tokens problem_index", TAKEN, literals=True)
def test_what_samplers_give_is_taken(logprobs, tokens, problem_index):
    check(logprobs, tokens, problem_index)


def test_zeros_of_a_distribution_that_top_p_cut_are_taken():
    check([[0.0] * 80 + [-0.1] * 20, [-0.3] * 100])


@pytest.fixture
def log_of_zeros(tmp_path):
    """Two completions of each of three problems, of which all log-probabilities are 0."""
    rows = []
    for problem in PROBLEMS[:3]:
        row = {"problem_id": problem.id, "completion": "x", "logprobs": [0.0, 0.0]}
        rows += [row | {"tokens": [3, 4]}, row | {"tokens": [3, 5]}]
    return write_lines(tmp_path / "zero.jsonl", rows)


def config_on(log, *words):
    return small_config(log.parent, f"data.completions={log}", "data.n=2", *FEW_TESTS, *words)


@pytest.mark.parametrize("words", [[], ["mu=sampler"], ["algo=dpo"]], ids=str)
def test_a_run_refuses_it_where_the_loss_would_read_it(log_of_zeros, words):
    config = config_on(log_of_zeros, *words)

    with refused(f"{ZERO}, which no sampler gives; mu=NAME"):
        run(config)

    assert not (config.folder / "metrics.jsonl").exists()


@pytest.mark.parametrize("words", [["mu=tiny_noise"], ["mu=none", "algo=naive"]], ids=str)
def test_a_run_takes_it_where_log_mu_is_not_that_of_the_log(log_of_zeros, words):
    assert run(config_on(log_of_zeros, *words))["n_train"] == 6


@pytest.mark.parametrize("settings", [[], ["model=tiny"]], ids=str)
def test_the_inspection_of_a_log_refuses_it_too(log_of_zeros, settings):
    with refused(ZERO):
        inspect_log(str(log_of_zeros), settings)
