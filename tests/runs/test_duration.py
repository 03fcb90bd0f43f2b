"""About how long: by finished runs of the same size, and by nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tests.conftest import config_of
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config
from topr_exp.sweeps.launch import expected_time


def finished(config: Config, seconds: float) -> None:
    config.folder.mkdir(parents=True)
    (config.folder / "config.json").write_text(json.dumps({"resolved": plain(config)}))
    (config.folder / "summary.json").write_text(json.dumps({"seconds": {"training": seconds - 3, "sampling": 3}}))


def settings(folder: Path, *more: str) -> Config:
    return config_of("experiment=smoke", f"output_dir={folder}", *more)


def test_the_median_of_finished_runs_of_this_size_shared_by_the_jobs(tmp_path: Path) -> None:
    for seed, seconds in enumerate((20, 40, 90)):
        finished(settings(tmp_path, f"seed={seed}"), seconds)
    finished(settings(tmp_path, "algo=ppo", "optim.epochs=7"), 5000)  # more of it
    finished(settings(tmp_path, "algo=ppo", "data.test_problems=3"), 5000)
    planned = [settings(tmp_path, f"seed={seed}", "algo=tis", "cluster.jobs=2") for seed in (5, 6, 7)]
    assert expected_time(planned[:1]) == "about 40 s, as finished runs of this size took here"
    assert expected_time(planned[:2]) == "about 40 s, as finished runs of this size took here"
    assert expected_time(planned) == "about 60 s, as finished runs of this size took here"
    alone = [dataclasses.replace(each, cluster=dataclasses.replace(each.cluster, jobs=1)) for each in planned]
    assert expected_time(alone) == "about 2 minutes, as finished runs of this size took here"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    config = settings(tmp_path)
    assert expected_time([config]) == f"how long: not known, no run of this size has finished below {tmp_path}"
    finished(settings(tmp_path, "seed=1"), 40)
    (tmp_path / "smoke" / "other").mkdir(parents=True)
    (tmp_path / "smoke" / "other" / "summary.json").write_text("[]")  # another program's
    more = settings(tmp_path, "optim.epochs=9")
    text = "about 40 s, as finished runs of this size took here; 1 run not counted, of a size that none had"
    assert expected_time([config, more]) == text
