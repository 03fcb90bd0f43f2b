"""Several processes compute the same as one, in float32 and in bfloat16: weights, metrics, checkpoints."""

import importlib.util
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from tests.conftest import make_model, needs_peft
from tests.processes import together
from tests.training.test_trainer import AGRO_LOSS, DPO_LOSS, PER_TOKEN, TOPR, make_examples, optim, reduction_of
from topr_exp.algorithms.agro import KLPG
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models.policy import Policy, save_model
from topr_exp.runtime import distributed
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.parallel import parallelize
from topr_exp.training.trainer import Trainer

KL = KLPG("kl_pg", 0.5, False)  # needs the whole distribution of π_ref
LOSSES = {loss.name: loss for loss in (TOPR, PER_TOKEN, DPO_LOSS, AGRO_LOSS)} | {"topr, lora": TOPR, "kl, lora": KL}
CASES = [("topr", "adamw"), ("topr", "adafactor"), ("per_token", "adafactor"), ("dpo", "adamw"), ("agro", "adafactor")]
if importlib.util.find_spec("peft"):
    CASES += [("topr, lora", "adafactor"), ("kl, lora", "adamw")]
SIZES = [8, 3, 8]  # of global batches; the second has fewer examples than there are processes
SIZES_OF_GROUPS = [8, 4, 8]
EXACT = 1e-6  # in float32, of weights between -2 and 2


def new_policy(adapter: bool = False) -> Policy:
    policy = Policy(make_model(11), None, "test", torch.float32)
    if adapter:
        policy.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, base_path="base", trained_folder=None)
    return policy


def train(folder, loss, optimizer, parallel, micro=2, steps=3):
    """Updates from the newest checkpoint below `folder` on: the trainer and the updates' records."""
    recompute = loss in ("dpo", "topr, lora")  # some of them with gradient checkpointing
    changes = {"gradient_checkpointing": recompute, "reduction": reduction_of(LOSSES[loss])}
    config = optim(name=optimizer, micro_batch_size=micro, lr=1e-3, **changes)
    policy = new_policy("lora" in loss)
    reference = policy.without_adapter() if LOSSES[loss] is KL else None
    trainer = Trainer(policy, LOSSES[loss], reference, config, folder, parallelize(policy, parallel))
    return trainer, update_until(trainer, steps)


def update_until(trainer: Trainer, steps: int) -> list[dict[str, float]]:
    """The updates up to a step; their records."""
    examples = make_examples(new_policy(trainer.policy.base is not None), trainer.loss)
    order = examples.order(0, 1, 0)
    sizes = SIZES_OF_GROUPS if "groups" in trainer.loss.needs else SIZES
    records = []
    for step in range(trainer.step, steps):
        batch = np.resize(order, 100)[8 * step : 8 * step + sizes[step]]
        records.append(trainer.update(examples, batch, steps, expect_unit_ratio=step == 0))
    return records


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    with trainer.layout.gathered_weights():
        return {name: weight.detach().clone() for name, weight in trainer.policy.model.named_parameters()}


