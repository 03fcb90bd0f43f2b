"""Several processes compute what one computes, in float32 and in bfloat16: weights, metrics, checkpoints."""

import importlib.util
import os
from collections.abc import Iterator
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


def policy(adapter: bool = False) -> Policy:
    made = Policy(make_model(11), None, "test", torch.float32)
    if adapter:
        made.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, base_path="base", trained_folder=None)
    return made


def train(folder, loss, optimizer, parallel, micro=2, steps=3):
    """Some updates, from the newest checkpoint below `folder` on."""
    recompute = loss in ("dpo", "topr, lora")  # some of them with gradient checkpointing
    changes = {"gradient_checkpointing": recompute, "reduction": reduction_of(LOSSES[loss])}
    config = optim(name=optimizer, micro_batch_size=micro, lr=1e-3, **changes)
    ours = policy("lora" in loss)
    reference = ours.without_adapter() if LOSSES[loss] is KL else None
    trainer = Trainer(ours, LOSSES[loss], reference, config, folder, parallelize(ours, parallel))
    return trainer, go_on(trainer, steps)


def go_on(trainer: Trainer, steps: int) -> list[dict[str, float]]:
    """The updates up to a step."""
    examples = make_examples(policy(trainer.policy.base is not None), trainer.loss)
    order = examples.training_set.order(0, 1, 0)
    sizes = SIZES_OF_GROUPS if "groups" in trainer.loss.needs else SIZES
    records = []
    for step in range(trainer.step, steps):
        chosen = np.resize(order, 100)[8 * step : 8 * step + sizes[step]]
        records.append(trainer.update(examples, chosen, steps, expect_unit_ratio=step == 0))
    return records


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    with trainer.layout.gathered_weights():
        return {name: weight.detach().clone() for name, weight in trainer.policy.model.named_parameters()}


def cases(folder: Path, parallel: str, some: Any = CASES) -> dict[tuple[str, str], tuple[Any, Any]]:
    """The weights and records of each loss with an optimizer."""
    made = {key: train(folder, *key, parallel) for key in some}
    return {key: (weights(trainer), records) for key, (trainer, records) in made.items()}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As each of several processes has: threads change the last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Any]]:
    """What one process computes."""
    return cases(tmp_path_factory.mktemp("alone"), "ddp")


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], close: float = EXACT) -> None:
    assert set(ours) == set(theirs)
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=close, rtol=close, msg=lambda text, n=name: f"{n}: {text}")


EXTENDED = pytest.mark.extended


@pytest.mark.parametrize(
    ("size", "parallel"),
    [(2, "ddp"), (4, "fsdp"), pytest.param(4, "ddp", marks=EXTENDED), pytest.param(2, "fsdp", marks=EXTENDED)],
)
def test_several_processes_compute_what_one_computes(tmp_path, alone, size, parallel):
    leader, *others = together(size, cases, tmp_path, parallel)
    for key, (expected, records) in alone.items():
        got, metrics = leader[key]
        assert_same(got, expected)
        for ours, theirs in zip(metrics, records, strict=True):
            assert set(ours) == set(theirs)
            for name, value in theirs.items():
                if name not in ("tokens_per_second", "accuracy"):  # accuracy: the sign of a margin of 0
                    assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (key, name)
        for other in others:
            strip = [{**record, "tokens_per_second": 0} for record in other[key][1]]
            assert strip == [{**record, "tokens_per_second": 0} for record in metrics]


def saved(folder: Path, key: tuple[str, str], parallel: str) -> dict[str, torch.Tensor]:
    """An update and a checkpoint."""
    trainer, _ = train(folder, *key, parallel, steps=1)
    trainer.save({"extra": b"kept"})
    return weights(trainer)


def resumed(folder: Path, key: tuple[str, str], parallel: str) -> dict[str, torch.Tensor]:
    """The two other updates, from that checkpoint."""
    trainer, records = train(folder, *key, parallel)
    assert [record["step"] for record in records] == [2, 3]
    assert (trainer.restored / "extra").read_bytes() == b"kept"
    return weights(trainer)


@pytest.mark.parametrize("key", [CASES[0], *(key for key in CASES[1:] if "topr" in key[0])], ids=str)
@pytest.mark.extended
def test_a_checkpoint_loads_on_any_number_of_processes(tmp_path, alone, key):
    expected, _ = alone[key]
    sharded, whole = tmp_path / "sharded", tmp_path / "whole"
    together(4, saved, sharded, key, "fsdp")
    (checkpoint,) = sharded.iterdir()
    stored = [load_file(path) for path in sorted(checkpoint.glob("part-*.safetensors"))]
    assert len(stored) == 4
    assert all("lora" not in key[0] or ".lora_" in name for each in stored for name in each)
    assert_same(resumed(sharded, key, "ddp"), expected)  # on one
    assert_same(together(2, resumed, sharded, key, "fsdp")[0], expected)
    assert_same(together(2, resumed, sharded, key, "ddp")[0], expected)
    saved(whole, key, "ddp")
    assert_same(together(2, resumed, whole, key, "fsdp")[0], expected)


