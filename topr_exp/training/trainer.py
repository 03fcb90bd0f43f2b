"""One optimizer step over one global batch. It knows no algorithm by name: a loss maps a batch to per-example losses.

The sum over the global batch is divided by its examples, or with `optim.reduction=tokens` by its completion tokens (the
last batch of an epoch by its own number): micro-batches, padding and the number of processes can't change a result.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from topr_exp.config.groups import OptimConfig
from topr_exp.models.adapter import trained_weights
from topr_exp.models.out_of_memory import is_out_of_memory, memory_for, release_gpu_memory
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runtime import distributed
from topr_exp.runtime.files import see_new_names
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import say, warn
from topr_exp.training import checkpoint
from topr_exp.training.batches import GlobalBatch, MicroBatches, Positions, loss_batch, micro_batches
from topr_exp.training.hidden_states import Inputs, inputs_of
from topr_exp.training.layers import compile_layers, layers_of
from topr_exp.training.logprobs import TokenScores
from topr_exp.training.loss_checks import checked_output, checked_signals
from topr_exp.training.metrics import MetricAccumulator
from topr_exp.training.optimizers import Adafactor, learning_rate, make_optimizer
from topr_exp.training.parallel import ProcessLayout
from topr_exp.types import Batch, LossFunction, PairBatch, TOPRError

RATIO_TOLERANCE = 1e-3  # largest |Δ| in float32 before the first update after scoring


class Trainer:
    """The policy in training, its optimizer and its counters; starts from the newest checkpoint below `folder`.

    reference: the model whose whole distribution a loss needs (`vocab_kl`), or None. layout: from `parallelize`.
    """

    def __init__(
        self,
        policy: Policy,
        loss: LossFunction,
        reference: Policy | None,
        config: OptimConfig,
        folder: Path,
        layout: ProcessLayout,
        stop: StopFlag | None = None,
    ) -> None:
        self.policy = policy
        self.loss = loss
        self.config = config
        self.folder = folder
        self.reference = reference.model if reference is not None else None
        self.layout = layout
        self.stop = stop or StopFlag()
        if config.compile:
            compile_layers(policy.model)
        weights = [weight for _, weight in trained_weights(policy.model)]
        self.optimizer = make_optimizer(weights, config)
        self.clip = layout.clip
        if isinstance(self.optimizer, Adafactor):  # clips as it reads the gradient for its statistics
            self.clip = self.optimizer.clip
        counters, self.restored = checkpoint.load(folder, policy.model, self.optimizer)  # what this run goes on from
        self.step = counters.get("step", 0)  # updates done
        self.samples = counters.get("samples", 0)  # examples of the updates so far
        self.sampled_tokens = counters.get("sampled", 0)  # of completions of the rounds so far
        self.had_gradient = counters.get("moved", 0)  # 1 if any update had one
        self.may_recompute = config.gradient_checkpointing is None and bool(layers_of(policy.model))
        self.recompute = bool(config.gradient_checkpointing)
        if self.may_recompute:
            # One GPU tries without. Several processes could not agree on which ran out of memory.
            is_alone_on_gpu = policy.device.type == "cuda" and distributed.world_size() == 1
            self.recompute = not is_alone_on_gpu
        self.report_tokens: Callable[[int], None] = lambda tokens: None
        self.last_save_time = time.monotonic()
        self.save_seconds = 0.0  # that the last checkpoint took

    def report_tokens_to(self, report: Callable[[int], None]) -> None:
        """Call `report` with the tokens, prompts too, of each micro-batch that is done."""
        self.report_tokens = report

    def count_sampled(self, tokens: int) -> None:
        """Add to the completion tokens that rounds sampled."""
        self.sampled_tokens += tokens

    def save(self, extra: dict[str, bytes]) -> None:
        """Write a checkpoint; `extra` are files to keep with it."""
        counters: checkpoint.Counters = {
            "step": self.step,
            "samples": self.samples,
            "sampled": self.sampled_tokens,
            "moved": self.had_gradient,
        }
        checkpoint.save(self.folder, self.policy.model, self.optimizer, counters, extra)

    def save_policy(self, folder: Path) -> None:
        """Write the trained model as a folder that transformers loads; every process of the run has to call it."""
        with self.layout.gathered_weights():
            if distributed.is_main_process():
                save_policy(self.policy, folder)
        distributed.barrier()
        see_new_names(folder.parent)

    def zero_grad(self) -> None:
        """Forget the gradient: an update sums its own, and between updates a sampler can use the memory."""
        self.optimizer.zero_grad()

    def checkpoint(
        self, journal: "Journal", update_count: int, every: float, extra: Callable[[], dict[str, bytes]]
    ) -> None:
        """Save when it is time; save and stop when a signal asked for that; extra: makes files to keep with it."""
        stop = self.stop.share()
        start_time = time.monotonic()
        is_due = self.step < update_count and self.should_save(start_time, every)
        if stop or distributed.broadcast(is_due):
            journal.before_checkpoint(self.step, update_count)
            files = {}
            if distributed.is_main_process():  # it alone writes them
                files = extra()
            self.save(files)
            end_time = time.monotonic()
            self.save_seconds = end_time - start_time
            self.last_save_time = end_time
        if stop:
            self.stop.check()

    def should_save(self, time_now: float, every: float) -> bool:
        """True once `every` seconds have passed since the last checkpoint.

        Unless `every` is 0, saving that takes long is done less often: it takes at most a twentieth of the run.
        """
        if every:
            every = max(every, 20 * self.save_seconds)
        seconds_since_save = time_now - self.last_save_time
        return seconds_since_save >= every

    def update(self, global_batch: GlobalBatch, update_count: int) -> dict[str, float]:
        """Make one optimizer step, of `update_count` in the iteration; returns its record.

        Raises TOPRError when Δ does not vanish where π is μ, when memory runs out, and when the loss or the gradient is
        not finite.
        """
        start_time = time.monotonic()
        rate = learning_rate(self.config, self.step, update_count)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with memory_for(self._describe_update(global_batch), self._memory_remedy()):
            metrics = self.gradients_in_memory(global_batch)
            norm = float(self.clip(self.config.grad_clip))
            metrics = metrics.of_all_processes()
            if global_batch.mu_is_policy:
                self.check_unit_ratio(torch.cat(metrics.delta))
            self.samples += len(global_batch)
            self.had_gradient |= int(norm != 0)
            self.step += 1
            self.check_finite(metrics, norm, global_batch)
            self.optimizer.step()
        training_set = global_batch.training_set
        has_mu = training_set.completions.has("mu_logp")
        seconds = time.monotonic() - start_time
        divisor = self.divisor(global_batch)
        return {
            "step": self.step,
            "samples": self.samples,
            **metrics.record(divisor, training_set.ages, has_mu=has_mu),
            **training_set.mean_reward(global_batch.examples),
            "grad_norm": norm,
            "lr": rate,
            "tokens": metrics.tokens,
            "prompt_tokens": metrics.prompt_tokens,
            "tokens_per_second": round(metrics.tokens / seconds, 1),
        }

    def _describe_update(self, global_batch: GlobalBatch) -> str:
        """Say what needs memory, for a message that it has run out."""
        return (
            f"in an update with optim.micro_batch_size={self.config.micro_batch_size} and optim.gradient_checkpointing="
            f"{str(self.recompute).lower()}, the longest sequence of {global_batch.lengths.max()} tokens"
        )

    def _memory_remedy(self) -> str:
        remedy = "train on more or larger devices"
        if self.config.micro_batch_size > 1:
            remedy = "lower optim.micro_batch_size"
        if not self.recompute:
            remedy += " or set optim.gradient_checkpointing=true"
        return remedy

    def gradients_in_memory(self, global_batch: GlobalBatch) -> MetricAccumulator:
        """Sum the gradients; recompute layers from here on where memory runs out and the settings leave it open."""
        try:
            return self.accumulate_gradients(global_batch)
        except RuntimeError as error:
            if self.recompute or not self.may_recompute or not is_out_of_memory(error):
                raise
        warn(f"out of GPU memory: optim.gradient_checkpointing=true from update {self.step + 1} on")
        self.recompute = True
        self.zero_grad()
        release_gpu_memory()
        return self.accumulate_gradients(global_batch)

    def accumulate_gradients(self, global_batch: GlobalBatch) -> MetricAccumulator:
        """Sum the gradient of the mean loss over the micro-batches; returns the metrics of this process."""
        policy = self.policy
        training_set = global_batch.training_set
        metrics = MetricAccumulator()
        divisor = self.divisor(global_batch)
        batches = micro_batches(policy.model, global_batch, self.config.micro_batch_size)
        self.zero_grad()
        needs_head = "head" in self.loss.needs
        global_signals = None
        is_divided = len(batches) > 1 or distributed.world_size() > 1
        if self.loss.signal_names and is_divided:
            global_signals = self.compute_signals(global_batch, batches)
        for positions, is_counted in batches:
            rows = global_batch.rows_at(positions)
            inputs = inputs_of(training_set.completions, rows, policy.device, scores_head=needs_head)
            scores = self.score(inputs)
            batch = loss_batch(training_set, rows, inputs.mask, scores)
            if self.loss.signal_names:
                batch = self.with_signals(batch, positions, global_signals)
            output = checked_output(self.loss, batch)
            mean_loss = output.loss.sum() / divisor
            if is_counted:
                metrics.add(batch, output, scores, inputs=inputs)
                mean_loss.backward()
                self.report_tokens(inputs.token_count)
            else:  # the other processes wait for this one's part of a sum
                (0 * mean_loss).backward()
        self.layout.sum_gradients()
        return metrics

    def with_signals(
        self, batch: Batch | PairBatch, positions: Positions, global_signals: dict[str, Tensor] | None
    ) -> Batch:
        """Add signals of the global batch to a micro-batch, or (None) of the micro-batch, which then is all of it."""
        assert isinstance(batch, Batch), "a loss of pairs has no signals"
        if global_signals is None:
            signals = checked_signals(self.loss, batch)
        else:
            signals = {name: values[positions] for name, values in global_signals.items()}
        return dataclasses.replace(batch, signals=signals)

    def score(self, inputs: Inputs) -> TokenScores:
        """Score a micro-batch with all that losses and metrics read, with gradient."""
        with self.policy.autocast():
            return self.layout.score(inputs, entropy=True, recompute=self.recompute, reference=self.reference)

    def divisor(self, global_batch: GlobalBatch) -> int:
        """Count what the summed losses are divided by: a number of the global batch, the same for every process."""
        if self.config.reduction == "sequences":
            return len(global_batch)
        return global_batch.token_count

    def compute_signals(self, global_batch: GlobalBatch, batches: MicroBatches) -> dict[str, Tensor]:
        """Compute the loss's signals over the global batch with the current policy, without gradients, by position."""
        policy = self.policy
        training_set = global_batch.training_set
        rows = global_batch.rows
        mask = inputs_of(training_set.completions, rows, policy.device).mask
        weight_dtype = policy.model.get_input_embeddings().weight.dtype
        dtype = torch.promote_types(weight_dtype, torch.float32)
        logp = torch.zeros(mask.shape, device=mask.device, dtype=dtype)  # 0 where another process scores
        for positions, is_counted in batches:
            inputs = inputs_of(training_set.completions, rows[positions], policy.device)
            with torch.no_grad(), policy.autocast():
                batch_logp = self.layout.score(inputs).logp
            if is_counted:
                batch_width = batch_logp.shape[1]
                logp[inputs.tensor(positions), :batch_width] = batch_logp
        distributed.all_reduce_sum_(logp)
        batch = loss_batch(training_set, rows, mask, TokenScores(logp))
        return checked_signals(self.loss, batch)

    def check_unit_ratio(self, delta: Tensor) -> None:
        """Raise TOPRError where Δ does not vanish though π is μ: then μ was scored differently.

        In bfloat16, where batches of another shape are rounded differently, no bound holds: a line says how large Δ is.
        """
        largest = float(delta.abs().max())
        if self.policy.full_precision and not largest <= RATIO_TOLERANCE:  # or not a number
            raise TOPRError(
                f"log π − log μ is {largest:.2g} before the first update (at most {RATIO_TOLERANCE:g} is rounding): "
                "μ was not scored by these weights with this forward pass; was the model folder or the store "
                "changed by hand?"
            )
        if self.policy.full_precision or self.step > 0:
            return
        magnitudes = delta.abs().float()
        quantiles = magnitudes.quantile(magnitudes.new_tensor([0.5, 0.99]))
        median, high = quantiles.tolist()
        say(
            f"log π − log μ of a completion before the first update, by rounding in {self.policy.precision}: "
            f"{median:.2g} (median), {high:.2g} (99 %), {largest:.2g} (largest)"
        )

    def check_finite(self, metrics: MetricAccumulator, norm: float, global_batch: GlobalBatch) -> None:
        """Raise TOPRError with the completions of an update whose loss or gradient is not finite."""
        loss = float(metrics.loss)
        if math.isfinite(loss) and math.isfinite(norm):
            return
        mean_loss = loss / self.divisor(global_batch)
        delta = torch.cat(metrics.delta).nan_to_num(nan=math.inf)
        largest = float(delta.abs().max())
        raise TOPRError(
            f"the loss or its gradient is not finite at step {self.step}; loss {mean_loss:.4g}, largest |log-ratio| "
            f"{largest:.4g}, completions {global_batch.rows.tolist()}; the last checkpoint is kept (lower optim.lr)"
        )


class Journal(Protocol):
    """Keeps the records of a run."""

    def log(self, record: dict[str, float]) -> None:
        """Take the record of an update."""

    def before_checkpoint(self, step: int, steps: int) -> None:
        """Make everything logged durable: the checkpoint that follows counts on it."""
