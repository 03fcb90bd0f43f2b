"""The loop: what a batch is split into, how often it is interrupted and how it is padded change nothing."""

import dataclasses
import json
import re
import resource

import numpy as np
import pytest
import torch

from tests.conftest import each_row, names_in, refused
from tests.training.trainers import TOPR, N, make_examples, make_trainer, new_policy, train, weights
from topr_exp.algorithms.topr import Tapered
from topr_exp.runtime.checksums import write_checksums
from topr_exp.training.batches import GlobalBatch, micro_batches
from topr_exp.training.logprobs import log_probabilities
from topr_exp.types import LossOutput

PART, LIST = "part-00001-of-00001.safetensors", "checksums.json"
BATCH = np.arange(8)


def update_once(trainer, examples, *, mu_is_policy=True):
    return trainer.update(GlobalBatch(examples, BATCH, mu_is_policy), 1)


@pytest.mark.parametrize(
    "completion_lengths, stay_together",
    [((10, 15), True), ((5, 120), False)],
    ids=["similar lengths", "lengths that differ"],
)
def test_completions_of_a_problem_stay_together_where_that_costs_less(completion_lengths, stay_together):
    policy = new_policy(hidden_size=128, intermediate_size=256)  # as large as the shipped one's layers
    examples = make_examples(policy, TOPR, 8, (30, 31), completion_lengths)
    order = examples.order(0, 1, 0)

    batches = micro_batches(policy.model, GlobalBatch(examples, order, mu_is_policy=True), N)

    all_positions = []
    longest = []
    is_of_one_problem = []
    for positions, _ in batches:
        rows = order[positions]
        all_positions += positions.tolist()
        longest.append(max(map(examples.length, rows)))
        is_of_one_problem.append(len(set(examples.problem_of(rows))) == 1)
    assert sorted(all_positions) == list(range(8 * N))
    assert all(is_of_one_problem) == stay_together
    assert stay_together or longest == sorted(longest)


# ---- checkpoints


def save_checkpoints(folder, *steps):
    """Write checkpoints after these numbers of updates."""
    trainer, examples = make_trainer(folder)
    train(trainer, examples, 1)
    for step in steps:
        trainer.step = step
        trainer.save({"round.arrow": b"sampled"})


def with_another_end(content):
    return content[:-1] + b"x"


@pytest.mark.parametrize(
    "name, damage, line",
    [
        (PART, with_another_end, f"{PART} has another checksum"),
        (PART, None, f"{PART}: No such file or directory"),
        ("round.arrow", with_another_end, "round.arrow has another checksum"),
        (LIST, None, f"{LIST} is no whole list"),
        (LIST, lambda content: b"[" * 100_000, f"{LIST} is no whole list"),
        (LIST, lambda content: re.sub(rb'\n  "part.*', b"", content), f"{LIST} is no whole list"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, capsys, name, damage, line):
    save_checkpoints(tmp_path, 2, 3)
    path = tmp_path / "step-00000003" / name
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))

    restored, _ = make_trainer(tmp_path)

    assert restored.step == 2
    assert f"step-00000003 is damaged ({line}" in capsys.readouterr().err
    restored.save({})  # two sound ones are kept, and a damaged one takes no place of theirs
    assert names_in(tmp_path) == {"step-00000002"}


@pytest.mark.parametrize("state", [[], {}, {"step": "2"}, {"step": 3, "samples": None}], ids=str)
def test_a_checkpoint_whose_counters_have_another_type_is_skipped_with_a_warning(state, tmp_path, capsys):
    """Its checksums are right: whoever packed a run's folder can write them, too."""
    save_checkpoints(tmp_path, 1, 2)
    checkpoint = tmp_path / "step-00000002"
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / LIST).unlink()
    write_checksums(checkpoint)

    restored, _ = make_trainer(tmp_path)

    assert restored.step == 1
    assert "step-00000002 is damaged (state.json h" in capsys.readouterr().err


def test_a_full_disk_during_a_checkpoint_keeps_the_last_one(tmp_path):
    save_checkpoints(tmp_path, 1)
    trainer, _ = make_trainer(tmp_path)
    trainer.step = 2
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "step-00000001" / PART).stat().st_size

    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard_limit))
    try:
        with refused(r"cannot write .*step-00000002: .*File too large"):
            trainer.save({})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))

    assert names_in(tmp_path) == {"step-00000001"}
    assert make_trainer(tmp_path)[0].step == 1


@pytest.mark.parametrize(
    "every, seconds, is_due", [(60, 61, False), (60, 2001, True), (3000, 2001, False), (0, 0, True)]
)
def test_saving_that_takes_100_seconds_takes_a_twentieth_of_the_run(tmp_path, every, seconds, is_due):
    trainer, _ = make_trainer(tmp_path)
    trainer.last_save_time, trainer.save_seconds = 7.0, 100.0

    assert trainer.should_save(7.0 + seconds, every) == is_due


