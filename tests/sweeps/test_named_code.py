"""What `resume` runs of a sweep that somebody else packed: nothing that is not installed without a word."""

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import refused
from tests.run_folders import make_sweep_of_two
from topr_exp.config.load import build_section
from topr_exp.runs.plan import recompose
from topr_exp.sweeps import launch, sweep
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.named_code import CLASSES, KEYS, OF_CLUSTER, cluster_words, code_words, is_installed
from topr_exp.types import ConfigError

PAYLOAD = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
"""


@dataclass
class Packed:
    """A sweep whose settings name a module beside it."""

    folder: Path
    module: Path

    @property
    def ran(self) -> bool:
        return self.module.with_name("ran").exists()

    def change(self, **changes: Any) -> None:
        """Change what each run's launch.json has; keys with two underscores are those of its settings."""
        for path in self.folder.glob("*/launch.json"):
            stored = json.loads(path.read_text())
            for key, value in changes.items():
                group, _, name = key.partition("__")
                if name:
                    stored["settings"][group][name] = value
                else:
                    stored[key] = value
            path.write_text(json.dumps(stored))


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packed:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nice_sweep"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(launch, "run_unfinished", lambda *given, **more: 0)
    made = Packed(make_sweep_of_two(tmp_path / "nice_sweep"), tmp_path / "nice_sweep" / "payload.py")
    made.module.write_text(PAYLOAD)
    made.module.with_name("__init__.py").write_text(PAYLOAD)
    return made


NAMED = {
    "algo._target_": "nice_sweep.payload.Evil", "data._target_": "nice_sweep.payload.Evil",
    "data.grader": "nice_sweep.payload:grade", "sampler.name": "nice_sweep.payload:Sampler",
    "sampler.python": "nice_sweep/python", "model.trust_remote_code": True,
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_each_setting_that_names_code_needs_a_word(key: str, packed: Packed, capsys: Any) -> None:
    value = NAMED[key]
    packed.change(**{key.replace(".", "__", 1): value})
    word = f"{key}={str(value).lower() if value is True else value}"
    assert main(["resume", "nice_sweep"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"say so: python -m topr_exp.sweeps resume nice_sweep {word}\n")
    assert error.count("\n") == 1
    assert main(["resume", "nice_sweep", f"{key}=nice_sweep.other"]) == 2
    assert "no run of nice_sweep that is to start has this setting" in capsys.readouterr().err
    assert not packed.ran
    status, ran = main(["resume", "nice_sweep", word]), packed.ran
    said = capsys.readouterr()
    assert ran == (key in CLASSES or key == "sampler.name"), said  # the others are needed once runs begin
    if status == 0:
        assert f"code beyond topr_exp: {word}\n" in said.out
    else:  # the word is given, and what it names is no loss
        assert "that is not installed" not in said.err


def test_the_list_of_settings_that_name_code_is_complete() -> None:
    """A new call that imports what a setting names is noticed here: its setting belongs in KEYS."""
    package = Path(importlib.import_module("topr_exp").__path__[0])
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    callers = {str(path.relative_to(package)) for path, text in texts.items() if "topr_exp.import_own(" in text}
    # class_of: algo._target_, data._target_, sampler.name; grader: data.grader; rollouts: sampler.name
    assert callers == {"config/load.py", "grading/grader.py", "sampling/generation.py"}
    assert NAMED.keys() == {*KEYS}


def test_our_own_and_installed_modules_need_no_word() -> None:
    own = {"algo": {"_target_": "topr_exp.algorithms.Topr"}, "data": {"grader": "math", "_target_": "topr_exp.data.X"},
           "sampler": {"name": "vllm", "python": None}, "model": {"trust_remote_code": False}}  # fmt: skip
    assert code_words(own) == []
    assert code_words({"algo": None, "data": {"grader": 3}, "sampler": ["x"]}) == []
    assert code_words({"algo": {"_target_": "transformers.Loss"}}) == ["algo._target_=transformers.Loss"]
    assert is_installed("algo._target_=transformers.Loss")
    assert not is_installed("algo._target_=nice_sweep.payload.Loss")
    assert not is_installed("sampler.python=transformers")


@pytest.mark.parametrize("setting", ["cluster.setup=['touch ran']", "cluster.additional_parameters={comment: 'a b'}"])
def test_commands_of_a_cluster_need_a_word(setting: str, packed: Packed, monkeypatch, capsys) -> None:
    monkeypatch.setattr("topr_exp.sweeps.slurm.require", lambda: None)
    packed.change(arguments=["-m", "cluster=slurm", setting])
    assert main(["resume", "nice_sweep"]) == 2
    error = capsys.readouterr().err
    (word,) = cluster_words(recompose(["cluster=slurm", setting], []))
    assert word.partition("=")[0] in OF_CLUSTER
    assert f"resume nice_sweep '{word}'" in error
    assert main(["resume", "nice_sweep", word]) == 0, capsys.readouterr()
    assert f"code beyond topr_exp: {word}\n" in capsys.readouterr().out
    assert main(["resume", "nice_sweep", f"{word.partition('=')[0]}=null"]) == 0
    assert "code beyond topr_exp: none\n" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["partition", "account", "qos", "constraint", "additional_parameters"])
def test_no_option_of_slurm_is_two_lines_of_its_script(key: str) -> None:
    text = "main\ntouch ran"
    value = {"comment": text} if key == "additional_parameters" else text
    with pytest.raises(ConfigError, match=f"{key} must be .*a single line"):
        build_section("cluster", {**vars(recompose(["cluster=slurm"], [])), key: value})


def test_a_place_outside_is_refused_unless_it_is_the_current_folder(packed: Packed, monkeypatch, capsys) -> None:
    elsewhere = packed.folder.parent / "else where"
    elsewhere.mkdir()
    for place in (elsewhere, packed.folder, packed.folder / "x"):
        place.mkdir(exist_ok=True)
        packed.change(cwd=str(place))
        if place != packed.folder:
            assert main(["resume", "nice_sweep"]) == 2
            error = capsys.readouterr().err
            assert f"was launched in {place}, which it does not lie in" in error
            assert error.count("\n") == 1
    packed.change(cwd=str(elsewhere))
    monkeypatch.chdir(elsewhere)
    assert main(["resume", str(packed.folder)]) == 0, capsys.readouterr().err
    assert f"launched in {elsewhere}; code beyond topr_exp: none" in capsys.readouterr().out


def test_what_is_asked_again_under_the_lock_is_what_is_there_then(packed: Packed, monkeypatch, capsys) -> None:
    lock = sweep.run_lock.lock_run_folder

    def change_first(*given: Any) -> Any:
        packed.change(algo___target_="nice_sweep.payload.Evil")
        return lock(*given)

    monkeypatch.setattr("topr_exp.sweeps.__main__.run_lock.lock_run_folder", change_first)
    assert main(["resume", "nice_sweep"]) == 2
    assert "say so: python -m topr_exp.sweeps resume nice_sweep algo._target_" in capsys.readouterr().err
    assert not packed.ran
    with refused("only cluster settings can change"):
        recompose(["-m"], ["algo._target_=x.y"])
