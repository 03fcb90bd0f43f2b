"""The loop: what a batch is split into, how often it is interrupted and how it is padded change nothing."""

import dataclasses
import re
import resource
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.conftest import make_graded, make_model
from topr_exp.algorithms.agro import AGRO
from topr_exp.algorithms.regressions import DPO
from topr_exp.algorithms.topr import Tapered
from topr_exp.composition.training_set import TrainingSet, build_training_set
from topr_exp.config.groups import ComposeConfig, OptimConfig, unit_of
from topr_exp.training import optimizers
from topr_exp.training.batches import micro_batches
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.parallel import SingleProcess
from topr_exp.training.trainer import Trainer
from topr_exp.types import Batch, LossOutput, TOPRError

N = 4  # completions a problem
TOPR = Tapered("topr", 1.0, 1.0, 0.0, 1.0, "sequence", True, "reward")
PER_TOKEN = Tapered("per_token", 1.0, 1.0, 0.0, 1.0, "sequence", False, "group")  # reduction=tokens
PART, LIST = "part-00001-of-00001.safetensors", "checksums.json"
AGRO_LOSS = AGRO("agro", 0.5, False)
DPO_LOSS = DPO("dpo", 0.1)


def optim(**changes: Any) -> OptimConfig:
    values = {"lr": 1e-2, "grad_clip": 1.0, "batch_size": 8, "micro_batch_size": 8, "name": "adamw"}
    values |= {"gradient_checkpointing": False, **changes}
    return OptimConfig(
        weight_decay=0.0,
        epochs=1,
        skip_nonfinite=False,
        **{"reduction": "sequences", "warmup_steps": 0, "schedule": "constant", **values},
    )


