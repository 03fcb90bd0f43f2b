"""Several processes compute the same as one, in float32 and in bfloat16: weights, metrics, checkpoints."""

import importlib.util
import os
from itertools import chain

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from tests.conftest import column, make_model, needs_peft
from tests.processes import together
from tests.training.trainers import (
    AGRO_LOSS,
    DPO_LOSS,
    PER_TOKEN,
    TOPR,
    make_examples,
    new_policy,
    new_trainer,
    optim,
    reduction_of,
)
from topr_exp.algorithms.agro import KLPG
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models.policy import Policy, save_model
from topr_exp.runtime import distributed
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.parallel import DDP, parallelize
from topr_exp.training.trainer import Trainer

KL = KLPG("kl_pg", 0.5, False)  # needs the whole distribution of π_ref
LOSSES = {loss.name: loss for loss in (TOPR, PER_TOKEN, DPO_LOSS, AGRO_LOSS)} | {"topr, lora": TOPR, "kl, lora": KL}
TOPR_CASE, AGRO_CASE = ("topr", "adamw"), ("agro", "adafactor")
CASES = [TOPR_CASE, ("topr", "adafactor"), ("per_token", "adafactor"), ("dpo", "adamw"), AGRO_CASE]
if importlib.util.find_spec("peft"):
    CASES += [("topr, lora", "adafactor"), ("kl, lora", "adamw")]
SIZES = [8, 1, 8]  # of global batches; the second has fewer examples than there are processes
SIZES_OF_GROUPS = [8, 4, 8]
extended = pytest.mark.extended


def add_adapter(policy):
    policy.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, base_path="base", trained_folder=None)
    return policy


def train(folder, name, optimizer, parallel, steps=3):
    """Updates from the newest checkpoint below `folder` on: the trainer and the updates' records."""
    loss = LOSSES[name]
    policy = new_policy()
    reference = None
    if "lora" in name:
        add_adapter(policy)
    if loss is KL:
        reference = policy.without_adapter()
    recompute = name in ("dpo", "topr, lora")  # some of them with gradient checkpointing
    changes = {"gradient_checkpointing": recompute, "reduction": reduction_of(loss)}
    config = optim(name=optimizer, micro_batch_size=2, lr=1e-3, **changes)
    trainer = Trainer(policy, loss, reference, config, folder, parallelize(policy, parallel))
    return trainer, update_until(trainer, steps)


def update_until(trainer, steps):
    """The updates up to a step; their records."""
    policy = new_policy()
    if trainer.policy.base is not None:
        add_adapter(policy)
    examples = make_examples(policy, trainer.loss)
    order = np.resize(examples.order(0, 1, 0), 100)
    sizes = SIZES_OF_GROUPS if "groups" in trainer.loss.needs else SIZES
    records = []
    for step in range(trainer.step, steps):
        batch = order[8 * step : 8 * step + sizes[step]]
        records.append(trainer.update(GlobalBatch(examples, batch, mu_is_policy=step == 0), steps))
        del records[-1]["tokens_per_second"]
    return records


def weights(trainer):
    with trainer.layout.gathered_weights():
        return {name: weight.detach().clone() for name, weight in trainer.policy.model.named_parameters()}


def train_cases(folder, parallel, cases=CASES):
    """The weights and records of each loss with an optimizer."""
    results = {}
    for case in cases:
        trainer, records = train(folder / case[0], *case, parallel)
        results[case] = weights(trainer), records
    return results


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As each of several processes has: threads change the last digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def one_process(one_thread, tmp_path_factory):
    """Weights and records by one process."""
    return train_cases(tmp_path_factory.mktemp("one-process"), "ddp")


def assert_same(weights, expected):
    """In float32, of weights between -2 and 2."""
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "size, parallel",
    [(2, "ddp"), *(pytest.param(*case, marks=extended) for case in ((2, "fsdp"), (4, "ddp"), (4, "fsdp")))],
)
def test_several_processes_compute_the_same_as_one(tmp_path, one_process, size, parallel):
    results, *results_of_others = together(size, train_cases, tmp_path, parallel)

    for case, (expected_weights, expected_records) in one_process.items():
        final_weights, records = results[case]
        assert_same(final_weights, expected_weights)
        for record, expected in zip(records, expected_records, strict=True):
            assert record == pytest.approx(expected, rel=1e-4, abs=1e-5)
        for results_of_process in results_of_others:
            _, records_of_process = results_of_process[case]
            assert column(records_of_process, "loss") == column(records, "loss")


