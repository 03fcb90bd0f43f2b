"""From YAMLs and overrides to the composed settings of each run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import config_of
from topr_exp.__main__ import main
from topr_exp.config.arguments import parse
from topr_exp.config.compose_overrides import Composer
from topr_exp.types import ConfigError


def runs(*words: str) -> list[list[str]]:
    composer = Composer(parse(words))
    return [overrides for overrides, _ in composer.jobs(composer.base())]


def test_a_sweep_is_every_combination_in_the_order_of_hydras_sweeper() -> None:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    for words in (
        ["seed=range(0,3)", "baseline=-0.3,0.1", "algo=glob(t*)", "+hydra.x=1"],
        ["seed=1,2", "data.n=4", "seed=choice(5,6)", "data.stop=[a,b],[c]", "name='x,y'"],
        ["seed=shuffle(1)", "optim.lr=sort(1e-3,1e-5)"],
    ):
        composer = Composer(parse(["-m", *words]))
        (expected,) = BasicSweeper.split_arguments(composer.overrides, max_batch_size=None)
        assert composer.expand(composer.base()) == [list(one) for one in expected]


def test_what_a_yaml_sweeps_over_comes_first_and_gives_way_to_the_command_line() -> None:
    assert runs("experiment=agro_fig1", "-m", "seed=7")[0][-2:] == ["experiment=agro_fig1", "seed=7"]
    assert len(runs("experiment=agro_fig1", "-m")) > len(runs("experiment=agro_fig1", "-m", "seed=7"))


@pytest.mark.parametrize("swept", ["data.nn=1,2", "optim.lr.x=1,2"])
def test_a_swept_key_that_nothing_reads_is_named(swept: str) -> None:
    with pytest.raises(ConfigError, match=f"^nothing reads {swept.split('=')[0]}"):
        runs("-m", swept)


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
