"""One optimizer step over one global batch. It knows no algorithm by name: a loss maps a batch to per-example losses.

The reduction is the sum over the global batch divided by its number of examples (the last batch of an epoch by its
own, smaller number), so that micro-batches, padding and the number of processes can't change a result.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp import interrupts, world
from topr_exp.models.memory import memory_for
from topr_exp.models.policy import Policy, save_policy
from topr_exp.sweeps.config import Parallel
from topr_exp.training import checkpoint
from topr_exp.training.config import OptimConfig
from topr_exp.training.examples import Examples
from topr_exp.training.journal import Journal
from topr_exp.training.logprobs import TokenScores, collate
from topr_exp.training.metrics import Collector
from topr_exp.training.micro_batches import Part, micro_batches
from topr_exp.training.optimizers import make_optimizer
from topr_exp.training.parallel import spread
from topr_exp.types import Batch, TOPRError

log = logging.getLogger(__name__)

GATE = 1e-3  # largest |Δ| in float32 before the first update after scoring


class Trainer:
    """The policy in training, its optimizer and its counters; starts from the newest checkpoint below `folder`.

    `reference` is the model whose whole distribution a loss needs (`vocab_kl`), else None.
    """

    def __init__(
        self,
        policy: Policy,
        loss: Any,
        reference: Any,
        config: OptimConfig,
        folder: Path,
        parallel: Parallel | None = None,
    ) -> None:
        self.policy, self.loss, self.reference, self.config, self.folder = policy, loss, reference, config, folder
        self.layout = spread(policy.model, parallel)
        self.optimizer = make_optimizer(policy.model.parameters(), config)
        state: dict[str, Any] = {}
        self.restored: Path | None = None  # the checkpoint that this run goes on from
        if found := checkpoint.load(folder, policy.model, self.optimizer):
            state, self.restored = found
        self.step: int = state.get("step", 0)
        self.samples: int = state.get("samples", 0)
        self.skipped: int = state.get("skipped", 0)
        self.sampled: int = state.get("sampled", 0)  # tokens of the rounds so far
        self.saved, self.saving = time.monotonic(), 0.0  # when a checkpoint was last written, and the seconds it took

    def save(self, extra: dict[str, bytes]) -> None:
        """Write a checkpoint; `extra` are files to keep with it."""
        state = {"step": self.step, "samples": self.samples, "skipped": self.skipped, "sampled": self.sampled}
        checkpoint.save(self.folder, self.step, self.policy.model, self.optimizer, state, extra)

    def save_policy(self, folder: Path) -> None:
        """Write the trained model as a folder that transformers loads; every process of the run has to call it."""
        with self.layout.whole():
            if world.leads():
                save_policy(self.policy, folder)
        world.wait()

    def drop_gradients(self) -> None:
        """Forget them: an update sums its own, and between updates a sampler can use their memory."""
        self.optimizer.zero_grad(set_to_none=True)

    def checkpoint(
        self, journal: Journal, steps: int, every: float, extra: Callable[[], dict[str, bytes]] | None = None
    ) -> None:
        """Save if `every` seconds have passed since the last time; save and stop if a signal asked for it.

        Where saving takes long, as it does with a large model, the next time is later: unless `every` is 0, it takes
        a twentieth of the run.
        """
        interrupts.agree()
        wait = every and max(every, 20 * self.saving)
        due = world.from_leader(self.step < steps and time.monotonic() - self.saved >= wait)
        if interrupts.asked() or due:
            began = time.monotonic()
            journal.before_checkpoint(self.step, steps)
            self.save(extra() if extra is not None else {})
            interrupts.check()
            self.saved = time.monotonic()
            self.saving = self.saved - began

    def update(self, examples: Examples, chosen: NDArray[np.int64], *, fresh: bool) -> dict[str, float]:
        """One optimizer step on the chosen examples; returns its record.

        fresh: the weights are those that scored μ, so that Δ must vanish. Raises TOPRError when it does not, and,
        unless optim.skip_nonfinite is set, when the loss or the gradient is not finite; when memory runs out, too.
        """
        config, longest = self.config, max(examples.length(example) for example in chosen)
        work = (
            f"in an update with optim.micro_batch_size={config.micro_batch_size} and optim.gradient_checkpointing="
            f"{str(config.gradient_checkpointing).lower()}, the longest sequence of {longest} tokens"
        )
        more = "" if config.gradient_checkpointing else " or set optim.gradient_checkpointing=true"
        smaller = "lower optim.micro_batch_size" if config.micro_batch_size > 1 else "train on more or larger devices"
        with memory_for(work, smaller + more):
            return self.optimize(examples, chosen, fresh=fresh)

    def optimize(self, examples: Examples, chosen: NDArray[np.int64], *, fresh: bool) -> dict[str, float]:
        """The work of `update`."""
        began = time.monotonic()
        collector = Collector()
        parts = micro_batches(self.policy.model, examples, chosen, self.config.micro_batch_size)
        apart = len(parts) > 1 or world.size() > 1
        self.drop_gradients()
        signals = self.first_pass(examples, chosen, parts) if apart and "groups" in self.loss.needs else None
        for part in parts:
            with self.layout.accumulating(last=part is parts[-1]):
                rows = examples.rows(chosen[part.positions])
                scores, mask = self.forward(examples, rows)
                batch = examples.batch(rows, scores.logp, mask, scores.vocab_kl)
                if signals is not None and isinstance(batch, Batch):
                    mine = {name: value[part.positions] for name, value in signals.items()}
                    batch = dataclasses.replace(batch, signals=mine)
                elif "groups" in self.loss.needs and isinstance(batch, Batch):
                    batch = dataclasses.replace(batch, signals=self.loss.signals(batch))
                out = self.loss(batch)
                if part.counts:
                    collector.add(batch, out, scores)
                mean = out.loss.sum() / len(chosen)
                (mean if part.counts else 0 * mean).backward()
        norm = self.layout.clip(self.config.grad_clip)
        collector = collector.of_all()
        if fresh:
            self.check_gate(torch.cat(collector.delta))
        self.samples += len(chosen)
        self.step += 1
        if math.isfinite(collector.loss) and bool(norm.isfinite()):
            self.optimizer.step()
        else:
            self.not_finite(collector, examples, chosen)
        return {
            "step": self.step,
            "samples": self.samples,
            **collector.record(len(chosen)),
            "grad_norm": float(norm),
            "lr": self.config.lr,
            "skipped": self.skipped,
            "tokens": collector.tokens,
            "tokens_per_second": round(collector.tokens / (time.monotonic() - began), 1),
        }

    def forward(self, examples: Examples, rows: NDArray[np.int64]) -> tuple[TokenScores, Tensor]:
        """The token scores of some completions and their mask."""
        inputs = collate(examples.sequences(rows), self.policy.device)
        reference = self.reference.model if self.reference is not None else None
        with self.policy.autocast():
            recompute = self.config.gradient_checkpointing
            return self.layout.score(inputs, entropy=True, reference=reference, recompute=recompute), inputs.mask

    def first_pass(self, examples: Examples, chosen: NDArray[np.int64], parts: list[Part]) -> dict[str, Tensor]:
        """What the loss computes over complete groups with the current policy, without gradients, by position."""
        rows = examples.rows(chosen)
        lengths = [len(completion) for _, completion in examples.sequences(rows)]
        logp = torch.zeros((len(rows), max(lengths)), device=self.policy.device)
        mask = torch.arange(max(lengths), device=logp.device) < torch.tensor(lengths, device=logp.device)[:, None]
        with torch.no_grad():
            for part in parts:
                inputs = collate(examples.sequences(rows[part.positions]), self.policy.device)
                with self.policy.autocast():
                    some = self.layout.score(inputs).logp
                if part.counts:
                    logp[torch.from_numpy(part.positions).to(logp.device), : some.shape[1]] = some
            world.add_up(logp)
            signals: dict[str, Tensor] = self.loss.signals(examples.batch(rows, logp, mask, None))
        return signals

    def check_gate(self, delta: Tensor) -> None:
        """Before the first update π is μ, so Δ must vanish: anything else means that μ was scored differently.

        In bfloat16 batches of another shape round otherwise, so that no bound can be set: how far it is from 0 is said.
        """
        worst = float(delta.abs().max())
        if not self.policy.full_precision and self.step == 0 and world.leads():
            median, high = delta.abs().float().quantile(torch.tensor([0.5, 0.99], device=delta.device)).tolist()
            log.warning(
                f"log π − log μ of a completion before the first update, by rounding in {self.policy.precision}: "
                f"{median:.2g} (median), {high:.2g} (99 %), {worst:.2g} (largest)"
            )
        if self.policy.full_precision and not worst <= GATE:
            raise TOPRError(
                f"log π − log μ is {worst:.2g} before the first update (at most {GATE:g} is rounding): μ was not "
                "scored by these weights with this forward pass; was the model folder or the store changed by hand?"
            )

    def not_finite(self, collector: Collector, examples: Examples, chosen: NDArray[np.int64]) -> None:
        """Count the step as skipped if the user asked for that, else stop the run and say which samples did it."""
        if self.config.skip_nonfinite:
            self.skipped += 1
            return
        delta = torch.cat(collector.delta)
        worst = float(delta.nan_to_num(nan=math.inf).abs().max())
        raise TOPRError(
            f"the loss or its gradient is not finite at step {self.step}; loss {collector.loss / len(chosen):.4g}, "
            f"largest |log-ratio| {worst:.4g}, completions {examples.rows(chosen).tolist()}; the last checkpoint is "
            "kept (lower optim.lr, or set optim.skip_nonfinite=true)"
        )
