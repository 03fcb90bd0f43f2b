"""The paper's fine-tune of an 8B model, on tensors that hold no numbers: the memory of an update, derived minutes."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, needs_peft

GIB = 2**30
# Of the model `small`: what is in blocks, what lies around them, and the numbers that Adafactor sums over processes.
BLOCKS, REST = 2 * (128 * (128 + 2 * 64 + 128) + 3 * 128 * 256 + 2 * 128), 2 * 2048 * 128 + 128
COLUMNS = 2 * (6 * 128 + 256) + 2 * 128  # and a norm and a root mean square of each of 21 weights
MESSAGES = COLUMNS + 2 * 21


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import simulated_memory

    return simulated_memory


# A single pass, and one that begins with gradients there.
@pytest.mark.extended
@pytest.mark.parametrize("micro", [8, 4])
def test_an_update_of_8_billion_weights_needs_at_most_72_gib(micro: int, module: Any) -> None:
    found, sent = module.update(module.Case(micro, recompute=True))
    assert 29.9 < found["weights"] < 30  # 8.03 billion of 4 bytes
    assert found["weights"] < found["forward"]
    assert 2 * found["weights"] < found["backward"]  # or the gradients were not counted
    assert max(found.values()) <= 72
    assert sent == {}


@pytest.mark.extended
@needs_peft
def test_with_lora_an_update_fits_a_card_of_24_gb(module: Any) -> None:
    found, _ = module.update(module.Case(8, recompute=True, lora=16))
    assert 15.0 < found["weights"] < 15.2  # 8.03 billion of 2 bytes, and 42 million of 4
    state = found["step"] - found["weights"]
    assert state > 3 * 4 * 41e6 / GIB  # gradients and AdamW's state, or they were not counted
    assert max(found.values()) <= 20  # 24 GB are 22.4 GiB


def test_the_peak_is_of_what_is_alive_at_one_time_each_storage_once(module: Any) -> None:
    def work() -> None:
        first = torch.empty(1000, dtype=torch.uint8)
        second = first.view(10, 100)[0] + 1  # 100 more; the view none
        del first  # held by nothing else
        torch.empty(1050, dtype=torch.uint8), second

    with module.Alive() as alive:
        kept = torch.empty(500, dtype=torch.uint8)
        assert alive.peak_of(work) == 1650 / GIB
        assert alive.now == 500 == kept.nbytes
        kept.untyped_storage().resize_(0)  # as FSDP frees
        assert alive.now == 0


@pytest.fixture(scope="module")
def updates() -> dict[str, Any]:
    """Updates of the model `small` by several processes, in a process that ends at once: torch's fake group crashes."""
    program = """
import json, os
from simulated_memory import Case, update
cases = [(8, False, "bfloat16"), (8, False, "float32"), (16, False, "bfloat16"), (16, True, "bfloat16")]
print(json.dumps([update(Case(1, True, *case, model="small")) for case in cases]), flush=True)
os._exit(0)
"""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    names = ["fsdp of 8", "float32", "fsdp of 16", "hsdp of 16"]
    lines = json.loads(done.stdout.splitlines()[-1])
    return {name: {"peak": peak, "sent": sent} for name, (peak, sent) in zip(names, lines, strict=True)}


def counted(size: float, processes: int, times: int = 1) -> Any:
    """GiB that one process sends of a message, to rounding."""
    return pytest.approx(times * (processes - 1) / processes * size / GIB, rel=1e-6)


@pytest.mark.extended
def test_what_a_process_sends_is_counted_by_what_and_where(updates: Any) -> None:
    weights, gradients, own = 2 * 2 * BLOCKS + 4 * REST, 4 * (BLOCKS + REST), 2 * 4 * MESSAGES
    within, between = "within a machine", "between machines"
    assert updates["fsdp of 8"]["sent"] == {
        f"weights {within}": counted(weights, 8), f"sums {within}": counted(gradients + own, 8)
    }  # fmt: skip
    assert updates["float32"]["sent"] == {
        f"weights {within}": counted(2 * 4 * BLOCKS + 4 * REST, 8), f"sums {within}": counted(gradients + own, 8)
    }  # fmt: skip
    assert updates["fsdp of 16"]["sent"] == {
        f"weights {between}": counted(weights, 16), f"sums {between}": counted(gradients + own, 16)
    }  # fmt: skip
    assert updates["hsdp of 16"]["sent"] == {
        f"weights {within}": counted(weights, 8), f"sums {within}": counted(gradients + own, 8),
        f"sums {between}": counted(gradients / 8, 2, times=2),
    }  # fmt: skip


