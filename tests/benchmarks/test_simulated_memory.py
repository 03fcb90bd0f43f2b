"""The paper's fine-tune of an 8B model fits one card of 80 GB: its update on tensors that hold no numbers."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, needs_peft


@pytest.mark.parametrize("micro", [8, 4])  # a single pass, and one that begins with gradients there
def test_an_update_of_8_billion_weights_needs_at_most_72_gib(micro: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from simulated_memory import update

    found, _ = update(micro, recompute=True)
    assert 29.9 < found["weights"] < 30  # 8.03 billion of 4 bytes
    assert found["weights"] < found["forward"]
    assert 2 * found["weights"] < found["backward"]  # or the gradients were not counted
    assert max(found.values()) <= 72


@needs_peft
def test_with_lora_an_update_fits_a_card_of_24_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from simulated_memory import update

    found, _ = update(8, recompute=True, lora=16)
    assert 15.0 < found["weights"] < 15.2  # 8.03 billion of 2 bytes, and 42 million of 4
    state = found["step"] - found["weights"]
    assert state > 3 * 4 * 41e6 / 2**30  # gradients and AdamW's state, or they were not counted
    assert max(found.values()) <= 20  # 24 GB are 22.4 GiB
