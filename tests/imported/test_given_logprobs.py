"""Log-probabilities of a log that no sampler gives are refused; those of samplers, cut ones too, are taken."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import config_of, overrides, refused, write_lines
from tests.imported.test_imported_runs import problems
from topr_exp.imported.given_logprobs import check_given_logprobs
from topr_exp.imported.log_report import inspect_log
from topr_exp.pipeline import run

ZERO = "all 12 log-probabilities are 0"


def check(logprobs: list[list[float]], tokens: list[list[int]] | None = None, problem: list[int] | None = None) -> None:
    if tokens is None:
        tokens = [[3 + row] * len(values) for row, values in enumerate(logprobs)]
    columns = {
        "sampler_logp": pa.array(logprobs, pa.list_(pa.float32())),
        "tokens": pa.array(tokens, pa.list_(pa.int32())),
    }
    check_given_logprobs(pa.table(columns), np.array(problem or [0] * len(logprobs)), "log.jsonl")


@pytest.mark.parametrize(
    ("logprobs", "line"),
    [
        ([[0.0] * 6] * 2, ZERO),
        ([[-0.0] * 6] * 2, "all 12 log-probabilities are -?0"),
        ([[-1.0] * 6] * 2, "all 12 log-probabilities are -1"),
        ([[0.0] * 600 + [-0.1], [0.0] * 600], r"99\.9 % of the log-probabilities are exactly 0"),
        (
            [[0.0] * 3, [0.0] * 3, [-0.5, -0.1, 0.0]],
            "2 of 3 completions are all exactly 0",
        ),
    ],
    ids=["zero", "minus zero", "one value", "share", "two certain"],
)
def test_what_no_sampler_gives_is_refused(logprobs: Any, line: str) -> None:
    with refused(
        rf"^data\.completions=log\.jsonl: .*{line}.*, which no sampler gives; mu_model=NAME .* data\.columns="
    ):
        check(logprobs)


def test_what_samplers_give_is_taken() -> None:
    check([[0.0, -0.1], [0.0, 0.0]])  # one certain completion
    check([[0.0, 0.0], [0.0, 0.0], [-0.5, -0.1]], tokens=[[3, 4], [3, 4], [5, 6]])  # the same one twice
    check([[0.0, 0.0], [0.0, 0.0], [-0.5, -0.1]], problem=[0, 1, 0])  # of two prompts
    check([[0.0] * 80 + [-0.1] * 20, [-0.3] * 100])  # a distribution cut by top_p
    check([[-1.0] * 3])  # too few to tell


def log_of_zeros(folder: Path) -> Path:
    rows = [
        {"problem_id": problem.id, "completion": "x", "tokens": [3, 4 + sample], "logprobs": [0.0, 0.0]}
        for problem in problems()[:3]
        for sample in range(2)
    ]
    return write_lines(folder / "zero.jsonl", rows)


def test_a_run_refuses_it_where_the_loss_would_read_it_and_only_there(tmp_path: Path) -> None:
    words = (f"data.completions={log_of_zeros(tmp_path)}", "data.n=2", "data.test_problems=2", "data.eval_n=1")
    for more in ((), ("mu=sampler",), ("algo=dpo",)):
        config = config_of(*overrides(tmp_path, *words, *more))
        with refused(f"{ZERO}, which no sampler gives; mu_model=NAME"):
            run(config)
        assert not (config.folder / "metrics.jsonl").exists()
    for more in (("mu_model=tiny_noise",), ("mu=none", "algo=naive")):  # log μ is not the log's
        assert run(config_of(*overrides(tmp_path, *words, *more)))["n_train"] == 6


def test_the_inspection_of_a_log_refuses_it_too(tmp_path: Path) -> None:
    log = log_of_zeros(tmp_path)
    for settings in ([], ["model=tiny"]):
        with refused(ZERO):
            inspect_log(str(log), settings)