def sum_gradients_of_experts():
    """The gradients of three experts, of which each process used its own."""
    experts = torch.nn.ModuleList([torch.nn.Linear(2, 1, bias=False) for _ in range(3)])
    rank = distributed.rank()
    experts[rank].weight.grad = torch.full((1, 2), 1.0 + rank)
    DDP(experts).sum_gradients()
    return [None if expert.weight.grad is None else expert.weight.grad.tolist() for expert in experts]


def test_processes_that_used_other_weights_sum_the_same_gradients():
    assert together(2, sum_gradients_of_experts) == [[[[1, 1]], [[2, 2]], None]] * 2


# ---- checkpoints


def save(folder, case, parallel):
    """An update and a checkpoint."""
    trainer, _ = train(folder, *case, parallel, steps=1)
    trainer.save({"extra": b"kept"})


def resume(folder, case, parallel):
    """The two other updates, from that checkpoint."""
    trainer, records = train(folder, *case, parallel)
    assert column(records, "step") == [2, 3]
    assert (trainer.restored / "extra").read_bytes() == b"kept"
    return weights(trainer)


CASES_OF_CHECKPOINTS = [case for case in CASES if "topr" in case[0]]


@extended
@pytest.mark.parametrize("case", CASES_OF_CHECKPOINTS, ids=str)
def test_a_checkpoint_loads_on_any_number_of_processes(tmp_path, one_process, case):
    expected, _ = one_process[case]
    sharded_folder = tmp_path / "sharded"
    whole_folder = tmp_path / "whole"
    together(4, save, sharded_folder, case, "fsdp")
    save(whole_folder, case, "ddp")

    names = []
    for path in sharded_folder.glob("*/part-*.safetensors"):
        names.append(load_file(path).keys())
    assert len(names) == 4
    if "lora" in case[0]:
        assert all(".lora_" in name for name in chain.from_iterable(names))
    assert_same(resume(sharded_folder, case, "ddp"), expected)
    for folder, parallel in ((sharded_folder, "fsdp"), (sharded_folder, "ddp"), (whole_folder, "fsdp")):
        weights_of_first, _ = together(2, resume, folder, case, parallel)
        assert_same(weights_of_first, expected)


