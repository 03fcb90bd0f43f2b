"""The derived minutes of the paper's run: documents hold what the command prints; the update by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import minutes

    return minutes


def test_documents_hold_what_the_command_prints(minutes: Any) -> None:
    printed = minutes.tables()
    assert printed in (ROOT / "docs" / "parallel.md").read_text()
    (line,) = [line for line in printed.splitlines() if line.startswith("| one H200")]
    loading, before, sampling, scoring, training, _, together, update = line.split(" | ")[1:]
    text = (ROOT / "docs" / "gpu.md").read_text()
    rows = ("loading", "evaluation", "sampling", "scoring", "training", "together")
    told = [re.search(rf"^\| {row}[^|]*\| (\d+) \|", text, re.MULTILINE) for row in rows]
    assert [each and each[1] for each in told] == [loading, before, sampling, scoring, training, together]
    assert f"14,946 updates of {update.rstrip(' |')} s" in text


def test_an_update_by_hand(minutes: Any) -> None:
    assert minutes.ALL == 8_030_261_248
    layers = 6 * (minutes.ALL - 2 * 128_256 * 4096) * (900 + 8 * 190) / (989e12 * 0.36)
    head = 24 * 128_256 * 4096 * 8 * 130 / (989e12 * 0.6)
    assert minutes.update(minutes.H200, 8) == pytest.approx(layers + head + 32 * 8_030_261_248 / (4.8e12 * 0.9))
    assert minutes.update(minutes.H100, 8) > minutes.update(minutes.H200, 8) > minutes.update(minutes.H100, 8, 8)
