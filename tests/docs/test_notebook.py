"""The notebook runs from top to bottom, and shows what it says: TOPR ends above PPO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.extended
NOTEBOOK = ROOT / "docs" / "first_steps.ipynb"


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    assert NOTEBOOK.stat().st_size < 150_000
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] or "run(ppo)" not in cell["source"]
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    final = names["runs"].set_index("algo.name")["final_pass@1"]
    assert final["topr"] > final["ppo"] + 0.1
    assert len(names["drawn"]) == names["summary"]["n_train"] == 3200
