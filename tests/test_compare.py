"""Groups of runs beside one another: means, and differences paired by seed and problem."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import config_of, overrides
from topr_exp.compare import main
from topr_exp.pipeline import run

ALGORITHMS, SEEDS = ("topr", "naive"), (0, 1)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, int], float]]:
    """Four runs, and pass@1 of each."""
    folder = tmp_path_factory.mktemp("compare")
    found = {}
    for algo in ALGORITHMS:
        for seed in SEEDS:
            summary = run(config_of(*overrides(folder, f"algo={algo}", f"seed={seed}", "optim.lr=1e-2")))
            found[algo, seed] = summary["final"]["pass@1"]
    return folder, found


def test_means_and_paired_differences(
    sweep: tuple[Path, dict[tuple[str, int], float]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, scores = sweep
    capsys.readouterr()
    assert main([str(folder), "--against", "topr"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    mean = {algo: sum(scores[algo, seed] for seed in SEEDS) / len(SEEDS) for algo in ALGORITHMS}
    numbers = {algo: [float(text) for text in re.findall(r"[-+]?\d+\.\d", lines[algo])] for algo in ALGORITHMS}
    assert lines["topr"].split()[1] == lines["naive"].split()[1] == "2"
    assert numbers["topr"][0] == pytest.approx(100 * mean["topr"], abs=0.051)
    assert len(numbers["topr"]) == 3  # no difference to itself
    difference, low, high = numbers["naive"][3:]
    assert difference == pytest.approx(100 * (mean["naive"] - mean["topr"]), abs=0.051)
    assert low <= difference <= high


def test_runs_that_have_moved_are_found(
    sweep: tuple[Path, dict[tuple[str, int], float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    there = shutil.copytree(sweep[0], tmp_path / "moved")
    capsys.readouterr()
    assert main([str(there), "--figure", "maj"]) == 0
    assert "maj, %" in capsys.readouterr().out


def test_mistakes_are_one_line(
    sweep: tuple[Path, dict[tuple[str, int], float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(config_of(*overrides(tmp_path, "data.seed=5")))
    capsys.readouterr()
    assert main([str(sweep[0]), "--against", "ppo"]) == 2
    assert capsys.readouterr().err == "error: --against ppo: no such group; allowed: naive; topr\n"
    assert main([str(sweep[0]), str(tmp_path)]) == 1
    assert "were tested on different problems, which can't be paired" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'}: no such folder\n"
    (done,) = tmp_path.rglob("DONE")
    path = done.with_name("eval.jsonl")  # as an own grader that gives no answers leaves it
    records = [json.loads(line) | {"maj@k": {}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main([str(tmp_path), "--figure", "maj"]) == 1
    assert "has no maj@K: its grader does not say what incorrect completions answer" in capsys.readouterr().err
    done.unlink()
    done.with_name("state.json").write_text('{"status": "running"}')
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: none of the 1 runs there is finished\n"