# ---- what stops a run


def test_the_gate_stops_a_run_whose_mu_was_scored_by_other_weights(tmp_path):
    trainer, examples = make_trainer(tmp_path)
    with torch.no_grad():
        next(trainer.policy.model.parameters()).mul_(1.01)

    with refused(r"log π − log μ is .* before the first update .*μ was not scored by these"):
        update_once(trainer, examples)


@pytest.mark.parametrize("delta", [[0.1, -0.1], [0.0, 0.0, -0.002], [float("nan"), 0.0]])
def test_the_gate_is_by_each_completion(tmp_path, delta):
    """Means and sums are 0 where some are scored too high and as many too low."""
    trainer, _ = make_trainer(tmp_path)
    trainer.check_unit_ratio(torch.tensor([9e-4, -9e-4, 0.0]))

    with refused(r"log π − log μ is .* before the first update .*μ was not scored by these"):
        trainer.check_unit_ratio(torch.tensor(delta))


@dataclasses.dataclass(frozen=True)
class UndefinedGradient(Tapered):
    """Adds what is 0 and has a gradient that is not a number."""

    def __call__(self, batch):
        output = super().__call__(batch)
        zero = (0 * output.loss).abs().sqrt()
        return LossOutput(output.loss + zero, output.metrics)


@pytest.mark.parametrize("loss", [TOPR, UndefinedGradient(**vars(TOPR))], ids=["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_before_it_changes_a_weight(tmp_path, loss):
    trainer, examples = make_trainer(tmp_path, loss)
    if loss is TOPR:
        trainer.policy.model.lm_head.weight.data[5] = float("inf")
    initial = weights(trainer)

    with refused(r"not finite at step 1; .*completions \[0, 1, 2, 3, 4, 5, 6, 7\]"):
        update_once(trainer, examples, mu_is_policy=False)

    torch.testing.assert_close(weights(trainer), initial, equal_nan=True)


# ---- memory


ADVICE = """
8 | False | "lower optim.micro_batch_size or set optim.gradient_checkpointing=true"
8 | True | "lower optim.micro_batch_size"
1 | True | "train on more or larger devices"
"""


@each_row("micro recompute advice", ADVICE, literals=True)
def test_running_out_of_memory_is_one_line_that_names_the_settings(tmp_path, micro, recompute, advice):
    trainer, examples = make_trainer(tmp_path, micro_batch_size=micro, gradient_checkpointing=recompute)
    # Asks the system for more than there is: torch's own error, not one of ours.
    layer = trainer.policy.model.base_model.layers[0]
    hook = layer.register_forward_hook(lambda *_: torch.empty(1 << 60, dtype=torch.uint8))
    settings = f"optim.micro_batch_size={micro} and optim.gradient_checkpointing={str(recompute).lower()}"
    line = rf"out of memory in an update with {settings}, the longest sequence of \d+ tokens; {advice}; what was"

    with refused(line):
        update_once(trainer, examples)
    with refused(r"scoring 5 completions .*; lower optim.micro_batch_size; what"):
        log_probabilities(trainer.policy, examples.completions, range(8), 5)

    hook.remove()
    update_once(trainer, examples)


def train_in_little_memory(folder, error, setting):
    """As on one GPU that has no room for what layers keep."""
    trainer, examples = make_trainer(folder / str(setting), gradient_checkpointing=setting)
    trainer.recompute = bool(setting)
    layer = trainer.policy.model.base_model.layers[1]

    def fill(*_):
        if "forward" not in vars(layer):  # as `recomputed_layers` has replaced it
            raise error

    layer.register_forward_hook(fill)
    train(trainer, examples, 2)
    return weights(trainer)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=["allocator", "cublas", "driver"],
)
def test_layers_are_computed_again_where_memory_runs_out_and_the_settings_leave_it_open(error, tmp_path, capsys):
    by_itself = train_in_little_memory(tmp_path, error, None)

    warning = "warning: out of GPU memory: optim.gradient_checkpointing=true from update 1 on"
    assert capsys.readouterr().err.splitlines() == [warning]
    assert torch.equal(by_itself, train_in_little_memory(tmp_path, error, True))
    with refused(r"or set optim\.gradient_checkpointing=true"):
        train_in_little_memory(tmp_path, error, False)


# ---- tokens


def test_tokens_are_reported_as_micro_batches_are_done(tmp_path):
    trainer, examples = make_trainer(tmp_path, micro_batch_size=3)
    reports = []
    trainer.report_tokens_to(reports.append)

    record = update_once(trainer, examples)

    assert len(reports) == 3
    assert sum(reports) == record["tokens"] + record["prompt_tokens"]
