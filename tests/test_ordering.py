"""Figure 1's ordering on the tiny model: seven algorithms, two seeds, the same rollouts (`make check-ordering`)."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

ALGORITHMS = ["naive", "ppo", "dpo", "sft", "tis", "is", "topr"]
FIGURES = ("pass@1", "maj@8", "invalid")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_figure_1(tmp_path: Path) -> None:
    """Where DPO ends depends on the seed: it is printed, and nothing said of it."""
    settings = [f"algo={','.join(ALGORITHMS)}", "seed=0,1", "cluster.jobs=2", f"output_dir={tmp_path}"]
    subprocess.run([sys.executable, "-m", "topr_exp", "-m", *settings], check=True, timeout=7000)
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    assert len(summaries) == 2 * len(ALGORITHMS)
    summaries.sort(key=lambda summary: int(summary["seed"]))  # a folder lists its files in any order
    ends = {name: [one["final"] for one in summaries if one["algo"] == name] for name in ALGORITHMS}
    ends["base"] = [summaries[0]["base"]]
    mean_of = {name: {key: mean(run[key] for run in runs) for key in FIGURES} for name, runs in ends.items()}
    print(f"\n{'%':8}" + "".join(f"{key:>9}" for key in FIGURES) + "   pass@1 by seed")
    for name in ["base", *ALGORITHMS]:
        seeds = " ".join(f"{100 * run['pass@1']:5.1f}" for run in ends[name])
        print(f"{name:8}" + "".join(f"{100 * mean_of[name][key]:9.1f}" for key in FIGURES) + f"   {seeds}")
    score = {name: figures["pass@1"] for name, figures in mean_of.items()}
    assert score["naive"] < score["base"]
    assert mean_of["naive"]["invalid"] > 0.5
    assert score["base"] < score["ppo"] < score["topr"] - 0.1, "PPO stalls above the base"
    assert score["topr"] > score["sft"] + 0.1
    assert mean_of["topr"]["invalid"] < 0.02