@pytest.mark.extended
def test_a_process_holds_its_part_and_what_is_gathered(updates: Any) -> None:
    whole = 4 * (BLOCKS + REST) / GIB
    for name, parts in (("fsdp of 8", 8), ("fsdp of 16", 16), ("hsdp of 16", 8)):
        peak = updates[name]["peak"]
        assert peak["weights"] == pytest.approx(whole / parts, rel=0.02)
        assert peak["step"] > 2 * whole / parts  # gradients too
    assert updates["float32"]["peak"]["backward"] > updates["fsdp of 8"]["peak"]["backward"]


# ---- the derived minutes of the paper's run


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


def test_the_assumptions_give_the_update_that_was_measured(minutes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200: 0.579 s for 8 examples of 100 + 200 tokens after 900 shared ones, with a slower output layer."""
    monkeypatch.setattr(minutes, "QUESTION", 100)
    monkeypatch.setattr(minutes, "COMPLETION", 200)
    assert minutes.update(minutes.H200, 8) == pytest.approx(0.579, rel=0.02)


# ---- models for one card of 24 GB

# By the hub's pages of the models, the shared embeddings counted once.
PUBLISHED = {"smollm2_135m": 134_515_008, "qwen2_5_0_5b": 494_032_768, "qwen3_0_6b": 596_049_920,
             "llama3_2_1b": 1_235_814_400, "qwen2_5_1_5b": 1_543_714_304}  # fmt: skip


def test_the_presets_shapes_have_the_published_numbers_of_weights(minutes: Any) -> None:
    assert {name: minutes.presets.parameters(name) for name in minutes.presets.SHAPES} == PUBLISHED


def preset_table() -> dict[str, list[str]]:
    """The cells of each preset's row in docs/own_model.md, by its name."""
    text = (ROOT / "docs" / "own_model.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "B](https" in line]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def test_the_table_of_presets_has_all_of_them_and_the_minutes_that_are_derived(minutes: Any) -> None:
    table = preset_table()
    assert {*table} == {*minutes.presets.SHAPES}
    for name, (_, _, _, cell) in table.items():
        stages = minutes.preset_stages(name)
        assert cell == f"{sum(stages.values()):.0f} ({stages['training']:.0f})", name


@pytest.mark.slow
def test_the_table_of_presets_has_the_memory_that_is_simulated(module: Any) -> None:
    simulated = {name: cells for name, cells in preset_table().items() if cells[1] != "–"}
    assert len(simulated) >= 3
    for name, (_, updates, sampling, _) in simulated.items():
        (row,) = module.preset_rows([name])
        assert updates == f"{row['recompute']:.1f}, {row['keep']:.1f}", name
        assert sampling == f"{row['sampling']:.1f}", name
        assert max(row["recompute"], row["sampling"]) < 22.4, f"{name}: a card of 24 GB has 22.4 GiB"


def test_an_update_by_hand(minutes: Any) -> None:
    assert minutes.ALL == 8_030_261_248
    layers = 6 * (minutes.ALL - 2 * 128_256 * 4096) * (900 + 8 * 190) / (989e12 * 0.36)
    head = 24 * 128_256 * 4096 * 8 * 130 / (989e12 * 0.39)
    assert minutes.update(minutes.H200, 8) == pytest.approx(layers + head + 32 * 8_030_261_248 / (4.8e12 * 0.41))
    assert minutes.update(minutes.H100, 8) > minutes.update(minutes.H200, 8) > minutes.update(minutes.H100, 8, 8)