def two_machines(work: Any, *arguments: Any) -> Any:
    """The work in a process of a run that believes to be on a machine with one other."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    return work(*arguments)


def test_parts_within_a_machine_compute_and_save_what_one_process_does(tmp_path, alone):
    key = ("agro", "adafactor")
    for found in together(4, two_machines, cases, tmp_path / key[0], "hsdp", [key]):
        assert_same(found[key][0], alone[key][0])
    folder = tmp_path / "saved"
    together(4, two_machines, saved, folder, CASES[1], "hsdp")
    (checkpoint,) = folder.iterdir()
    assert sum(path.suffix == ".safetensors" for path in checkpoint.iterdir()) == 2  # the other machine's are the same
    expected, _ = alone[CASES[1]]
    assert_same(together(4, two_machines, resumed, folder, CASES[1], "hsdp")[0], expected)
    assert_same(together(2, resumed, folder, CASES[1], "fsdp")[0], expected)


def step_found(folder: Path) -> int:
    """The step that a run goes on from whose newest checkpoint, of step 3, one process damaged."""
    for steps in (1, 3):
        train(folder, "topr", "adamw", "fsdp", steps=steps)[0].save({})
    if distributed.is_main_process():
        second = folder / "step-00000003" / "part-00002-of-00002.safetensors"
        second.write_bytes(second.read_bytes()[:-1] + b"x")
    distributed.barrier()
    return train(folder, "topr", "adamw", "fsdp", steps=0)[0].step


def test_a_damaged_shard_sets_all_processes_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    assert together(2, step_found, tmp_path) == [1, 1]


def used_in_between(folder: Path, parallel: str) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """Training with other work on the whole model in between, more of it on some processes than on others."""
    trainer, _ = train(folder, "topr", "adamw", parallel, steps=0)
    rollouts = make_examples(policy(), TOPR).completions
    seen = []
    for steps in (0, 1, 3):
        go_on(trainer, steps)
        with trainer.layout.gathered_weights():
            assert all(weight.requires_grad for weight in trainer.policy.model.parameters()), "or autocast keeps none"
            for _ in range(1 + distributed.rank()):
                logp = log_probabilities(trainer.policy, rollouts, range(4), 3)["logp"].to_pylist()
            save_model(trainer.policy.model, folder / str(distributed.rank()))
        seen.append([sum(line) for line in logp])
    return weights(trainer), seen


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=EXTENDED), "fsdp"])
def test_each_process_may_use_the_whole_model_between_updates(tmp_path, alone, parallel):
    results = together(2, used_in_between, tmp_path, parallel)
    _, expected = used_in_between(tmp_path / "one", parallel)
    for rank, (final, seen) in enumerate(results):
        assert_same(final, alone["topr", "adamw"][0])
        np.testing.assert_allclose(seen, expected, rtol=1e-5)
        stored_model = LlamaForCausalLM.from_pretrained(tmp_path / str(rank))
        assert_same(dict(stored_model.named_parameters()), final)


# ---- in bfloat16


def step_in_bfloat16(folder: Path, parallel: str, lr: float, adapter: bool = False) -> tuple[Any, Any]:
    """Weights before and after a step whose forward pass is bfloat16, as a base is that is not trained."""
    ours = Policy(make_model(11).to(torch.bfloat16 if adapter else torch.float32), None, "test", torch.bfloat16)
    if adapter:
        ours.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, base_path="base", trained_folder=None)
    examples = make_examples(ours, TOPR)
    config = optim(name="adafactor", micro_batch_size=8, lr=lr)
    trainer = Trainer(ours, TOPR, None, config, folder, parallelize(ours, parallel))
    before = weights(trainer)
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    return before, weights(trainer)


def test_in_bfloat16_float32_weights_move(tmp_path: Path) -> None:
    (before, after), *_ = together(2, step_in_bfloat16, tmp_path / "fsdp", "fsdp", 5e-7)
    (start, alone), *_ = together(2, step_in_bfloat16, tmp_path / "ddp", "ddp", 5e-7)
    for name, weight in before.items():
        assert torch.equal(weight, start[name])
        assert after[name].dtype is torch.float32
        step, other = after[name] - weight, alone[name] - weight
        assert float((step != 0).float().mean()) > 0.5, name
        assert float(((weight.bfloat16() + step.bfloat16()) == weight.bfloat16()).float().mean()) > 0.9
        assert float((step - other).norm() / other.norm()) < 0.3, name  # rounded in another order


@needs_peft
def test_in_bfloat16_an_adapter_moves_and_its_base_stays(tmp_path: Path) -> None:
    (start, after), *_ = together(2, step_in_bfloat16, tmp_path / "fsdp", "fsdp", 1e-2, True)
    _, alone = step_in_bfloat16(tmp_path / "alone", "ddp", 1e-2, True)
    for name, weight in after.items():
        assert weight.dtype is (torch.float32 if ".lora_" in name else torch.bfloat16)
        assert ".lora_" in name or torch.equal(weight, start[name]), name
    moved, other = (
        torch.cat([(each[name] - start[name]).float().flatten() for name in start]) for each in (after, alone)
    )
    assert float((moved - other).norm() / other.norm()) < 0.3  # rounded in another order
