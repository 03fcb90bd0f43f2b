"""docs/losses.md: the loss printed there is added in a folder of its own, built and called."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import topr_exp
from tests.conftest import ROOT, config_of, refused
from tests.extending import LOSS, REWARD, SOURCE, commands, project
from topr_exp.__main__ import run_command
from topr_exp.algorithms.base import Loss
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.types import ConfigError


@pytest.mark.parametrize(
    "page, counts, run_name",
    [(LOSS, [1, 6], "soft-topr"), (SOURCE, [1, 1, 4], "_coins_"), (REWARD, [1], "_reward-graded_")],
    ids=["a loss", "a source", "a reward"],
)
def test_the_printed_commands_list_their_runs(tmp_path, capsys, page, counts, run_name):
    with project(tmp_path, page):
        for words, count in zip(commands(page), counts, strict=True):
            assert run_command(parse_arguments([*dict.fromkeys([*words, "dry_run=true"])])) == 0

            *runs, last = capsys.readouterr().out.rpartition("\n\n")[2].splitlines()
            assert last.endswith("nothing started")
            assert len(runs) == count
            assert run_name in runs[-1]


def test_a_value_out_of_range_is_refused_as_printed(tmp_path):
    with project(tmp_path, LOSS), refused("", ConfigError) as error:
        config_of("--config-dir", "conf", "algo=soft_topr", "algo.ceiling=0.5")

    assert str(error.value) in LOSS


def test_a_value_out_of_the_range_of_a_source_is_refused(tmp_path):
    with project(tmp_path, SOURCE), refused("^data.largest must be 10 or more; got 5$", ConfigError):
        config_of("--config-dir", "conf", "data=coins", "data.largest=5")


def test_the_page_names_what_a_loss_says_of_itself():
    description = LOSS.partition("## What a loss says of itself")[2]
    names_on_page = set(re.findall(r"`(\w+)`", description))
    properties = {name for name, member in vars(Loss).items() if isinstance(member, property)}
    derived = {"paper", "divides_by_length", "lowers_negative_rewards_alone"}

    assert properties - derived | {"rewards", "papers"} <= names_on_page


@pytest.mark.extended
def test_the_packages_checks_hold_for_the_printed_loss(tmp_path):
    (line,) = re.findall(r"^TOPR_LOSS=.*$", LOSS, re.MULTILINE)
    variable, _, *arguments = line.replace("../topr-exp", str(ROOT)).split()
    environment = {**os.environ, "TOPR_LOSS": variable.removeprefix("TOPR_LOSS=")}
    command = [sys.executable, *arguments, "-p", "no:cacheprovider"]

    with project(tmp_path, LOSS):
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)

    assert process.returncode == 0, process.stdout
    passed = re.search(r"(\d+) passed", process.stdout)
    assert int(passed[1]) >= 8


def test_python_composes_with_the_printed_loss_and_then_knows_it_by_name(tmp_path):
    with project(tmp_path, LOSS):
        composed_loss = topr_exp.compose(["--config-dir", "conf", "algo=soft_topr", "algo.ceiling=3"]).algo
        function = topr_exp.loss("soft_topr", ceiling=4.0).function

    assert composed_loss.name == "soft_topr"
    assert composed_loss.ceiling == 3.0
    assert function.ceiling == 4.0


@pytest.mark.parametrize("word", ["-m", "--help", "--config-name=other"])
def test_python_composes_from_settings_and_a_folder_alone(word):
    with refused(f"{word}: compose takes KEY=VALUE and --config-dir FOLDER alone", ConfigError):
        topr_exp.compose([word])


def test_the_printed_test_holds_for_the_printed_loss_and_for_no_other(tmp_path):
    with project(tmp_path, LOSS):
        importlib.import_module("test_soft_topr").test_gradient_of_an_incorrect_completion()
        code = Path("soft_topr.py").read_text()
        Path("soft_topr.py").write_text(code.replace("self.ceiling *", ""))
        for name in ("soft_topr", "test_soft_topr"):
            importlib.reload(sys.modules[name])

        with pytest.raises(AssertionError, match="not close"):
            sys.modules["test_soft_topr"].test_gradient_of_an_incorrect_completion()
