"""docs/losses.md, rollouts.md: the printed package, built and installed, adds a loss; a sampler of one's own draws."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, read_json, small_config
from tests.extending import LOSS, PACKAGE, SAMPLER, commands, project
from topr_exp import pipeline
from topr_exp.store import Store


def start(*arguments, cwd, path=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def inputs(folder):
    return read_json(next(folder.glob("out/runs/*/inputs.json")))


def write_package(folder):
    """The printed files of the package, and an empty one."""
    with project(folder, LOSS, PACKAGE):
        Path("conf").rename("soft_topr_conf")
        Path("soft_topr_conf/__init__.py").touch()


@pytest.mark.extended
def test_an_installed_package_adds_a_loss(tmp_path):
    package, site, elsewhere = (tmp_path / name for name in ("package", "site", "elsewhere"))
    elsewhere.mkdir()
    write_package(package)
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    smoke = ["topr_exp", "algo=soft_topr", "experiment=smoke", "output_dir=out"]

    assert "algo=soft_topr: no such choice" in start(*smoke, cwd=elsewhere).stderr
    start(*install, str(site), str(package), cwd=tmp_path).check_returncode()
    start(*smoke, cwd=elsewhere, path=site).check_returncode()

    assert inputs(elsewhere)["packages"] == {"algo._target_": "soft-topr 0.1"}
    assert list(inputs(elsewhere)["files"]) == ["algo._target_ (soft_topr.py)"]

    (metadata,) = site.glob("soft_topr-*/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 0.1", "Version: 0.2"))
    process = start(*smoke, cwd=elsewhere, path=site)
    assert process.returncode == 1
    assert "algo._target_ has changed" in process.stderr


def test_a_sampler_of_ones_own_samples_and_is_part_of_the_key(tmp_path):
    """With its setting, from the command line too, as the page prints it."""
    *_, words = commands(SAMPLER)
    with project(tmp_path, SAMPLER):
        pipeline.run(small_config(Path("out"), "--config-dir", "conf", *words[2:]))

    assert list(inputs(tmp_path)["files"]) == ["sampler._target_ (first_words.py)"]
    store = Store(tmp_path / "out/store")
    lengths = []
    for table in store.root.glob("rollouts/*"):
        key = read_json(table / "key.json")["key"]
        assert key["sampler"]["_target_"] == "first_words.FirstWords"
        assert key["sampler"]["most_tokens"] == 4
        assert len(key["code"]) == 64
        lengths += [len(tokens) for tokens in store.open(table).read()["tokens"].to_pylist()]
    assert max(lengths) == 4
