"""The one training loop. It knows no algorithm by name: a loss maps a batch to per-example losses, the loop reduces.

The reduction is the sum over the global batch divided by its number of examples (the last batch of an epoch by its
own, smaller number), so that micro-batches and padding can't change a result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from topr_exp.models.policy import Policy
from topr_exp.progress import Progress
from topr_exp.training import checkpoint
from topr_exp.training.config import OptimConfig
from topr_exp.training.examples import Examples
from topr_exp.training.logprobs import collate, token_logprobs
from topr_exp.training.metrics import Collector
from topr_exp.training.optimizers import make_optimizer
from topr_exp.types import TOPRError

GATE = 1e-3  # largest |Δ| at step 0 in float32


class Trainer:
    """Trains a policy in place on one iteration's examples; goes on from the newest checkpoint in `folder`."""

    def __init__(
        self,
        policy: Policy,
        loss: Any,
        examples: Examples,
        config: OptimConfig,
        folder: Path,
        seed: int,
        iteration: int,
    ) -> None:
        self.policy, self.loss, self.examples, self.config = policy, loss, examples, config
        self.folder, self.seed, self.iteration = folder, seed, iteration
        self.optimizer = make_optimizer(policy.model.parameters(), config)
        self.per_epoch = math.ceil(len(examples) / config.batch_size)
        self.steps = self.per_epoch * config.epochs
        state = checkpoint.load(folder, policy.model, self.optimizer)
        self.step = state["step"] if state else 0
        self.samples = state["samples"] if state else 0
        self.order: NDArray[np.int64] | None = None  # of the epoch at hand

    def run(
        self, log: Callable[[dict[str, float]], None], save_every: float, on_save: Callable[[int, int], None]
    ) -> None:
        """Every remaining update. `log` gets each update's record; `on_save(step, steps)` comes right before a checkpoint."""
        saved = time.monotonic()
        with Progress("training", self.steps, "updates", done=self.step, rate_unit="tokens") as progress:
            while self.step < self.steps:
                record = self.update()
                log(record)
                progress.update(1, record["tokens"], f"loss {record['loss']:.3g}")
                if self.step < self.steps and time.monotonic() - saved >= save_every:
                    on_save(self.step, self.steps)
                    self.save()
                    saved = time.monotonic()

    def save(self) -> None:
        state = {"step": self.step, "samples": self.samples}
        checkpoint.save(self.folder, self.step, self.policy.model, self.optimizer, state)

    def update(self) -> dict[str, float]:
        """One optimizer step over one global batch; returns its record."""
        began = time.monotonic()
        epoch, position = divmod(self.step, self.per_epoch)
        if self.order is None or position == 0:
            self.order = self.examples.training_set.order(self.seed, self.iteration, epoch)
        chosen = self.order[position * self.config.batch_size : (position + 1) * self.config.batch_size]
        collector = Collector()
        self.optimizer.zero_grad(set_to_none=True)
        for part in self.micro_batches(chosen):
            rows = self.examples.rows(part)
            inputs = collate(self.examples.sequences(rows), self.policy.device)
            with self.policy.autocast():
                logp = token_logprobs(self.policy.model, inputs)
            batch = self.examples.batch(rows, logp, inputs.mask)
            out = self.loss(batch)
            collector.add(batch, out)
            if self.step == 0:
                self.check_gate(collector.delta[-1], rows)
            if not bool(out.loss.isfinite().all()):
                raise self.not_finite("loss", collector, chosen)
            (out.loss.sum() / len(chosen)).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.config.grad_clip)
        if not bool(norm.isfinite()):
            raise self.not_finite("gradient", collector, chosen)
        self.optimizer.step()
        self.step += 1
        self.samples += len(chosen)
        return {
            "iteration": self.iteration,
            "step": self.step,
            "samples": self.samples,
            **collector.record(len(chosen)),
            "grad_norm": float(norm),
            "lr": self.config.lr,
            "tokens": collector.tokens,
            "tokens_per_second": round(collector.tokens / (time.monotonic() - began), 1),
        }

    def micro_batches(self, chosen: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The global batch in parts of similar length; only the split depends on the lengths, never the batch."""
        size = self.config.micro_batch_size
        if size < len(chosen):
            chosen = chosen[np.argsort([self.examples.length(example) for example in chosen], kind="stable")]
        for start in range(0, len(chosen), size):
            yield chosen[start : start + size]

    def check_gate(self, delta: torch.Tensor, rows: NDArray[np.int64]) -> None:
        """Before the first update π is μ, so Δ must vanish: anything else means that μ was scored differently."""
        worst = float(delta.abs().max())
        if self.policy.full_precision and not worst <= GATE:
            row = int(rows[int(delta.abs().argmax())])
            raise TOPRError(
                f"log π − log μ is {worst:.2g} at step 0 (completion {row}; at most {GATE:g} is rounding): μ was not "
                "scored by these weights with this forward pass; was the model folder or the store changed by hand?"
            )

    def not_finite(self, what: str, collector: Collector, chosen: NDArray[np.int64]) -> TOPRError:
        delta = torch.cat(collector.delta)
        worst = int(delta.nan_to_num(nan=math.inf).abs().argmax())
        return TOPRError(
            f"{what} is not finite at iteration {self.iteration}, step {self.step + 1}; largest |log-ratio| "
            f"{float(delta[worst]):.4g} among the completions {self.examples.rows(chosen).tolist()}; the last "
            "checkpoint is kept (lower optim.lr, or bound the weights: algo.b_pos, algo.b_neg)"
        )
