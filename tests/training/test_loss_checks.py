"""What a loss returns: anything but losses [B] with a gradient, and metrics [B], is one line at the first update."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import refused
from tests.training.trainers import DPO_LOSS, TOPR, make_trainer
from topr_exp.algorithms.base import Loss
from topr_exp.training.batches import GlobalBatch
from topr_exp.types import LossOutput


@dataclass(frozen=True)
class Changed(Loss):
    """A loss whose output is a function of the right losses, and whose signals are another one."""

    change: Any = LossOutput
    signals_of: Any = None  # a function of the batch; None: no signals
    right: Any = TOPR
    name: str = "bad"

    @property
    def needs(self):
        return self.right.needs

    @property
    def signal_names(self):
        return frozenset() if self.signals_of is None else frozenset({"limit"})

    def __call__(self, batch):
        return self.change(self.right(batch).loss)

    def signals(self, batch):
        return self.signals_of(batch)


def first_update(folder, loss, micro=16, batch=16):
    trainer, examples = make_trainer(folder, loss, batch_size=batch, micro_batch_size=micro)
    order = examples.order(0, 1, 0)
    trainer.update(GlobalBatch(examples, order[:batch], mu_is_policy=False), 3)


OUTPUT = r"a topr_exp\.types\.LossOutput\(loss, metrics\); got"
LOSS = r"one loss per completion, shape \[16\]; got"
METRIC = r"metric w per completion, shape \[16\]; got"


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda loss: loss, rf"{OUTPUT} \[16\]"),
        (lambda loss: (loss, {}), f"{OUTPUT} a tuple"),
        (lambda loss: LossOutput(loss.mean()), rf"{LOSS} \[\]"),
        (lambda loss: LossOutput(loss[1:]), rf"{LOSS} \[15\]"),
        (lambda loss: LossOutput(loss.mean().item()), rf"{LOSS} -?\d"),
        (lambda loss: LossOutput(loss.detach()), "a gradient with respect to logp; got a detached tensor"),
        (lambda loss: LossOutput(loss.bfloat16()), "float32 or float64; got torch.bfloat16"),
        (lambda loss: LossOutput(loss.to("meta")), "losses on cpu, where its batch is; got meta"),
        (lambda loss: LossOutput(loss, {"w": loss.detach().mean()}), rf"{METRIC} \[\]"),
        (lambda loss: LossOutput(loss, {"w": loss.detach()[1:]}), rf"{METRIC} \[15\]"),
        (lambda loss: LossOutput(loss, {"w": loss}), "w detached; got a tensor with a gradient"),
        (lambda loss: LossOutput(loss, [loss]), "metrics by name.*; got a list"),
        (lambda loss: LossOutput(loss, {1: loss.detach()}), "metrics by name.*; got the name 1"),
    ],
)
def test_a_wrong_output_is_one_line_before_any_step(tmp_path, change, line):
    with refused(f"^algo=bad must return .*{line}"):
        first_update(tmp_path, Changed(change=change))


def test_a_loss_of_pairs_has_one_number_for_each(tmp_path):
    loss = Changed(change=lambda loss: LossOutput(loss.mean()), right=DPO_LOSS)

    with refused(r"one loss per pair, shape \[5\]; got \[\]"):
        first_update(tmp_path, loss, batch=5)


@pytest.mark.parametrize("micro", [4, 16])
@pytest.mark.parametrize(
    "signals, line",
    [
        (lambda batch: {"limit": batch.reward.mean()}, r"limit per completion, shape \[16\]; got \[\]"),
        (lambda batch: {"limit": batch.reward[1:]}, r"limit per completion, shape \[16\]; got \[15\]"),
        (lambda batch: {"limit": 1.0}, r"limit per completion, shape \[16\]; got 1\.0"),
        (lambda batch: {"bound": batch.reward}, "limit, its signal_names; got bound"),
        (lambda batch: batch.reward, r"tensors by name.*; got \[16\]"),
    ],
)
def test_wrong_signals_are_one_line(tmp_path, signals, line, micro):
    with refused(f"^signals of algo=bad must return {line}"):
        first_update(tmp_path, Changed(signals_of=signals), micro)