def train_cases(folder: Path, parallel: str, cases: Any = CASES) -> dict[tuple[str, str], tuple[Any, Any]]:
    """The weights and records of each loss with an optimizer."""
    results = {}
    for loss, optimizer in cases:
        trainer, records = train(folder, loss, optimizer, parallel)
        results[loss, optimizer] = weights(trainer), records
    return results


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As each of several processes has: threads change the last digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def one_process(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Weights and records by one process."""
    return train_cases(tmp_path_factory.mktemp("one-process"), "ddp")


def assert_same(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(weights) == set(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(
            weights[name], weight, atol=EXACT, rtol=EXACT, msg=lambda text, name=name: f"{name}: {text}"
        )


EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("size", "parallel"),
    [(2, "ddp"), (4, "fsdp"), pytest.param(4, "ddp", marks=EXTENDED), pytest.param(2, "fsdp", marks=EXTENDED)],
)
def test_several_processes_compute_the_same_as_one(tmp_path, one_process, size, parallel):
    results_by_rank = together(size, train_cases, tmp_path, parallel)
    for key, (expected_weights, expected_records) in one_process.items():
        final_weights, records = results_by_rank[0][key]
        assert_same(final_weights, expected_weights)
        for record, expected in zip(records, expected_records, strict=True):
            assert set(record) == set(expected)
            for name, value in expected.items():
                if name not in ("tokens_per_second", "accuracy"):  # accuracy: the sign of a margin of 0
                    assert record[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (key, name)
        for results in results_by_rank[1:]:
            assert without_speed(results[key][1]) == without_speed(records)


def without_speed(records: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{**record, "tokens_per_second": 0} for record in records]


def save(folder: Path, key: tuple[str, str], parallel: str) -> dict[str, torch.Tensor]:
    """An update and a checkpoint."""
    trainer, _ = train(folder, *key, parallel, steps=1)
    trainer.save({"extra": b"kept"})
    return weights(trainer)


def resume(folder: Path, key: tuple[str, str], parallel: str) -> dict[str, torch.Tensor]:
    """The two other updates, from that checkpoint."""
    trainer, records = train(folder, *key, parallel)
    assert [record["step"] for record in records] == [2, 3]
    assert (trainer.restored / "extra").read_bytes() == b"kept"
    return weights(trainer)


@pytest.mark.parametrize("key", [CASES[0], *(key for key in CASES[1:] if "topr" in key[0])], ids=str)
@pytest.mark.extended
def test_a_checkpoint_loads_on_any_number_of_processes(tmp_path, one_process, key):
    expected, _ = one_process[key]
    sharded, unsharded = tmp_path / "sharded", tmp_path / "unsharded"
    together(4, save, sharded, key, "fsdp")
    (checkpoint,) = sharded.iterdir()
    parts = [load_file(path) for path in sorted(checkpoint.glob("part-*.safetensors"))]
    assert len(parts) == 4
    if "lora" in key[0]:
        assert [name for name in chain.from_iterable(parts) if ".lora_" not in name] == []
    assert_same(resume(sharded, key, "ddp"), expected)  # on one
    assert_same(together(2, resume, sharded, key, "fsdp")[0], expected)
    assert_same(together(2, resume, sharded, key, "ddp")[0], expected)
    save(unsharded, key, "ddp")
    assert_same(together(2, resume, unsharded, key, "fsdp")[0], expected)


def two_machines(work: Any, *arguments: Any) -> Any:
    """Do the work in a process of a run that believes to be on a machine with one other."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    return work(*arguments)


def test_parts_within_a_machine_compute_and_save_the_same_as_one_process(tmp_path, one_process):
    key = ("agro", "adafactor")
    for results in together(4, two_machines, train_cases, tmp_path / key[0], "hsdp", [key]):
        assert_same(results[key][0], one_process[key][0])
    folder = tmp_path / "saved"
    together(4, two_machines, save, folder, CASES[1], "hsdp")
    (checkpoint,) = folder.iterdir()
    assert sum(path.suffix == ".safetensors" for path in checkpoint.iterdir()) == 2  # the other machine's are the same
    expected, _ = one_process[CASES[1]]
    assert_same(together(4, two_machines, resume, folder, CASES[1], "hsdp")[0], expected)
    assert_same(together(2, resume, folder, CASES[1], "fsdp")[0], expected)


def step_after_damage(folder: Path) -> int:
    """The step that a run goes on from whose newest checkpoint, of step 3, one process damaged."""
    for steps in (1, 3):
        train(folder, "topr", "adamw", "fsdp", steps=steps)[0].save({})
    if distributed.is_main_process():
        second = folder / "step-00000003" / "part-00002-of-00002.safetensors"
        second.write_bytes(second.read_bytes()[:-1] + b"x")
    distributed.barrier()
    return train(folder, "topr", "adamw", "fsdp", steps=0)[0].step


def test_a_damaged_shard_sets_all_processes_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    assert together(2, step_after_damage, tmp_path) == [1, 1]


def used_in_between(folder: Path, parallel: str) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """Training with other work on the whole model in between, more of it on some processes than on others."""
    trainer, _ = train(folder, "topr", "adamw", parallel, steps=0)
    completions = make_examples(new_policy(), TOPR).completions
    sums = []
    for steps in (0, 1, 3):
        update_until(trainer, steps)
        with trainer.layout.gathered_weights():
            assert all(weight.requires_grad for weight in trainer.policy.model.parameters()), "or autocast keeps none"
            for _ in range(1 + distributed.rank()):
                logp = log_probabilities(trainer.policy, completions, range(4), 3)["logp"].to_pylist()
            save_model(trainer.policy.model, folder / str(distributed.rank()))
        sums.append([sum(values) for values in logp])
    return weights(trainer), sums


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=EXTENDED), "fsdp"])
def test_each_process_may_use_the_whole_model_between_updates(tmp_path, one_process, parallel):
    results = together(2, used_in_between, tmp_path, parallel)
    _, expected = used_in_between(tmp_path / "one", parallel)
    for rank, (final_weights, sums) in enumerate(results):
        assert_same(final_weights, one_process["topr", "adamw"][0])
        np.testing.assert_allclose(sums, expected, rtol=1e-5)
        stored_model = LlamaForCausalLM.from_pretrained(tmp_path / str(rank))
        assert_same(dict(stored_model.named_parameters()), final_weights)


