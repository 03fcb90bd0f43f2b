"""The reference sampler: exact ancestral sampling with transformers, batched, finished rows dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from topr_exp.sampling.config import SamplerConfig

WORTH_A_PASS = 32  # tokens


@dataclass(slots=True)
class Sample:
    """One sampled completion."""

    tokens: list[int] = field(default_factory=list)  # the end-of-sequence token included when it was sampled
    logprobs: list[float] = field(default_factory=list)  # under the distribution each token was drawn from
    finish: str = "length"  # stop (end-of-sequence), stop_string or length


class RoomyLayer(DynamicLayer):
    """Keys and values of one layer, growing into spare room instead of being copied at every step."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        key_states = key_states.to(value_states.dtype)  # rotation leaves float32, which attention would cast each time
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.all_keys, self.all_values = (
                states.new_empty((*states.shape[:2], self.room, states.shape[3]))
                for states in (key_states, value_states)
            )
        end = self.length + key_states.shape[2]
        self.all_keys[:, :, self.length : end] = key_states
        self.all_values[:, :, self.length : end] = value_states
        self.length = end
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        self.keys, self.values = self.all_keys[:, :, : self.length], self.all_values[:, :, : self.length]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.length

    def take(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows of the batch."""
        self.all_keys, self.all_values = self.all_keys[rows], self.all_values[rows]
        self.filled()


class Decoding:
    """A batch of sequences with their cache: reads tokens, returns the logits of the next.

    The cache's columns are what all prompts begin with (where that is long enough to be worth a pass of its own), the
    rest of each prompt, padded on the left, and what was sampled. A mask hides the padding; positions leave it out.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], room: int) -> None:
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        shared = shared_prefix(prompts)
        self.prefix, self.rests = prompts[0][:shared], [prompt[shared:] for prompt in prompts]
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        rests = self.lengths - shared
        self.width = int(rests.max())
        columns = torch.arange(shared + self.width + room, device=self.device)
        self.layers = [RoomyLayer(len(columns)) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        self.mask = (columns < shared) | (columns >= shared + self.width - rests[:, None])
        self.padded = bool((rests < self.width).any())

    def read_prompts(self) -> Tensor:
        shared = len(self.prefix)
        if shared:
            self.read(torch.tensor([self.prefix], device=self.device), torch.arange(shared, device=self.device)[None])
            for layer in self.layers:
                layer.take(torch.zeros(len(self.rests), dtype=torch.int64, device=self.device))
        ids = torch.zeros((len(self.rests), self.width), dtype=torch.int64)
        for row, rest in enumerate(self.rests):
            ids[row, self.width - len(rest) :] = torch.tensor(rest)
        columns = torch.arange(self.width, device=self.device)
        positions = shared + (columns - self.width + (self.lengths - shared)[:, None]).clamp_min(0)
        return self.read(ids.to(self.device), positions)

    def read_next(self, tokens: Tensor) -> Tensor:
        logits = self.read(tokens[:, None], self.lengths[:, None])
        self.lengths = self.lengths + 1
        return logits

    def read(self, ids: Tensor, positions: Tensor) -> Tensor:
        hides = self.padded and len(ids) == len(self.mask)  # the shared prefix, read alone, has no padding
        mask = self.mask[:, : self.layers[0].length + ids.shape[1]].long() if hides else None
        out = self.model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        return self.model.get_output_embeddings()(out.last_hidden_state[:, -1]).float()

    def take(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows."""
        for layer in self.layers:
            layer.take(rows)
        self.lengths, self.mask = self.lengths[rows], self.mask[rows]


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    n: int,
    config: SamplerConfig,
    eos_ids: Sequence[int],
    generator: torch.Generator,
    stopped: Callable[[list[int]], bool] | None = None,
) -> list[list[Sample]]:
    """n completions of each prompt, drawn token by token; a function of the arguments and the generator's state.

    What all prompts begin with and the rest of each are read once; keys and values are repeated for the n completions.
    Rows that ended leave the batch as soon as they are an eighth of it. `stopped(tokens)` says whether a completion so
    far ends in a stop string.
    """
    batch = Decoding(model, prompts, config.max_new_tokens)
    logits = batch.read_prompts()
    repeat = torch.arange(len(prompts), device=batch.device).repeat_interleave(n)
    batch.take(repeat)
    logits = logits[repeat]
    samples = [Sample() for _ in range(len(repeat))]
    rows = list(range(len(samples)))  # the sample that each row of the batch belongs to
    eos = set(eos_ids)
    for step in range(config.max_new_tokens):
        tokens, logprobs = draw(logits, config, generator)
        alive = []
        for i, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
            one = samples[rows[i]]
            if one.finish != "length":
                continue
            one.tokens.append(token)
            one.logprobs.append(logprob)
            if token in eos:
                one.finish = "stop"
            elif stopped is not None and stopped(one.tokens):
                one.finish = "stop_string"
            else:
                alive.append(i)
        if not alive or step + 1 == config.max_new_tokens:
            break
        if len(rows) - len(alive) >= max(len(rows) // 8, 1):
            keep = torch.tensor(alive, device=batch.device)
            batch.take(keep)
            tokens, rows = tokens[keep], [rows[i] for i in alive]
        logits = batch.read_next(tokens)
    return [samples[i : i + n] for i in range(0, len(samples), n)]


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens to read once for all prompts: those they all begin with, 0 for too few to be worth a pass."""
    shortest = min(map(len, prompts)) - 1  # something is left of each, so that each has logits of its own
    first = prompts[0]
    length = next((i for i in range(shortest) if any(prompt[i] != first[i] for prompt in prompts)), shortest)
    return length if length >= WORTH_A_PASS and len(prompts) > 1 else 0


def draw(logits: Tensor, config: SamplerConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token a row from the distribution that temperature, top-k and top-p leave, and its log-probability there.

    logits: [rows, vocabulary] float32. The draw is argmax(p / e) with e exponential: exact, and vectorised.
    """
    logp = restrict(logits / config.temperature, config.top_k, config.top_p).log_softmax(-1)
    noise = torch.empty_like(logp).exponential_(generator=generator)
    tokens = (logp.exp() / noise).argmax(-1)
    return tokens, logp.gather(-1, tokens[:, None]).squeeze(-1)


def restrict(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits with -inf outside the top k tokens (0: all), then outside the smallest set of probability top_p."""
    if 0 < top_k < logits.shape[-1]:
        values, indices = logits.topk(top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, indices, values)
    if top_p < 1:
        ordered, indices = logits.sort(dim=-1, descending=True)
        mass = ordered.softmax(-1)
        before = mass.cumsum(-1) - mass
        ordered = ordered.masked_fill(before >= top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, indices, ordered)
    return logits