def make_examples(policy, loss, problems=6, prompt=(1, 7), completion=(1, 9), correct=None):
    """Random completions of random prompts, of lengths between two numbers, a third of them called correct."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 11, rng.integers(*prompt)).astype(np.int32) for _ in range(problems)]
    rows = problems * N
    tokens = [rng.integers(3, 11, rng.integers(*completion)) for _ in range(rows)]
    is_correct = np.arange(rows) % 3 == 0 if correct is None else correct
    completions = make_graded(np.repeat(np.arange(problems), N), is_correct, prompts=prompts, tokens=tokens)
    config = ComposeConfig()
    whole = {"seed": 0, "iteration": 1, "baseline": None, "effective": None}
    mu_logp = log_probabilities(policy, completions, range(rows), 7)["logp"]
    completions = completions.with_columns({"mu_logp": mu_logp, "ref_logp": mu_logp})
    return build_training_set(completions, "pm1", config, unit_of(loss.needs), **whole)


def reduction_of(loss: Any) -> str:
    return "tokens" if loss is PER_TOKEN else "sequences"


def new_trainer(policy: Any, loss: Any, config: OptimConfig, folder: Path) -> Trainer:
    return Trainer(policy, loss, None, config, folder, SingleProcess(policy.model))


@pytest.fixture
def made(tmp_path: Path, make_policy: Any) -> Any:
    """A function that makes a trainer, in a folder of the test, and examples for it."""

    def make(loss: Any = TOPR, folder: str = "a", **changes: Any) -> tuple[Trainer, TrainingSet]:
        policy = make_policy(make_model(11))
        config = optim(reduction=reduction_of(loss), **changes)
        return new_trainer(policy, loss, config, tmp_path / folder), make_examples(policy, loss)

    return make


def train(trainer: Trainer, examples: TrainingSet, updates: int) -> list[dict[str, float]]:
    """Updates up to a number of them."""
    size, order = trainer.config.batch_size, examples.order(0, 1, 0)
    records = []
    for step in range(trainer.step, updates):
        start = step * size % len(order)
        records.append(trainer.update(examples, order[start : start + size], updates, expect_unit_ratio=step == 0))
    return records


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.model.parameters()])


@pytest.mark.parametrize("micro", [8, 3])
def test_signals_are_computed_once_over_the_global_batch_without_gradients(made, monkeypatch, micro):
    asked, signals = [], AGRO.signals
    seen = lambda batch: asked.append((len(batch.reward), (2 * batch.logp).requires_grad))
    monkeypatch.setattr(AGRO, "signals", lambda self, batch: seen(batch) or signals(self, batch))
    train(*made(AGRO_LOSS, micro_batch_size=micro), 1)
    assert asked == [(8, False)]


@pytest.mark.parametrize(
    ("completion", "whole"), [((10, 15), True), ((5, 120), False)], ids=["similar lengths", "lengths that differ"]
)
def test_completions_of_a_problem_stay_together_where_that_costs_less(make_policy, completion, whole):
    policy = make_policy(make_model(11, hidden_size=128, intermediate_size=256))  # as large as the shipped one's layers
    examples = make_examples(policy, TOPR, 8, (30, 31), completion)
    chosen = examples.order(0, 1, 0)
    parts = micro_batches(policy.model, examples, chosen, N)
    assert sorted(np.concatenate([positions for positions, _ in parts])) == list(range(8 * N))
    problems = [set(examples.problem_of(chosen[positions])) for positions, _ in parts]
    assert (max(map(len, problems)) == 1) == whole
    lengths = [[examples.length(example) for example in chosen[positions]] for positions, _ in parts]
    assert ([min(part) for part in lengths[1:]] >= [max(part) for part in lengths[:-1]]) == (not whole)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (PART, lambda content: content[:-1] + b"x", f"{PART} has another checksum"),
        (PART, None, f"{PART}: No such file or directory"),
        ("round.arrow", lambda content: content[:-1] + b"x", "round.arrow has another checksum"),
        (LIST, None, f"{LIST} is no whole list"),
        (LIST, lambda content: b"[" * 100_000, f"{LIST} is no whole list"),
        (LIST, lambda content: b"null", f"{LIST} is no whole list"),
        (LIST, lambda text: re.sub(rb'\n  "part.*', b"", text), f"{LIST} is no whole list"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(made, capsys, name, damage, said):
    trainer, examples = made()
    train(trainer, examples, 2)
    trainer.save({})
    trainer.step = 3
    trainer.save({"round.arrow": b"sampled"})
    newest = trainer.folder / "step-00000003" / name
    before = newest.read_bytes()
    newest.unlink()
    if damage is not None:
        newest.write_bytes(damage(before))
    again, _ = made()
    assert again.step == 2
    assert f"step-00000003 is damaged ({said}" in capsys.readouterr().err
    again.save({})  # two sound ones are kept, and a damaged one takes no place of theirs
    assert [path.name for path in trainer.folder.iterdir()] == ["step-00000002"]


def test_a_full_disk_during_a_checkpoint_keeps_the_last_one(made: Any) -> None:
    trainer, examples = made()
    train(trainer, examples, 1)
    trainer.save({})
    train(trainer, examples, 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (trainer.folder / "step-00000001" / PART).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(TOPRError, match=r"cannot write .*step-00000002: .*File too large"):
            trainer.save({})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in trainer.folder.iterdir()] == ["step-00000001"]
    assert made()[0].step == 1


def test_the_gate_stops_a_run_whose_mu_was_scored_by_other_weights(made: Any) -> None:
    """By each completion: means and sums are 0 where some are scored too high and as many too low."""
    trainer, examples = made()
    with torch.no_grad():
        next(trainer.policy.model.parameters()).mul_(1.01)
    with pytest.raises(TOPRError, match=r"log π − log μ is .* before the first update .*μ was not scored by these"):
        trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    trainer.check_unit_ratio(torch.tensor([9e-4, -9e-4, 0.0]))
    for delta in ([0.1, -0.1], [0.0, 0.0, -0.002], [float("nan"), 0.0]):
        with pytest.raises(TOPRError, match="before the first update"):
            trainer.check_unit_ratio(torch.tensor(delta))


def test_what_was_logged_is_durable_before_the_checkpoint_that_counts_on_it(made: Any) -> None:
    trainer, examples = made()
    train(trainer, examples, 2)
    there, told = [], Mock()
    told.before_checkpoint = lambda step, steps: there.append((step, steps, [*trainer.folder.glob("step-*")]))
    trainer.saving = 1e6
    trainer.checkpoint(told, 9, 0)
    assert there == [(2, 9, [])]
    assert [path.name for path in trainer.folder.iterdir()] == ["step-00000002"]
    assert trainer.saving < 1e6
    trainer.checkpoint(told, 9, 1e6)
    assert len(there) == 1, "it is not time yet"
    trainer.saving, trainer.saved = 100.0, 7.0  # where writing takes long it takes a twentieth of the time
    for every, later, due in ((60, 61, False), (60, 2001, True), (3000, 2001, False), (0, 0, True)):
        assert trainer.should_save(7.0 + later, every) == due


@dataclasses.dataclass(frozen=True)
class NotFinite(Tapered):
    """Adds what is infinite and has no gradient, or what is 0 and has one that is not a number."""

    loss_alone: bool = True

    def __call__(self, batch: Batch) -> LossOutput:
        out = super().__call__(batch)
        more = torch.full_like(out.loss, float("inf")) if self.loss_alone else (0 * out.loss).abs().sqrt()
        return dataclasses.replace(out, loss=out.loss + more)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("broken", ["weights", "loss", "gradient"])
def test_what_is_not_finite_stops_the_run_or_is_skipped(made: Any, skip: bool, broken: str) -> None:
    trainer, examples = made(TOPR if broken == "weights" else NotFinite(**vars(TOPR), loss_alone=broken == "loss"))
    object.__setattr__(trainer.config, "skip_nonfinite", skip)
    if broken == "weights":
        with torch.no_grad():
            trainer.policy.model.lm_head.weight[5] = float("inf")
    before = weights(trainer).clone()
    if skip:
        assert trainer.update(examples, np.arange(8), 1, expect_unit_ratio=False)["skipped"] == 1
        torch.testing.assert_close(weights(trainer), before, equal_nan=True)
    else:
        with pytest.raises(TOPRError, match=r"not finite at step 1; .*completions \[0, 1, 2, 3, 4, 5, 6, 7\]"):
            trainer.update(examples, np.arange(8), 1, expect_unit_ratio=False)


LINE = (
    r"out of memory in an update with optim.micro_batch_size={} and optim.gradient_checkpointing={}, the longest "
    r"sequence of \d+ tokens; {}; what was finished before is kept$"
)


@pytest.mark.parametrize(
    ("micro", "recompute", "advice"),
    [
        (8, False, "lower optim.micro_batch_size or set optim.gradient_checkpointing=true"),
        (8, True, "lower optim.micro_batch_size"),
        (1, True, "train on more or larger devices"),
    ],
)
def test_running_out_of_memory_is_one_line_that_names_the_settings(made, micro, recompute, advice):
    trainer, examples = made(micro_batch_size=micro, gradient_checkpointing=recompute)
    # Asks the system for more than there is: torch's own error, not one of ours.
    layer = trainer.policy.model.base_model.layers[0]
    hook = layer.register_forward_hook(lambda *_: torch.empty(1 << 60, dtype=torch.uint8))
    with pytest.raises(TOPRError, match=LINE.format(micro, str(recompute).lower(), advice)):
        trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    with pytest.raises(TOPRError, match=r"scoring 5 completions .*; lower optim.micro_batch_size; what"):
        log_probabilities(trainer.policy, examples.completions, range(8), 5)
    hook.remove()
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=["allocator", "cublas", "driver"],
)
def test_layers_are_computed_again_where_memory_runs_out_and_the_settings_leave_it_open(error, made, capsys):
    def train_on_gpu(setting: bool | None) -> Trainer:
        """As on one GPU that has no room for what layers keep."""
        trainer, examples = made(folder=str(setting), gradient_checkpointing=setting)
        trainer.recompute = bool(setting)
        layer = trainer.policy.model.base_model.layers[1]

        def full(*_: Any) -> None:
            if "forward" not in vars(layer):  # as `recomputed_layers` has replaced it
                raise error

        layer.register_forward_hook(full)
        train(trainer, examples, 2)
        return trainer

    open_, set_ = train_on_gpu(None), train_on_gpu(True)
    assert torch.equal(weights(open_), weights(set_))
    said = "warning: out of GPU memory: optim.gradient_checkpointing=true from update 1 on"
    assert capsys.readouterr().err.splitlines() == [said]
    with pytest.raises(TOPRError, match=r"or set optim\.gradient_checkpointing=true"):
        train_on_gpu(False)


@pytest.mark.parametrize(
    ("setting", "kind", "processes", "recompute"),
    [(None, "cuda", 1, False), (None, "cuda", 2, True), (None, "cpu", 1, True), (False, "cpu", 2, False)],
)
def test_one_gpu_tries_to_keep_layers(setting, kind, processes, recompute, tmp_path, make_policy, monkeypatch):
    policy = make_policy(make_model(11))
    monkeypatch.setattr(type(policy), "device", torch.device(kind))
    monkeypatch.setattr("topr_exp.training.trainer.distributed.world_size", lambda: processes)
    assert new_trainer(policy, TOPR, optim(gradient_checkpointing=setting), tmp_path).recompute is recompute


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("kernel", [False, True])
def test_a_checkpoint_goes_on_bit_for_bit_with_either_kernel(made, monkeypatch, kernel, optimizer) -> None:
    monkeypatch.setattr(optimizers, "takes_fused_kernel", lambda weights: kernel)
    undisturbed, examples = made(folder="a", name=optimizer)
    assert undisturbed.optimizer.defaults.get("fused") in (kernel if optimizer == "adamw" else None, None)
    train(undisturbed, examples, 6)
    broken, _ = made(folder="b", name=optimizer)
    train(broken, examples, 3)
    broken.save({})
    resumed, _ = made(folder="b", name=optimizer)
    train(resumed, examples, 6)
    assert torch.equal(weights(resumed), weights(undisturbed))


def test_tokens_are_reported_as_micro_batches_are_done_and_recorded_with_those_of_prompts(made: Any) -> None:
    trainer, examples = made(micro_batch_size=3)
    reported: list[int] = []
    trainer.report_tokens_to(reported.append)
    chosen = np.arange(8)
    record = trainer.update(examples, chosen, 1, expect_unit_ratio=False)
    sequences = examples.sequences(examples.rows(chosen))
    assert record["prompt_tokens"] == sum(len(prompt) for prompt, _ in sequences)
    assert record["tokens"] == sum(len(completion) for _, completion in sequences)
    assert len(reported) == 3
    assert sum(reported) == record["tokens"] + record["prompt_tokens"]


def test_completion_tokens_are_reported_by_batch_of_scoring(made: Any) -> None:
    trainer, examples = made()
    reported: list[int] = []
    log_probabilities(trainer.policy, examples.completions, range(8), 5, reported.append)
    lengths = examples.completions.tokens.lengths()[:8]
    assert len(reported) == 2
    assert sum(reported) == lengths.sum()