# ---- in bfloat16


def step_in_bfloat16(folder: Path, parallel: str, lr: float, adapter: bool = False) -> tuple[Any, Any]:
    """Weights before and after a step whose forward pass is bfloat16, as a base is that is not trained."""
    dtype = torch.bfloat16 if adapter else torch.float32
    policy = Policy(make_model(11).to(dtype), None, "test", torch.bfloat16)
    if adapter:
        policy.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, base_path="base", trained_folder=None)
    examples = make_examples(policy, TOPR)
    config = optim(name="adafactor", micro_batch_size=8, lr=lr)
    trainer = Trainer(policy, TOPR, None, config, folder, parallelize(policy, parallel))
    start = weights(trainer)
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    return start, weights(trainer)


def test_in_bfloat16_float32_weights_move(tmp_path: Path) -> None:
    (start, by_fsdp), *_ = together(2, step_in_bfloat16, tmp_path / "fsdp", "fsdp", 5e-7)
    (ddp_start, by_ddp), *_ = together(2, step_in_bfloat16, tmp_path / "ddp", "ddp", 5e-7)
    for name, weight in start.items():
        assert torch.equal(weight, ddp_start[name])
        assert by_fsdp[name].dtype is torch.float32
        fsdp_step, ddp_step = by_fsdp[name] - weight, by_ddp[name] - weight
        assert float((fsdp_step != 0).float().mean()) > 0.5, name
        would_not_move = (weight.bfloat16() + fsdp_step.bfloat16()) == weight.bfloat16()
        assert float(would_not_move.float().mean()) > 0.9
        assert float((fsdp_step - ddp_step).norm() / ddp_step.norm()) < 0.3, name  # rounded in another order


@needs_peft
def test_in_bfloat16_an_adapter_moves_and_its_base_stays(tmp_path: Path) -> None:
    (start, by_fsdp), *_ = together(2, step_in_bfloat16, tmp_path / "fsdp", "fsdp", 1e-2, True)
    _, by_one = step_in_bfloat16(tmp_path / "one", "ddp", 1e-2, True)
    for name, weight in by_fsdp.items():
        assert weight.dtype is (torch.float32 if ".lora_" in name else torch.bfloat16)
        assert ".lora_" in name or torch.equal(weight, start[name]), name
    fsdp_step = torch.cat([(by_fsdp[name] - start[name]).float().flatten() for name in start])
    step = torch.cat([(by_one[name] - start[name]).float().flatten() for name in start])
    assert float((fsdp_step - step).norm() / step.norm()) < 0.3  # rounded in another order
