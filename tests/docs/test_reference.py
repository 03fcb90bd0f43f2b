"""docs/reference.md is what the schema says now, and each key has its meaning there."""

from __future__ import annotations

import re

import pytest

from scripts.settings_reference import PAGE, page
from tests.conftest import ROOT
from topr_exp.config.load import hints_of
from topr_exp.config.settings import Config

pytestmark = pytest.mark.extended


def test_the_page_is_written_anew_when_a_setting_changes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.settings_reference"


def test_every_key_has_a_meaning_a_range_and_a_default() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert not [row[0] for row in rows if len(row) != 4 or not row[1].strip() or row[3].strip(" |") == ""]
    names = {re.sub(r"[|` ]", "", row[0]) for row in rows}
    assert {"algo.b_neg", "data.turns", "sampler.timeout_min", "cluster.partition", "optim.lr", "baseline"} <= names
    assert {key for key in hints_of(Config) if f"\n## {key}" in page()} >= {"data", "model", "sampler", "tracking"}
    assert ROOT / "docs" / "reference.md" == PAGE
