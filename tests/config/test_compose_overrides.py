"""From the words of a command line and YAMLs to the composed settings of each run."""

from __future__ import annotations

import contextlib
import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.conftest import ROOT, config_of
from topr_exp import __version__
from topr_exp.__main__ import main
from topr_exp.config.arguments import parse
from topr_exp.config.compose_overrides import Composer
from topr_exp.config.load import CONF
from topr_exp.types import ConfigError


def runs(*words: str) -> list[list[str]]:
    composer = Composer(parse(words))
    return [overrides for overrides, _ in composer.jobs(composer.base())]


def test_a_sweep_is_every_combination_in_the_order_of_hydras_sweeper() -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    for words in (
        ["seed=range(0,3)", "baseline=-0.3,0.1", "algo=glob(t*)", "hydra.mode=MULTIRUN"],
        ["seed=1,2", "data.n=4", "seed=choice(5,6)", "data.stop=[a,b],[c]", "name='x,y'"],
        ["seed=shuffle(1)", "optim.lr=sort(1e-3,1e-5)"],
    ):
        composer = Composer(parse(["-m", *words]))
        (expected,) = BasicSweeper.split_arguments(composer.overrides, max_batch_size=None)
        assert [words for words, _ in composer.jobs(composer.base())] == [list(one) for one in expected]


def test_runs_that_share_a_composition_are_what_hydra_composes() -> None:
    words = ["-m", "model=tiny,llama3_8b", "algo=topr,is,dpo", "data.n=2,8", "optim.lr=1e-3,1e-5", "seed=3"]
    composer = Composer(parse([*words, "++model.lora={rank: 4, alpha: 8, targets: all-linear}", "model.lora.rank=8"]))
    jobs = list(composer.jobs(composer.base()))
    assert len(jobs) == 24
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert all(job == compose("config", overrides) for overrides, job in jobs)


def test_what_a_yaml_sweeps_over_comes_first_and_gives_way_to_the_command_line() -> None:
    assert runs("experiment=agro_fig1", "-m", "seed=7")[0][-2:] == ["experiment=agro_fig1", "seed=7"]
    assert len(runs("experiment=agro_fig1", "-m")) > len(runs("experiment=agro_fig1", "-m", "seed=7"))


@pytest.mark.parametrize(
    ("words", "key", "texts"),
    [
        ("name=2024_11_03", "name", ["2024_11_03"]),
        ("name=1e5", "name", ["1e5"]),
        ("name=True", "name", ["True"]),
        ("name='1_0'", "name", ["1_0"]),
        ("output_dir= +.5e-3 ", "output_dir", ["+.5e-3"]),
        ("model.path=2024_11_03,1e5,'2_0',tiny", "model.path", ["2024_11_03", "1e5", "2_0", "tiny"]),
        ("model.name=choice(1e5,2_0)", "model.name", ["1e5", "2_0"]),
        ("model.name=range(1,3)", "model.name", ["1", "2"]),
        ("data.source=1e5", "data.source", ["1e5"]),
        ("data.fewshot_file=nan", "data.fewshot_file", ["nan"]),
        ("data.stop=[1e5, '2_0', a\\,3_0],[nan]", "data.stop", [["1e5", "2_0", "a,3_0"], ["nan"]]),
        ("tracking.group=null,1_0", "tracking.group", [None, "1_0"]),
        ("optim.lr=1e-3,2e-3", "optim.lr", [0.001, 0.002]),
    ],
)
def test_a_text_has_the_users_own_words(words: str, key: str, texts: list[Any]) -> None:
    composer = Composer(parse(["-m", "tracking=wandb", words]))
    jobs = [composed for _, composed in composer.jobs(composer.base())]
    assert [OmegaConf.select(composed, key) for composed in jobs] == texts


def test_a_text_of_the_users_own_class_that_looks_like_a_number_needs_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words_loss.py").write_text(
        "from dataclasses import dataclass\nfrom topr_exp.algorithms.dpo import DPO\n"
        "@dataclass(frozen=True)\nclass Mine(DPO):\n    kind: str = 'a'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["algo=dpo", "algo._target_=words_loss.Mine"]
    assert config_of(*words, "+algo.kind='1e5'").algo.kind == "1e5"
    with pytest.raises(ConfigError, match=r"^algo.kind=100000.0: expected text; a text that looks like a number needs"):
        config_of(*words, "+algo.kind=1e5")


def test_a_choice_may_look_like_a_number(tmp_path: Path) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "1_0.yaml").write_text((ROOT / "conf" / "algo" / "dpo.yaml").read_text())
    assert config_of("--config-dir", str(tmp_path), "algo=1_0").algo.name == "dpo"


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("name: 2024_11_03", "name=20241103: expected text; a text that looks like a number needs quotes"),
        ("data: {stop: [1e5]}", "data.stop[0]=100000.0: expected text; a text that"),
        (
            "hydra: {sweeper: {params: {model.name: 2024_11_03}}}",
            "model.name=20241103: expected text; in hydra.sweeper",
        ),
    ],
)
def test_a_number_of_a_yaml_has_lost_its_words_and_is_refused(yaml: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{yaml}\n")
    with pytest.raises(ConfigError) as refused:
        config_of("--config-dir", str(tmp_path), "experiment=mine", "-m")
    assert str(refused.value).startswith(message)


def test_a_yaml_of_the_users_hides_ours_in_the_run_and_in_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "dpo.yaml").write_text("_target_: topr_exp.algorithms.dpo.DPO\nname: dpo\nbeta: 7.0\n")
    words = ["--config-dir", str(tmp_path), "algo=dpo"]
    assert config_of(*words).algo.beta == 7.0
    monkeypatch.setattr("sys.argv", ["topr_exp", *words, "--cfg", "job", "--package", "algo"])
    assert main() == 0
    assert "beta: 7.0" in capsys.readouterr().out
    assert config_of("algo=dpo").algo.beta == 0.1  # and no later command is answered from that folder


FLAGS = ["-h", "--help", "--hydra-help", "-m", "--multirun", "-r", "--run", "--resolve", "-sc", "--shell-completion"]
TAKING = ["-c", "--cfg", "-i", "--info", "-p", "--package", "-cd", "--config-dir", "-cn", "--config-name", "-cp"]
TAKING += ["--config-path", "--experimental-rerun", "--package=x", "--multi", "--nope", "--"]
WORDS = [*FLAGS, *TAKING, "job", "all", "plugins", "conf", "seed=1", "+seed=-3", "~baseline", "a.b='x y'", "-5"]


def outcome(read: Callable[[], Namespace]) -> object:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            return vars(read())
        except SystemExit as stop:
            return stop.code, said.getvalue().rpartition("error:")[2]


@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_words_are_read_as_hydra_reads_them(words: list[str]) -> None:
    from hydra._internal.utils import get_args_parser

    assert outcome(lambda: parse(words)) == outcome(lambda: get_args_parser().parse_intermixed_args(words))


def test_the_version_is_this_programs() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        parse(["--version"])
    assert said.getvalue() == f"topr_exp {__version__}\n"
