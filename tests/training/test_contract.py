"""What a loss returns: anything but losses [B] with a gradient, and metrics [B], is one line at the first update."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import make_model, refused
from tests.training.test_trainer import DPO_LOSS, TOPR, make_examples, new_trainer, optim
from topr_exp.algorithms.base import Loss
from topr_exp.types import Batch, LossOutput


@dataclass(frozen=True)
class Returns(Loss):
    """A loss that returns a changed output of a right loss."""

    change: Any = None  # a function of the right output
    signals_of: Any = None  # a function of the batch; None: no signals
    right: Any = TOPR
    name: str = "bad"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.right.needs)

    @property
    def signal_names(self) -> frozenset[str]:
        return frozenset() if self.signals_of is None else frozenset({"limit"})

    def __call__(self, batch: Any) -> Any:
        return self.change(self.right(batch))

    def signals(self, batch: Batch) -> Any:
        return self.signals_of(batch)


WRONG = {
    "mean": (lambda out: LossOutput(out.loss.mean()), r"one loss per completion, shape \[16\]; got \[\]"),
    "bare": (lambda out: out.loss, r"a topr_exp\.types\.LossOutput\(loss, metrics\); got \[16\]"),
    "nothing": (lambda out: None, r"a topr_exp\.types\.LossOutput\(loss, metrics\); got None"),
    "pair": (lambda out: (out.loss, {}), "LossOutput.*; got a tuple"),
    "number": (
        lambda out: LossOutput(float(out.loss.detach().mean())),
        r"one loss per completion, shape \[16\]; got -?\d",
    ),
    "column": (lambda out: LossOutput(out.loss[:, None]), r"shape \[16\]; got \[16, 1\]"),
    "tokens": (lambda out: LossOutput(out.loss[:, None].expand(-1, 9)), r"shape \[16\]; got \[16, 9\]"),
    "fewer": (lambda out: LossOutput(out.loss[1:]), r"shape \[16\]; got \[15\]"),
    "detached": (lambda out: LossOutput(out.loss.detach()), "a gradient with respect to logp; got a detached tensor"),
    "halves": (lambda out: LossOutput(out.loss.bfloat16()), "float32 or float64; got torch.bfloat16"),
    "whole": (lambda out: LossOutput(out.loss.detach().long()), "float32 or float64; got torch.int64"),
    "elsewhere": (lambda out: LossOutput(out.loss.to("meta")), "losses on cpu, where its batch is; got meta"),
    "metric": (lambda out: LossOutput(out.loss, {"w": out.loss.detach().mean()}), r"metric w per .*\[16\]; got \[\]"),
    "plain": (lambda out: LossOutput(out.loss, {"w": 0.5}), r"metric w per completion, shape \[16\]; got 0\.5"),
    "graph": (lambda out: LossOutput(out.loss, {"w": out.loss}), "metric w detached; got a tensor with a gradient"),
    "list": (lambda out: LossOutput(out.loss, [out.loss]), "metrics by name.*; got a list"),
}


def first_update(loss: Any, folder: Path, make_policy: Any, micro: int = 16, batch: int = 16) -> dict[str, float]:
    policy = make_policy(make_model(11))
    examples = make_examples(policy, loss)
    trainer = new_trainer(policy, loss, optim(batch_size=batch, micro_batch_size=micro), folder)
    chosen = examples.order(0, 1, 0)[:batch]
    return trainer.update(examples, chosen, 3, expect_unit_ratio=False)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_output_is_one_line_before_any_step(wrong: str, tmp_path: Path, make_policy: Any) -> None:
    change, line = WRONG[wrong]
    with refused(rf"^algo=bad must return .*{line}"):
        first_update(Returns(change=change), tmp_path, make_policy)


def test_the_shape_is_that_of_the_micro_batch_and_of_pairs(tmp_path: Path, make_policy: Any) -> None:
    mean = Returns(change=lambda out: LossOutput(out.loss.mean()))
    with refused(r"one loss per completion, shape \[4\]; got \[\]"):
        first_update(mean, tmp_path, make_policy, micro=4)
    of_pairs = Returns(change=mean.change, right=DPO_LOSS)
    with refused(r"one loss per pair, shape \[5\]; got \[\]"):
        first_update(of_pairs, tmp_path, make_policy, batch=5)


@pytest.mark.parametrize("micro", [4, 16])
def test_wrong_signals_are_one_line(micro: int, tmp_path: Path, make_policy: Any) -> None:
    for signals, line in (
        (lambda batch: {"limit": batch.reward.mean()}, r"limit per completion, shape \[16\]; got \[\]"),
        (lambda batch: {"limit": 1.0}, r"limit per completion, shape \[16\]; got 1\.0"),
        (lambda batch: batch.reward, r"tensors by name.*; got \[16\]"),
    ):
        with refused(rf"^signals of algo=bad must return {line}"):
            first_update(Returns(change=lambda out: out, signals_of=signals), tmp_path, make_policy, micro)


def test_a_right_output_trains(tmp_path: Path, make_policy: Any) -> None:
    for change in (lambda out: out, lambda out: LossOutput(out.loss.double(), {"w": torch.ones(len(out.loss))})):
        assert first_update(Returns(change=change), tmp_path, make_policy)["grad_norm"] > 0
