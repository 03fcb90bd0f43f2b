"""Calls a loss and refuses an output that the trainer can't reduce: its type, shapes, dtypes and gradient."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from topr_exp.types import Batch, LossOutput, PairBatch, TOPRError

LOSS_DTYPES = (torch.float32, torch.float64)


def checked_output(loss: Any, batch: Batch | PairBatch) -> LossOutput:
    """The output of `loss` on `batch`; TOPRError for one that is not a loss [B] with a gradient and metrics [B]."""
    output = loss(batch)
    unit, count = ("pair", len(batch.chosen.logp)) if isinstance(batch, PairBatch) else ("completion", len(batch.logp))
    must_return = f"algo={loss.name} must return"
    if not isinstance(output, LossOutput):
        raise TOPRError(f"{must_return} a topr_exp.types.LossOutput(loss, metrics); got {described(output)}")
    values = output.loss
    if not isinstance(values, Tensor) or list(values.shape) != [count]:
        raise TOPRError(f"{must_return} one loss per {unit}, shape [{count}]; got {described(values)}")
    if values.dtype not in LOSS_DTYPES:
        raise TOPRError(f"{must_return} losses in float32 or float64; got {values.dtype}")
    if values.device != device_of(batch):
        raise TOPRError(f"{must_return} losses on {device_of(batch)}, where its batch is; got {values.device}")
    if torch.is_grad_enabled() and not values.requires_grad:
        raise TOPRError(f"{must_return} losses with a gradient with respect to logp; got a detached tensor")
    if not isinstance(output.metrics, Mapping):
        raise TOPRError(f"{must_return} metrics by name, as in {{'weight': ...}}; got {described(output.metrics)}")
    for name, metric in output.metrics.items():
        if not isinstance(metric, Tensor) or list(metric.shape) != [count]:
            raise TOPRError(f"{must_return} metric {name} per {unit}, shape [{count}]; got {described(metric)}")
        if metric.requires_grad:
            raise TOPRError(f"{must_return} metric {name} detached; got a tensor with a gradient")
    return output


def checked_signals(name: str, signals: Any, batch: Batch) -> dict[str, Tensor]:
    """`signals` of the loss `name` over the global batch; TOPRError for any that is not a tensor [B] by name."""
    count, must_return = len(batch.logp), f"signals of algo={name} must return"
    if not isinstance(signals, dict):
        raise TOPRError(f"{must_return} tensors by name, as in {{'limit': ...}}; got {described(signals)}")
    for key, signal in signals.items():
        if not isinstance(signal, Tensor) or list(signal.shape) != [count]:
            raise TOPRError(f"{must_return} {key} per completion, shape [{count}]; got {described(signal)}")
    return signals


def described(value: Any) -> str:
    """The shape of a tensor, the value of a plain number or None, the type of anything else."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return str(value) if value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"


def device_of(batch: Batch | PairBatch) -> torch.device:
    """The device of a batch's log-probabilities."""
    return batch.chosen.logp.device if isinstance(batch, PairBatch) else batch.logp.device
