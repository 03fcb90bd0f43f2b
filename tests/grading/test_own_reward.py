"""The documents: a run with their loss, source and graded reward, its report and an evaluation."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import config_of
from tests.extending import LOSS, REWARD, SOURCE, project
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run
from topr_exp.report.__main__ import main as report
from topr_exp.store import Store
from topr_exp.types import TOPRError

OWN = ["--config-dir", "conf", "algo=soft_topr", "data=coins", "data.grader=closeness:grade", "data.reward=graded"]
PLACE = ["output_dir=out", "cluster.threads=1"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, LOSS, SOURCE, REWARD):
        with (tmp_path / "coins.py").open("a") as file:
            file.write('Coins.solution = lambda self, problem: f"The answer is {problem.answer}."\n')
        yield tmp_path


def test_a_run_with_all_three_its_report_and_an_evaluation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of("experiment=smoke", *OWN, *PLACE, "baseline=-1.5", "data.threshold=0.4")
    summary = run(config)
    shown = capsys.readouterr().out
    assert "rewards as graded" in shown
    assert "tested on   8 problems of coins from Coins" in shown
    assert config.folder.name.startswith("soft-topr_coins")
    noted = json.loads((config.folder / "inputs.json").read_text())["files"]
    assert noted.keys() == {
        "algo._target_ (soft_topr.py)", "data._target_ (coins.py)", "data.grader (closeness.py)"
    }  # fmt: skip
    stored = json.loads((config.folder / "config.json").read_text())
    assert stored["identity"]["data"]["_target_"] == stored["resolved"]["data"]["_target_"] == "coins.Coins"
    assert "mean reward" in shown
    record = json.loads((config.folder / "eval.jsonl").read_text().splitlines()[0])
    verdicts = Store(config.store).open(Path(record["verdicts"])).read()
    rewards, correct = np.array(verdicts["reward"].to_pylist()), np.array(verdicts["verdict"].to_pylist()) == "correct"
    assert (correct == (rewards >= 0.4)).all()
    assert len(set(rewards.tolist())) > 3
    assert summary["base"]["mean_reward"] == record["mean_reward"] == pytest.approx(rewards.mean())
    assert summary["base"]["pass@1"] == pytest.approx(correct.mean())
    each = rewards.reshape(-1, config.data.eval_n).mean(axis=1)
    assert summary["base"]["mean_reward_se"] == pytest.approx(each.std(ddof=1) / len(each) ** 0.5)
    trained = json.loads((config.folder / "iteration-1" / "training_set.json").read_text())
    assert summary["mean_reward"] == trained["mean_reward"]
    line = json.loads((config.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert line["mean_reward"] != line["positive_share"]
    card = (config.folder / "model" / "README.md").read_text()
    assert "mean reward\n" in card
    assert f" {summary['base']['mean_reward']:.3g}\n" in card

    assert report(["out/runs", "--out", "shown"]) == 0
    (row,) = csv.DictReader((folder / "shown" / "tables" / "runs.csv").open())
    assert float(row["final_mean_reward"]) == pytest.approx(summary["final"]["mean_reward"])
    page = (folder / "shown" / "report.html").read_text()
    assert f">{summary['final']['mean_reward']:.3g} [" in page

    capsys.readouterr()
    words = [f"model={config.folder}", *PLACE]
    assert evaluate(words) == 2
    assert "data._target_=coins.Coins of the run that wrote the model decides" in capsys.readouterr().err
    assert evaluate([*OWN[:2], *words]) == 2
    assert "data.grader=closeness:grade of the run that wrote the model" in capsys.readouterr().err
    assert evaluate([*OWN[:2], *words, "data.grader=closeness:grade"]) == 0
    assert f"mean reward {summary['final']['mean_reward']:.3g} ± " in capsys.readouterr().out

    source = folder / "coins.py"
    source.write_text(source.read_text().replace("last number is", "very last number is"))
    with pytest.raises(TOPRError, match=r"data\._target_ \(coins\.py\) has changed since"):
        run(config)
