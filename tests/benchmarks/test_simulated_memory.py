"""The paper's fine-tune of an 8B model on tensors without numbers: the memory of an update, and derived minutes."""

import json
import os
from dataclasses import dataclass

import minutes
import presets
import pytest
import simulated_memory
import torch
from simulated_memory import Case

import topr_exp
from tests.conftest import ROOT, document, each_row, needs_peft, run_python

GIB = 2**30


# ---- memory


def test_the_peak_counts_storages_alive_at_one_time_once():
    def work():
        first = torch.empty(1000, dtype=torch.uint8)
        second = first.view(10, 100)[0] + 1  # 100 more; the view none
        del first  # held by nothing else
        torch.empty(1050, dtype=torch.uint8), second

    with simulated_memory.MemoryCounter() as memory:
        tensor = torch.empty(500, dtype=torch.uint8)
        assert memory.peak_of(work) == 1650 / GIB
        assert memory.bytes_alive() == 500 == tensor.nbytes
        tensor.untyped_storage().resize_(0)  # as FSDP frees
        assert memory.bytes_alive() == 0


@pytest.mark.extended
@pytest.mark.parametrize("micro_batch", [8, 4])  # a single pass, and one that begins with gradients there
def test_an_update_of_8_billion_weights_needs_at_most_72_gib(micro_batch):
    peaks, sent = simulated_memory.update(Case(micro_batch, recompute=True))

    assert 29.9 < peaks["weights"] < 30  # 8.03 billion of 4 bytes
    assert peaks["weights"] < peaks["forward"]
    assert 2 * peaks["weights"] < peaks["backward"]  # or the gradients were not counted
    assert max(peaks.values()) <= 72
    assert sent == {}


@pytest.mark.extended
@needs_peft
def test_with_lora_an_update_fits_a_card_of_24_gb():
    peaks, _ = simulated_memory.update(Case(8, recompute=True, lora=16))

    assert 15.0 < peaks["weights"] < 15.2  # 8.03 billion of 2 bytes, and 42 million of 4
    assert peaks["step"] - peaks["weights"] > 3 * 4 * 41e6 / GIB  # gradients and AdamW's state
    assert max(peaks.values()) <= 20  # 24 GB are 22.4 GiB


# ---- several processes, of the model `small`

