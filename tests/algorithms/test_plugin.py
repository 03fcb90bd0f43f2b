"""docs/losses.md, rollouts.md: the printed package, built and installed, adds a loss; a sampler of one's own draws."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of, overrides
from tests.extending import LOSS, PACKAGE, SAMPLER, commands, project
from topr_exp import pipeline
from topr_exp.store import Store


def run(*arguments: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": str(path or ROOT)}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, env=given, capture_output=True, text=True)


def inputs(folder: Path) -> dict[str, dict[str, str]]:
    return json.loads(next(folder.glob("out/runs/*/inputs.json")).read_text())


@pytest.mark.extended
def test_an_installed_package_adds_a_loss(tmp_path: Path) -> None:
    package, site, elsewhere = (tmp_path / name for name in ("package", "site", "elsewhere"))
    names = {"soft_topr.py": "python", "conf/algo/soft_topr.yaml": "yaml", "pyproject.toml": "toml"}
    for name, language in names.items():
        found = re.search(rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)```", LOSS + PACKAGE, re.DOTALL)
        assert found, name
        path = package / name.replace("conf/", "soft_topr_conf/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found[1])
    (package / "soft_topr_conf" / "__init__.py").touch()
    elsewhere.mkdir()
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(package)]
    done = run(*install, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    smoke = ["topr_exp", "algo=soft_topr", "experiment=smoke", "output_dir=out"]
    assert "algo=soft_topr: no such choice" in run(*smoke, cwd=elsewhere).stderr
    done = run(*smoke, cwd=elsewhere, path=site)
    assert done.returncode == 0, done.stderr
    assert inputs(elsewhere)["packages"] == {"algo._target_": "soft-topr 0.1"}
    (key,) = inputs(elsewhere)["files"]
    assert key == "algo._target_ (soft_topr.py)"
    (version,) = site.glob("soft_topr-*/METADATA")
    version.write_text(version.read_text().replace("Version: 0.1", "Version: 0.2"))
    again = run(*smoke, cwd=elsewhere, path=site)
    assert (again.returncode, "algo._target_ has changed" in again.stderr) == (1, True), again.stderr


def test_a_sampler_of_ones_own_samples_and_is_part_of_the_key(tmp_path: Path) -> None:
    """With its setting, from the command line too, as the page prints it."""
    with project(tmp_path, SAMPLER):
        words = ["--config-dir", "conf", *commands(SAMPLER)[-1][2:]]
        config = config_of(*overrides(Path("out")), *words)
        pipeline.run(config)
    assert list(inputs(tmp_path)["files"]) == ["sampler._target_ (first_words.py)"]
    keys = [json.loads(path.read_text())["key"] for path in tmp_path.glob("out/**/rollouts/*/key.json")]
    settings = {(key["sampler"]["_target_"], key["sampler"]["most_tokens"], len(key["code"])) for key in keys}
    assert settings == {("first_words.FirstWords", 4, 64)}
    lengths = []
    for path in tmp_path.glob("out/store/rollouts/*"):
        lengths += Store(tmp_path / "out" / "store").open(path).read()["tokens"].to_pylist()
    assert max(map(len, lengths)) == 4
