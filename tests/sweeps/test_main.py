"""`python -m topr_exp.sweeps` without a sweep's folder."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tests.conftest import become_ordinary
from tests.run_folders import make_sweep_of_two
from topr_exp.sweeps import launch
from topr_exp.sweeps.__main__ import main


def test_status_without_a_folder_lists_the_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 1
    assert capsys.readouterr().err.startswith("error: there is no sweep in outputs; ")
    for name in ("new", "old"):
        make_sweep_of_two(tmp_path / "outputs" / name)
    (tmp_path / "outputs/single").mkdir()  # runs that were started without -m
    (tmp_path / "outputs/damaged").mkdir()
    (tmp_path / "outputs/damaged/sweep.json").write_text("{")
    os.utime(tmp_path / "outputs/old/sweep.json", (0, 0))
    assert main(["status"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "outputs/old: 2 runs: 1 done, 1 stopped\noutputs/new: 2 runs: 1 done, 1 stopped\n"
    assert printed.err.startswith("warning: outputs/damaged/sweep.json is damaged")
    assert main(["status", "outputs/old"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 runs: 1 done, 1 stopped"


def test_a_sweep_that_may_not_be_read_is_left_out_with_a_warning(
    ordinary_user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ordinary_user)
    for name in ("hidden", "open"):
        make_sweep_of_two(ordinary_user / "outputs" / name)
    (ordinary_user / "outputs/hidden").chmod(0)
    become_ordinary(ordinary_user)
    assert main(["status"]) == 0
    os.seteuid(os.getuid())
    (ordinary_user / "outputs/hidden").chmod(0o755)
    printed = capsys.readouterr()
    assert printed.out.startswith("outputs/open: ")
    assert printed.err.startswith("warning: cannot read outputs/hidden: no permission; a sweep in it is left out")


@pytest.mark.parametrize("owner", [0, 4711])
def test_resuming_another_users_sweep_says_whose_settings_run(
    owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep_of_two(tmp_path / "sweep")
    monkeypatch.setattr(launch, "run_unfinished", lambda *given: 0)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + owner)
    assert main(["resume", str(tmp_path / "sweep")]) == 0
    name = pwd.getpwuid(me).pw_name
    said = f"warning: {tmp_path / 'sweep'} belongs to {name}, whose settings now run as yours, with the code that they "
    assert capsys.readouterr().err.startswith(said) == bool(owner)