BLOCK_WEIGHTS = 2 * (128 * (128 + 2 * 64 + 128) + 3 * 128 * 256 + 2 * 128)
OTHER_WEIGHTS = 2 * 2048 * 128 + 128
COLUMNS = 2 * (6 * 128 + 256) + 2 * 128  # that Adafactor sums, and a norm and a root mean square of each of 21 weights
OPTIMIZER_BYTES = 2 * 4 * (COLUMNS + 2 * 21)
# torch's fake group crashes at the end of a process.
UPDATES = """
import json, os
from simulated_memory import Case, update
cases = [(8, False, "bfloat16"), (8, False, "float32"), (16, False, "bfloat16"), (16, True, "bfloat16")]
print(json.dumps([update(Case(1, True, *case, model="small")) for case in cases]), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Update:
    """The cost of an update for one of its processes."""

    peaks: dict[str, float]  # GiB
    sent: dict[str, float]  # GiB


@pytest.fixture(scope="module")
def updates():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    process = run_python("-c", UPDATES, env=environment)
    assert process.returncode == 0, process.stderr
    costs = json.loads(process.stdout.splitlines()[-1])
    names = ("FSDP of 8", "FSDP of 8, float32", "FSDP of 16", "HSDP of 16")
    return {name: Update(*cost) for name, cost in zip(names, costs, strict=True)}


def sent_in_ring(size, processes, rounds=1):
    """GiB that one process sends of a message, to rounding."""
    return pytest.approx(rounds * (processes - 1) / processes * size / GIB, rel=1e-6)


SHARDED = """
"FSDP of 8" | 2 | 8 | "within a machine"
"FSDP of 8, float32" | 4 | 8 | "within a machine"
"FSDP of 16" | 2 | 16 | "between machines"
"""


@pytest.mark.extended
@each_row("name bytes_a_block_weight processes reach", SHARDED, literals=True)
def test_a_sharded_process_sends_weights_twice_and_sums(updates, name, bytes_a_block_weight, processes, reach):
    weights = 2 * bytes_a_block_weight * BLOCK_WEIGHTS + 4 * OTHER_WEIGHTS
    sums = 4 * (BLOCK_WEIGHTS + OTHER_WEIGHTS) + OPTIMIZER_BYTES

    sent = updates[name].sent

    assert sent == {
        f"weights {reach}": sent_in_ring(weights, processes),
        f"sums {reach}": sent_in_ring(sums, processes),
    }


@pytest.mark.extended
def test_with_hsdp_machines_exchange_sums_alone(updates):
    weights = 2 * 2 * BLOCK_WEIGHTS + 4 * OTHER_WEIGHTS
    gradients = 4 * (BLOCK_WEIGHTS + OTHER_WEIGHTS)

    assert updates["HSDP of 16"].sent == {
        "weights within a machine": sent_in_ring(weights, 8),
        "sums within a machine": sent_in_ring(gradients + OPTIMIZER_BYTES, 8),
        "sums between machines": sent_in_ring(gradients / 8, 2, rounds=2),
    }


# ---- the derived minutes of the paper's run


def test_the_document_holds_the_minutes_that_are_derived():
    config = topr_exp.compose(minutes.WORDS)
    stages_of_layout = [minutes.stages(layout, config) for layout in minutes.LAYOUTS]
    one_gpu, _, eight_processes, eight_runs = [round(sum(stages.values())) for stages in stages_of_layout]
    training = round(stages_of_layout[0]["training"])
    page = document("performance.md")

    assert f"{one_gpu} minutes on one H200, {training} of them training" in page
    assert f"{eight_processes} on eight H100 by\n`cluster.processes=8`, {eight_runs} by `cluster.jobs=8`" in page


def test_an_update_by_hand():
    weights = 8_030_261_248
    head_weights = 128_256 * 4096
    assert minutes.MODEL.weights == weights

    layers = 6 * (weights - 2 * head_weights) * (900 + 8 * 190) / (989e12 * 0.36)
    head = 24 * head_weights * 8 * 130 / (989e12 * 0.39)
    optimizer = 32 * weights / (4.8e12 * 0.41)

    assert minutes.update_seconds(minutes.H200, 8) == pytest.approx(layers + head + optimizer)


# ---- models for one card of 24 GB


def preset_table():
    """The cells of each preset's row in docs/models.md: title, memory of updates and of sampling, minutes."""
    table = {}
    for line in document("models.md").splitlines():
        if "B](https" in line:
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            table[name.strip("`")] = cells
    return table


def test_the_presets_shapes_have_the_published_numbers_of_weights():
    """By the hub's pages of the models, the shared embeddings counted once."""
    assert {name: presets.parameters(name) for name in presets.SHAPES} == {
        "smollm2_135m": 134_515_008,
        "qwen2_5_0_5b": 494_032_768,
        "qwen3_0_6b": 596_049_920,
        "llama3_2_1b": 1_235_814_400,
        "qwen2_5_1_5b": 1_543_714_304,
    }


def test_the_table_of_presets_has_all_of_them_and_the_minutes_that_are_derived():
    table = preset_table()

    assert table.keys() == presets.SHAPES.keys()
    for name, cells in table.items():
        stages = minutes.preset_stages(name)
        assert cells[3] == f"{sum(stages.values()):.0f} ({stages['training']:.0f})", name


@pytest.mark.slow
def test_the_table_of_presets_has_the_memory_that_is_simulated():
    simulated = {name: cells for name, cells in preset_table().items() if cells[1] != "–"}

    assert len(simulated) >= 3
    for name, (_, updates_cell, sampling_cell, _) in simulated.items():
        (row,) = simulated_memory.preset_rows([name])
        assert updates_cell == f"{row['recompute']:.1f}, {row['keep']:.1f}", name
        assert sampling_cell == f"{row['sampling']:.1f}", name
        assert max(row["recompute"], row["sampling"]) < 22.4, f"{name}: a card of 24 GB has 22.4 GiB"