def on_two_machines(function, *arguments):
    """Call it in a process of a run that believes to be on a machine with one other."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    return function(*arguments)


def test_parts_within_a_machine_compute_the_same_as_one_process(tmp_path, one_process):
    for results in together(4, on_two_machines, train_cases, tmp_path, "hsdp", [AGRO_CASE]):
        assert_same(results[AGRO_CASE][0], one_process[AGRO_CASE][0])


@extended
def test_parts_within_a_machine_are_saved_once(tmp_path, one_process):
    case = CASES[1]
    together(4, on_two_machines, save, tmp_path, case, "hsdp")

    assert len(list(tmp_path.glob("*/*.safetensors"))) == 2  # the other machine's are the same
    expected, _ = one_process[case]
    assert_same(together(4, on_two_machines, resume, tmp_path, case, "hsdp")[0], expected)
    assert_same(together(2, resume, tmp_path, case, "fsdp")[0], expected)


def step_after_damage(folder):
    """The step that a run goes on from whose newest checkpoint, of step 3, one process damaged."""
    for steps in (1, 3):
        train(folder, *TOPR_CASE, "fsdp", steps=steps)[0].save({})
    if distributed.is_main_process():
        part = folder / "step-00000003/part-00002-of-00002.safetensors"
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    distributed.barrier()
    return train(folder, *TOPR_CASE, "fsdp", steps=0)[0].step


def test_a_damaged_shard_sets_all_processes_back_to_the_checkpoint_before(tmp_path):
    assert together(2, step_after_damage, tmp_path) == [1, 1]


# ---- the whole model between updates


def scores_between_updates(folder, parallel):
    """Final weights, and scores between updates, of which some processes compute more than others."""
    trainer, _ = train(folder, *TOPR_CASE, parallel, steps=0)
    completions = make_examples(new_policy(), TOPR).completions
    scores = []
    for steps in (0, 1, 3):
        update_until(trainer, steps)
        with trainer.layout.gathered_weights():
            model = trainer.policy.model
            assert all(weight.requires_grad for weight in model.parameters()), "or autocast keeps none"
            for _ in range(1 + distributed.rank()):
                logp = log_probabilities(trainer.policy, completions, range(4), 3)
            save_model(model, folder / str(distributed.rank()))
        scores.append(np.concatenate(logp.to_pylist()).tolist())
    return weights(trainer), scores


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=extended), "fsdp"])
def test_each_process_may_use_the_whole_model_between_updates(tmp_path, one_process, parallel):
    results = together(2, scores_between_updates, tmp_path, parallel)

    _, expected = scores_between_updates(tmp_path / "one", "ddp")
    for rank, (final_weights, scores) in enumerate(results):
        assert_same(final_weights, one_process[TOPR_CASE][0])
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
        stored_model = LlamaForCausalLM.from_pretrained(tmp_path / str(rank))
        assert_same(dict(stored_model.named_parameters()), final_weights)


# ---- memory


class PolicyOnGPU(Policy):
    device = torch.device("cuda")


def recomputes_on_gpu(folder):
    policy = PolicyOnGPU(make_model(11), None, "test", torch.float32)
    return new_trainer(policy, TOPR, optim(gradient_checkpointing=None), folder).recompute


def test_one_gpu_tries_to_keep_layers_and_several_processes_could_not_agree(tmp_path):
    assert not recomputes_on_gpu(tmp_path)
    assert together(2, recomputes_on_gpu, tmp_path) == [True, True]


# ---- in bfloat16


def step_in_bfloat16(folder, parallel, lr, has_adapter=False):
    """Weights before and after a step whose forward pass is bfloat16, as a base is that is not trained."""
    policy = new_policy()
    policy.compute_dtype = torch.bfloat16
    if has_adapter:
        policy.model.bfloat16()
        add_adapter(policy)
    examples = make_examples(policy, TOPR)
    config = optim(name="adafactor", lr=lr)
    trainer = Trainer(policy, TOPR, None, config, folder, parallelize(policy, parallel))
    start = weights(trainer)
    trainer.update(GlobalBatch(examples, np.arange(8), mu_is_policy=True), 1)
    return start, weights(trainer)


def steps_in_bfloat16(folder, *arguments):
    """Weights at the start, and after a step of two processes and of one."""
    (start, sharded), _ = together(2, step_in_bfloat16, folder / "fsdp", "fsdp", *arguments)
    _, expected = step_in_bfloat16(folder / "one", "ddp", *arguments)
    return start, sharded, expected


def assert_near(step, expected):
    """Equal but for the order of rounding."""
    assert float((step - expected).norm() / expected.norm()) < 0.3


def test_sharded_float32_weights_move_in_bfloat16_as_those_of_one_process(tmp_path):
    start, sharded, expected = steps_in_bfloat16(tmp_path, 5e-7)

    for name, weight in start.items():
        assert sharded[name].dtype is torch.float32
        step = sharded[name] - weight
        assert float((step != 0).float().mean()) > 0.5, name
        assert_near(step, expected[name] - weight)


@needs_peft
def test_a_sharded_adapter_moves_in_bfloat16_and_its_base_stays(tmp_path):
    start, sharded, expected = steps_in_bfloat16(tmp_path, 1e-2, True)

    steps, expected_steps = [], []
    for name, weight in start.items():
        if ".lora_" in name:
            assert sharded[name].dtype is torch.float32
            steps.append((sharded[name] - weight).flatten())
            expected_steps.append((expected[name] - weight).flatten())
        else:
            assert sharded[name].dtype is torch.bfloat16
            assert torch.equal(sharded[name], weight), name
    assert_near(torch.cat(steps), torch.cat(expected_steps))
