"""Sampling with transformers: exact ancestral sampling in batches, from which finished rows are dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from topr_exp.config.model import Mismatch, SamplerConfig
from topr_exp.models.loading import refuse_scaled_logits
from topr_exp.models.out_of_memory import memory_for
from topr_exp.models.policy import Policy
from topr_exp.sampling.decoding_batch import DecodingBatch, refuse_other_states
from topr_exp.sampling.mismatch import rounded_weights
from topr_exp.sampling.sampler import (
    Prompts,
    ReportTokens,
    Sample,
    Sampler,
    SamplesByPrompt,
    Seed,
    seed_of,
    split_every,
)
from topr_exp.sampling.top_logprobs import likeliest_tokens

# Attention without cuDNN, which would make a plan for every length that a completion passes through.
ATTENTION_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class HFSampler(Sampler):
    """The reference sampler: transformers, on the device of the policy."""

    def __init__(self, config: SamplerConfig, *, keeps_drawable: bool = False) -> None:
        super().__init__(config, keeps_drawable=keeps_drawable)
        self.device = ""

    def prepare(self, policy: Policy, max_length: int) -> None:
        refuse_scaled_logits(policy.model)
        refuse_other_states(policy.model)
        self.device = "cpu"
        if policy.device.type == "cuda":
            self.device = torch.cuda.get_device_name(policy.device)

    def sample(
        self,
        policy: Policy,
        prompts: Prompts,
        n: int,
        seed: Seed,
        stop: Sequence[str],
        unfinished: Sequence[Sample] = (),
    ) -> SamplesByPrompt:
        """Draw n completions of each prompt; with `unfinished` (n = 1) continue one of each prompt in place."""
        decoder = Decoder(
            model=policy.model,
            config=self.config,
            eos_ids=policy.eos_ids,
            generator=torch.Generator(device=policy.device).manual_seed(seed_of(*seed)),
            ends_in_stop_string=policy.stop_check(stop) if stop else None,
            keeps_drawable=self.keeps_drawable,
            report=self.report,
        )
        work = f"sampling {len(prompts) * n} completions at a time"
        with (
            rounded_weights(policy.model, self.config.mismatch.weights),
            policy.autocast(keep=True),
            sdpa_kernel(ATTENTION_BACKENDS),
            memory_for(work, "lower sampler.prompts_per_shard, or take sampler=vllm"),
        ):
            return decoder.draw(prompts, n, unfinished)

    def made_by(self) -> dict[str, str]:
        return {
            "sampler": "hf",
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "device": self.device,
        }

    def without_mismatch(self) -> Sampler:
        notes_distribution = self.config.top_logprobs is not None or self.keeps_drawable
        if not self.config.has_mismatch and not notes_distribution:
            return self
        return HFSampler(replace(self.config, mismatch=Mismatch(), top_logprobs=None))


class TokenDraw(NamedTuple):
    """One token for each row of a batch."""

    tokens: Tensor  # [rows]
    logprobs: Tensor  # [rows] under the distribution drawn from
    distribution: Tensor  # [rows, V] all log-probabilities, −∞ for tokens that could not be drawn


class Row(NamedTuple):
    """A row of the batch: a prompt and its completion so far."""

    prompt: Sequence[int]
    sample: Sample

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.sample.tokens]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Draws completions of a model token by token: a function of the prompts and the generator's state."""

    model: Any
    config: SamplerConfig
    eos_ids: Sequence[int]
    generator: torch.Generator
    ends_in_stop_string: Callable[[list[int]], bool] | None = None
    keeps_drawable: bool = False
    report: ReportTokens = lambda tokens: None  # at each step

    @torch.no_grad()  # inference mode would switch off autocast's cache: every token would cast every weight again
    def draw(self, prompts: Prompts, n: int, unfinished: Sequence[Sample] = ()) -> SamplesByPrompt:
        """Draw n completions of each prompt; unfinished: with n = 1, one of each prompt, continued in place.

        A prompt is computed once and repeated n times. Ended rows leave the batch once they are an eighth of it.
        """
        assert n == 1 or not unfinished
        samples = list(unfinished)
        if not samples:
            samples = [Sample() for _ in range(len(prompts) * n)]
        rows = [Row(prompts[index // n], sample) for index, sample in enumerate(samples)]
        sequences = [row.tokens for row in rows[::n]]  # one of each prompt
        batch = DecodingBatch(self.model, sequences, self.config.max_new_tokens)
        logits = batch.prefill()
        prompt_of_row = torch.arange(len(prompts), device=batch.device).repeat_interleave(n)
        batch.select(prompt_of_row)
        logits = logits[prompt_of_row]
        while True:
            draw = draw_tokens(self.disturb(logits, rows), self.config, self.generator)
            running_indices = self.append_tokens(rows, draw)
            if not running_indices:
                break
            tokens = draw.tokens
            ended_count = len(rows) - len(running_indices)
            if ended_count >= max(len(rows) // 8, 1):
                selected_rows = torch.tensor(running_indices, device=batch.device)
                batch.select(selected_rows)
                tokens = tokens[selected_rows]
                rows = [rows[index] for index in running_indices]
            logits = batch.decode(tokens)
        return split_every(samples, n)

    def disturb(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        """Add the noise of `sampler.mismatch` to the logits [rows, V]."""
        noise = self.config.mismatch.logits_noise
        if not noise:
            return logits
        prefixes = [row.tokens for row in rows]
        return logits + noise * normal_of(self.config.seed, prefixes, logits)

    def append_tokens(self, rows: Sequence[Row], draw: TokenDraw) -> list[int]:
        """Append a token to each completion that had not ended; returns the indices of rows that still have not."""
        tokens = draw.tokens.tolist()
        logprobs = draw.logprobs.tolist()
        drawable_ids = top_tokens = None
        if self.keeps_drawable:
            drawable_ids = ids_with_probability(draw.distribution)
        if self.config.top_logprobs is not None:
            top_tokens = likeliest_tokens(draw.distribution, self.config.top_logprobs)
        appended = 0
        running_indices = []
        for index, row in enumerate(rows):
            sample = row.sample
            if self.has_ended(sample):
                continue  # and has not left the batch yet
            sample.tokens.append(tokens[index])
            sample.logprobs.append(logprobs[index])
            if drawable_ids is not None:
                sample.drawable_ids.append(drawable_ids[index])
            if top_tokens is not None:
                sample.top_tokens.append(top_tokens[index])
            appended += 1
            if tokens[index] in self.eos_ids:
                sample.stop("stop")
            elif self.ends_in_stop_string is not None and self.ends_in_stop_string(sample.tokens):
                sample.stop("stop_string")
            if not self.has_ended(sample):
                running_indices.append(index)
        self.report(appended)
        return running_indices

    def has_ended(self, sample: Sample) -> bool:
        return sample.finish != "length" or len(sample.tokens) == self.config.max_new_tokens


def ids_with_probability(distribution: Tensor) -> list[list[int]]:
    """List, by row of log-probabilities [N, V], the tokens that are not −∞."""
    is_drawable = distribution > -torch.inf  # [N, V]
    row_sizes = is_drawable.sum(1).tolist()
    ids = is_drawable.nonzero()[:, 1].cpu()  # of all rows, one after the other
    ids_by_row = ids.split(row_sizes)
    return [row_ids.tolist() for row_ids in ids_by_row]


def normal_of(seed: int, prefixes: Prompts, like: Tensor) -> Tensor:
    """Return a standard normal number for each token after each prefix, [rows, V] as `like`: the same every time."""
    vocabulary = like.shape[-1]
    rows = []
    for prefix in prefixes:
        generator = torch.Generator().manual_seed(seed_of(seed, *prefix))
        rows.append(torch.randn(vocabulary, generator=generator))
    return torch.stack(rows).to(like.device)


def draw_tokens(logits: Tensor, config: SamplerConfig, generator: torch.Generator) -> TokenDraw:
    """Draw one token per row after temperature, top-k and top-p; exact: argmax(p / Exp(1)).

    logits: [rows, V] float32.
    """
    scaled_logits = logits / config.temperature
    cut_logits = apply_top_k_top_p(scaled_logits, config.top_k, config.top_p)
    distribution = cut_logits.log_softmax(-1)
    noise = torch.empty_like(distribution).exponential_(generator=generator)
    tokens = (distribution.exp() / noise).argmax(-1)
    logprobs = distribution.gather(-1, tokens[:, None]).squeeze(-1)
    return TokenDraw(tokens, logprobs, distribution)


def apply_top_k_top_p(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set logits to −∞ outside the top k tokens (0: all), then outside the smallest set of probability top_p."""
    if 0 < top_k < logits.shape[-1]:
        values, ids = logits.topk(top_k, dim=-1)
        logits = at_tokens(ids, values, logits)
    if top_p < 1:
        ordered, ids = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        mass_above = probabilities.cumsum(-1) - probabilities
        ordered = ordered.masked_fill(mass_above >= top_p, -torch.inf)
        logits = at_tokens(ids, ordered, logits)
    return logits


def at_tokens(ids: Tensor, values: Tensor, like: Tensor) -> Tensor:
    """Return values [rows, k] at the tokens `ids` and −∞ at all others, [rows, V] as `like`."""
    return torch.full_like(like, -torch.inf).scatter(-1, ids, values)
