"""docs/losses.md: the loss printed there is added in a folder of its own, built and called."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.algorithms.tabular_policies import random_case
from tests.conftest import ROOT, config_of
from tests.extending import LOSS, REWARD, SOURCE, commands, project
from topr_exp.__main__ import answer
from topr_exp.algorithms.base import NEEDS, Loss
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.load import build_section
from topr_exp.runs.inputs import inputs_of
from topr_exp.types import ConfigError


@pytest.mark.parametrize(
    ("part", "runs", "name"),
    [(LOSS, [1, 1, 6], "soft-topr"), (SOURCE, [1, 1, 4], "_coins_"), (REWARD, [1, 1], "_reward-graded_")],
    ids=["a loss", "a source", "a reward"],
)
def test_the_commands_find_it(tmp_path, capsys, part, runs, name):
    with project(tmp_path, part):
        for words, count in zip(commands(part), runs, strict=True):
            assert answer(parse_arguments([*dict.fromkeys([*words, "dry_run=true"])])) == 0
            *listed, last = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
            assert last.endswith("nothing started")
            assert (len(listed), name in listed[-1]) == (count, True)


def test_the_file_of_a_loss_is_an_input_of_its_runs(tmp_path):
    with project(tmp_path, LOSS):
        config = config_of("--config-dir", "conf", "algo=soft_topr")
        (key,) = (key for key in inputs_of(config)["files"] if key.startswith("algo._target_"))
        assert key == "algo._target_ (soft_topr.py)"


def test_a_value_out_of_range_is_refused_as_printed(tmp_path):
    for part, words in ((LOSS, ["algo=soft_topr", "algo.ceiling=0.5"]), (SOURCE, ["data=coins", "data.largest=5"])):
        with project(tmp_path, part), pytest.raises(ConfigError) as refused:
            config_of("--config-dir", "conf", *words)
        assert str(refused.value) in part


def test_the_table_of_needs_is_complete():
    table = LOSS.partition("`needs` is a set of:")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == NEEDS.keys()


def test_the_table_of_the_description_is_complete():
    table = LOSS.partition("## What a loss says of itself")[2].partition("`needs` is a set of:")[0]
    properties = {name for name, member in vars(Loss).items() if isinstance(member, property)}
    derived = {"paper", "divides_by_length", "limits_by_reward_sign"}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == properties - derived | {"rewards", "papers"}


def test_the_packages_checks_hold_for_the_printed_loss(tmp_path):
    (line,) = [line for line in LOSS.splitlines() if line.startswith("TOPR_LOSS=")]
    variable, python, *arguments = line.replace("../topr-exp", str(ROOT)).split()
    assert python == "python"
    command = [sys.executable, *arguments, "-p", "no:cacheprovider"]
    environment = {**os.environ, **dict([variable.split("=")])}
    with project(tmp_path, LOSS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20


@pytest.mark.parametrize("by_token", [False, True])
def test_gradient_of_the_printed_losses(tmp_path, by_token):
    """Of the example, and of that with the printed method for a weight of each token in the place of its own."""
    with project(tmp_path, LOSS):
        if by_token:
            (method,) = re.findall(r"```python\n(    def __call__.*?)```", LOSS, re.DOTALL)
            path = tmp_path / "soft_topr.py"
            before = path.read_text().partition("    def __call__")[0]
            path.write_text(before.replace("log_ratio, reduce", "lengths, masked, token_log_ratio, reduce") + method)
        loss = build_section("algo", OmegaConf.to_container(OmegaConf.load("conf/algo/soft_topr.yaml")))
        case = random_case(0, baseline=0.2)
        gradient = case.gradient(loss)
    assert isinstance(loss, Loss)
    r = np.exp(case.delta_t if by_token else case.delta[:, None])
    w = np.where(case.positive[:, None], 1.0, 2 * r / (1 + r))
    expected = -((case.R / case.length)[:, None] * (w[:, :, None] * case.score_t).sum(1)).mean(0)
    np.testing.assert_allclose(gradient, expected, atol=1e-10)
