"""A model on a GPU takes main memory as it is written, not as it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_main_memory_of_loading_and_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import host_memory

    whole = host_memory.random_model(tmp_path)
    (found,) = host_memory.together(1, tmp_path)
    # Loading, a checkpoint, the trained model, weights for an engine: of the float32 weights' bytes.
    assert [each / whole for each in found] == pytest.approx([0.0, 1.0, 1.0, 0.5], abs=0.1)
