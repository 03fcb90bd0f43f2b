"""A store of somebody else: reading needs no right to write, and what may not be read is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import become_ordinary
from tests.store.store_workers import SHARDS, open_table, shard
from topr_exp.runtime import locks
from topr_exp.store import Store
from topr_exp.store import table as table_module
from topr_exp.store.__main__ import main
from topr_exp.types import TOPRError


def test_a_table_of_somebody_else_is_only_read(ordinary_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(ordinary_user)
    table.fill(shard)
    table.shard_file(2).chmod(0)
    monkeypatch.setattr(table_module, "_verified", {})
    become_ordinary(ordinary_user)
    with pytest.raises(TOPRError, match=r"^cannot read .*shard-00002.arrow: no permission$"):
        Store(ordinary_user).open(table.folder).missing()
    os.seteuid(os.getuid())
    table.shard_file(2).chmod(0o444)
    become_ordinary(ordinary_user)
    other = open_table(ordinary_user)
    assert (other.fill(shard), other.read().num_rows) == (0, 40 * SHARDS)
    with pytest.raises(TOPRError, match=r"^cannot write in .*/problems/[0-9a-f]{16}: no permission$"):
        Store(ordinary_user).table("problems", {}, 1).fill(shard)


def test_verify_names_what_it_may_not_read_and_goes_on(ordinary_user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        Store(ordinary_user / "store").table("problems", {"name": name}, 1).fill(shard)
    first, second = sorted((ordinary_user / "store" / "problems").iterdir())
    (first / "shard-00000.arrow").chmod(0)
    (ordinary_user / "run").mkdir(mode=0o700)
    become_ordinary(ordinary_user)
    assert main(["--root", str(ordinary_user / "store"), "verify", str(ordinary_user)]) == 1
    found = capsys.readouterr().out
    assert f"NOT READ cannot read {first / 'shard-00000.arrow'}: no permission" in found
    assert f"NOT READ {ordinary_user / 'run'}: no permission" in found
    assert f"sound    problems/{second.name}" in found
    os.seteuid(os.getuid())
    first.chmod(0)
    become_ordinary(ordinary_user)
    main(["--root", str(ordinary_user / "store"), "list"])
    assert f"problems/{second.name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("list", "1 table, "),
        ("verify", "sound    rollouts/"),
        ("prune --older-than 0", "an unknown process, {this} is at work on it"),
        ("export", "has no column problem_id"),
    ],
)
def test_reading_needs_no_right_to_write(
    ordinary_user: Path, capfd: pytest.CaptureFixture[str], command: str, words: str
) -> None:
    """While two processes of others fill a table, of which one keeps its claim to itself."""
    table = open_table(ordinary_user)
    table.fill(shard)
    claims = [table.folder / f"shard-0000{index}.claim" for index in (3, 4)]
    held = [locks.acquire(claim) for claim in claims]
    claims[1].chmod(0)
    become_ordinary(ordinary_user)
    more = ["rollouts", f"{ordinary_user.parent}/{os.getpid()}.jsonl"] if command == "export" else []
    main(["--root", str(ordinary_user), *command.split(), *more])
    assert words.format(this=f"{os.uname().nodename}:{os.getpid()}") in "".join(capfd.readouterr())
    for lock in held:
        lock.__exit__(None, None, None)  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["list", "verify", "prune --older-than 0"])
@pytest.mark.parametrize(("hidden", "expected"), [(".", 1), ("rollouts", 1), ("verdicts", 0)])
def test_what_may_not_be_read_is_named(
    ordinary_user: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    command: str,
    hidden: str,
    expected: int,
) -> None:
    open_table(ordinary_user).fill(shard)
    if hidden != ".":
        (ordinary_user / hidden).mkdir(exist_ok=True)
        (ordinary_user / hidden).chmod(0)
    become_ordinary(ordinary_user, 0 if hidden == "." else 0o555)
    status = main(["--root", str(ordinary_user), *command.split()])
    out, err = capfd.readouterr()
    assert f"cannot read {ordinary_user / hidden}: no permission" in err + caplog.text
    assert "holds no tables" not in out + err
    assert status == expected
