"""docs/coming_from.md names settings that TRL and this package have."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8").partition("## Words")[0]
ROWS = [line.split("|")[1:4] for line in PAGE.splitlines() if line.startswith("| ") and "`GRPO" not in line]
KEYS = {
    key
    for path in (ROOT / "conf").rglob("*.yaml")
    for key in re.findall(r"^ *(?:- )?/?(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def names(cells: list[str]) -> list[str]:
    return [name.partition("=")[0] for cell in cells for name in re.findall(r"`([\w.=]+)`", cell)]


def test_every_name_of_trl_is_a_field_of_its_config() -> None:
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    theirs = names([row[0] for row in ROWS])
    assert len(theirs) > 20
    assert not [name for name in theirs if name not in fields and name != "reward_funcs"]  # of its trainer


def test_every_name_of_ours_is_a_key_of_conf() -> None:
    ours = names([row[2] for row in ROWS])
    assert len(ours) > 20
    assert not [name for name in ours if name.rpartition(".")[2] not in KEYS]
