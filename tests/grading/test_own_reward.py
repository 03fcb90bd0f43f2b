"""docs/extending.md, the third part: its graded reward, as printed there, from the first command to the report."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, config_of
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run
from topr_exp.report.__main__ import main as report
from topr_exp.store import Store

DOC = (ROOT / "docs" / "extending.md").read_text().partition("\n# A graded reward\n")[2]
SMALL = ["experiment=smoke", "cluster.threads=1", "output_dir=out"]
GRADED = ["data.grader=closeness:grade", "data.reward=graded"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the document, and nothing else; the working folder, as for the reader."""
    match = re.search(r"`closeness\.py`:\n\n```python\n(.*?)```", DOC, re.DOTALL)
    assert match
    (tmp_path / "closeness.py").write_text(match[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "closeness", raising=False)
    yield tmp_path
    sys.modules.pop("closeness", None)


def test_the_commands_find_it(project: Path) -> None:
    lines = [line for line in DOC.splitlines() if line.startswith("python -m topr_exp")]
    assert len(lines) == 2
    for line in lines:
        words = [*line.split()[3:], "dry_run=true"]
        done = subprocess.run([sys.executable, "-m", "topr_exp", *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_a_run_with_it_its_report_and_an_evaluation(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(*SMALL, *GRADED, "baseline=-1.5", "data.threshold=0.4")
    summary = run(config)
    shown = capsys.readouterr().out
    assert "rewards as graded" in shown
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
    (row,) = csv.DictReader((project / "shown" / "tables" / "runs.csv").open())
    assert float(row["final_mean_reward"]) == pytest.approx(summary["final"]["mean_reward"])
    page = (project / "shown" / "report.html").read_text()
    assert f">{summary['final']['mean_reward']:.3g} [" in page

    capsys.readouterr()
    words = [f"model={config.folder}", "output_dir=out", "cluster.threads=1"]
    assert evaluate(words) == 2
    assert "data.grader=closeness:grade of the run that wrote the model" in capsys.readouterr().err
    assert evaluate([*words, GRADED[0]]) == 0
    assert f"mean reward {summary['final']['mean_reward']:.3g} ± " in capsys.readouterr().out
