"""Checks of what a loss returns, so that the trainer can reduce it: types, shapes, dtypes and gradients."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from topr_exp.types import Batch, LossFunction, LossOutput, PairBatch, TOPRError

LOSS_DTYPES = (torch.float32, torch.float64)


def checked_output(loss: LossFunction, batch: Batch | PairBatch) -> LossOutput:
    """Compute `loss` on `batch`; TOPRError for an output that is not a loss [B] with a gradient and metrics [B]."""
    output = loss(batch)
    must_return = f"algo={loss.name} must return"
    if not isinstance(output, LossOutput):
        raise TOPRError(f"{must_return} a topr_exp.types.LossOutput(loss, metrics); got {describe_value(output)}")
    if isinstance(batch, PairBatch):
        unit = "pair"
        logp = batch.chosen.logp
    else:
        unit = "completion"
        logp = batch.logp
    per_unit = f"per {unit}, shape [{len(logp)}]"
    check_losses(output.loss, logp, must_return, per_unit)
    check_metrics(output.metrics, len(logp), must_return, per_unit)
    return output


def check_losses(losses: Any, logp: Tensor, must_return: str, per_unit: str) -> None:
    """Raise TOPRError for losses that are not one for each row of `logp`, with a gradient.

    must_return, per_unit: words of the error line.
    """
    if not has_shape(losses, len(logp)):
        raise TOPRError(f"{must_return} one loss {per_unit}; got {describe_value(losses)}")
    if losses.dtype not in LOSS_DTYPES:
        raise TOPRError(f"{must_return} losses in float32 or float64; got {losses.dtype}")
    if losses.device != logp.device:
        raise TOPRError(f"{must_return} losses on {logp.device}, where its batch is; got {losses.device}")
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise TOPRError(f"{must_return} losses with a gradient with respect to logp; got a detached tensor")


def check_metrics(metrics: Any, count: int, must_return: str, per_unit: str) -> None:
    """Raise TOPRError for metrics that are not `count` numbers by name, without a gradient; words: as above."""
    by_name = "metrics by name, as in {'weight': ...}"
    if not isinstance(metrics, Mapping):
        raise TOPRError(f"{must_return} {by_name}; got {describe_value(metrics)}")
    for name, metric in metrics.items():
        if not isinstance(name, str):
            raise TOPRError(f"{must_return} {by_name}; got the name {name!r:.80}")
        if not has_shape(metric, count):
            raise TOPRError(f"{must_return} metric {name} {per_unit}; got {describe_value(metric)}")
        if metric.requires_grad:
            raise TOPRError(f"{must_return} metric {name} detached; got a tensor with a gradient")


def checked_signals(loss: LossFunction, batch: Batch | PairBatch) -> dict[str, Tensor]:
    """Compute the loss's signals over the global batch; TOPRError unless each of its names has a tensor [B]."""
    assert isinstance(batch, Batch), "a loss of pairs has no signals"
    count = len(batch.logp)
    must_return = f"signals of algo={loss.name} must return"
    with torch.no_grad():
        signals: Any = loss.signals(batch)
    if not isinstance(signals, dict):
        raise TOPRError(f"{must_return} tensors by name, as in {{'limit': ...}}; got {describe_value(signals)}")
    if signals.keys() != loss.signal_names:
        names = ", ".join(sorted(loss.signal_names))
        returned = ", ".join(sorted(signals))
        raise TOPRError(f"{must_return} {names}, its signal_names; got {returned or 'nothing'}")
    for name, signal in signals.items():
        if not has_shape(signal, count):
            raise TOPRError(f"{must_return} {name} per completion, shape [{count}]; got {describe_value(signal)}")
    return signals


def has_shape(value: Any, count: int) -> bool:
    """True for a tensor of one number each for `count` examples."""
    return isinstance(value, Tensor) and list(value.shape) == [count]


def describe_value(value: Any) -> str:
    """Show the shape of a tensor, the value of a plain number or None, the type of anything else."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return f"a {type(value).__name__}"
