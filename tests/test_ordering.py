"""Figure 1's ordering on the tiny model: seven algorithms, two seeds, the same rollouts (`make check-ordering`)."""

import subprocess
import sys

import pytest

import topr_exp

ALGORITHMS = ["naive", "ppo", "dpo", "sft", "tis", "is", "topr"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_naive_collapses_ppo_stalls_and_topr_ends_best(tmp_path):
    """Where DPO ends depends on the seed: it is printed, and nothing said of it."""
    words = [f"algo={','.join(ALGORITHMS)}", "seed=0,1", "cluster.jobs=2", f"output_dir={tmp_path}"]

    subprocess.run([sys.executable, "-m", "topr_exp", "-m", *words], check=True, timeout=7000)

    runs = topr_exp.read_runs(tmp_path)
    assert len(runs) == 2 * len(ALGORITHMS)
    means = runs.groupby("algo.name")[["final_pass@1", "final_maj@8", "final_invalid"]].mean()
    print(f"\n{means}")
    score = means["final_pass@1"]
    invalid = means["final_invalid"]
    base = runs["base_pass@1"].iloc[0]
    assert score["naive"] < base
    assert invalid["naive"] > 0.5
    assert base < score["ppo"] < score["topr"] - 0.1, "PPO stalls above the base"
    assert score["topr"] > score["sft"] + 0.1
    assert invalid["topr"] < 0.02
