"""Samplers: one interface to what draws completions, and the reference, transformers.

The reference is exact ancestral sampling, batched, finished rows dropped.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

from topr_exp.config.model import Mismatch, SamplerConfig
from topr_exp.models.loading import refuse_scaled_logits
from topr_exp.models.policy import Policy, memory_for
from topr_exp.sampling.mismatch import rounded_weights

WORTH_A_PASS = 32  # tokens


def seed_of(*numbers: int) -> int:
    """A 63-bit seed for every tuple of numbers."""
    text = " ".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@dataclass(slots=True)
class Sample:
    """One sampled completion."""

    tokens: list[int] = field(default_factory=list)  # the end-of-sequence token included when it was sampled
    logprobs: list[float] = field(default_factory=list)  # under the distribution each token was drawn from
    finish: str = "length"  # stop (end-of-sequence), stop_string or length
    kept: list[list[int]] = field(default_factory=list)  # all that could be drawn in each one's place, where it is kept


class Sampler(ABC):
    """Draws completions from policies; `prepare` comes before `sample`, `close` gives back what it holds."""

    keeps = False  # whether samples say what could have been drawn in the place of each token

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config
        self.timed: Callable[[str], AbstractContextManager[None]] = lambda stage: nullcontext()
        self.report: Callable[[int], None] = lambda tokens: None  # that more tokens are drawn

    @contextmanager
    def reporting(self, report: Callable[[int], None]) -> Iterator[None]:
        """Have `report` called with the number of tokens, as they are drawn, while the block runs."""
        before, self.report = self.report, report
        try:
            yield
        finally:
            self.report = before

    def begin(self) -> None:  # noqa: B027
        """Do in the background what takes long and needs no model: it is sampled from before long."""

    def prepare(self, policy: Policy, length: int) -> None:  # noqa: B027
        """From now on sample from this policy, at most `length` tokens of prompt and completion together."""

    def start(self, policy: Policy, prompts: Sequence[Sequence[int]]) -> None:  # noqa: B027
        """Start what `sample` would start, so that its time is not taken for that of sampling."""

    @abstractmethod
    def sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, seed: tuple[int, ...], stop: Sequence[str]
    ) -> list[list[Sample]]:
        """n completions of each prompt, a function of the weights and the arguments.

        seed: numbers that name the randomness. stop: texts that end a completion. TOPRError where an engine breaks.
        """

    @abstractmethod
    def made_by(self) -> dict[str, str]:
        """Program, versions and device that drew the completions. Kept with them; no part of their key."""

    def of_policy(self) -> "Sampler":
        """Return the sampler without `sampler.mismatch` and `keeps`, for all that is not trained on."""
        return self

    def rest(self) -> None:  # noqa: B027
        """Free what can be freed at once: the policy trains next, and is sampled from again afterwards."""

    def release(self) -> None:
        """Give memory back for training that samples nothing; afterwards the policy is sampled from again."""
        self.close()

    def close(self) -> None:  # noqa: B027
        """End all processes and free their memory; after the next `prepare`, `sample` starts them again."""


# Attention without cuDNN, which would plan each length that a completion goes through anew.
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class HFSampler(Sampler):
    """transformers, on the device of the policy."""

    device = ""

    def __init__(self, config: SamplerConfig, keeps: bool = False) -> None:
        super().__init__(config)
        self.keeps = keeps

    def prepare(self, policy: Policy, length: int) -> None:
        refuse_scaled_logits(policy.model)
        self.device = torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else "cpu"

    def sample(
        self,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        n: int,
        seed: tuple[int, ...],
        stop: Sequence[str],
        begun: Sequence[Sample] = (),
    ) -> list[list[Sample]]:
        """As of all samplers; begun: of each prompt (n is 1) the completion so far, which goes on in its place."""
        generator = torch.Generator(device=policy.device).manual_seed(seed_of(*seed))
        stopped = policy.stopper(stop) if stop else None
        work = f"sampling {len(prompts) * n} completions at a time"
        with (
            rounded_weights(policy.model, self.config.mismatch.weights),
            policy.autocast(keep=True),
            sdpa_kernel(UNPLANNED),
            memory_for(work, "lower sampler.prompts_per_shard, or take sampler=vllm"),
        ):
            drawn = policy.model, prompts, n, self.config, policy.eos_ids, generator
            return sample_completions(*drawn, stopped, begun, self.keeps, self.report)

    def made_by(self) -> dict[str, str]:
        versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
        return {"sampler": "hf", **versions, "device": self.device}

    def of_policy(self) -> Sampler:
        unchanged = replace(self.config, mismatch=Mismatch())
        return self if self.config.unchanged and not self.keeps else HFSampler(unchanged)


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer, written into spare room instead of being copied at every step."""

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

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows of the batch."""
        self.all_keys, self.all_values = self.all_keys[rows], self.all_values[rows]
        self.filled()


class DecodingBatch:
    """A batch of sequences with their cache: takes tokens, returns the logits of the next ones.

    The cache's columns are what all prompts begin with (where that is long enough to be worth a separate pass), the
    rest of each prompt, padded on the left, and what was sampled. A mask hides the padding; positions leave it out.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], room: int) -> None:
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        kinds = {*(getattr(model.config, "layer_types", None) or ())} - {"full_attention"}
        windows = bool(kinds or getattr(model.config, "sliding_window", None))  # by columns, padding among them
        shared = 0 if windows and len({*map(len, prompts)}) > 1 else shared_prefix_length(prompts)
        self.prefix, self.rests = prompts[0][:shared], [prompt[shared:] for prompt in prompts]
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        rests = self.lengths - shared
        self.width = int(rests.max())
        columns = torch.arange(shared + self.width + room, device=self.device)
        self.layers = [PreallocatedLayer(len(columns)) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        self.mask = (columns < shared) | (columns >= shared + self.width - rests[:, None])
        self.padded = bool((rests < self.width).any())

    def prefill(self) -> Tensor:
        """Run the prompts through the model; the logits of each one's first sampled token."""
        shared = len(self.prefix)
        if shared:
            self.forward(
                torch.tensor([self.prefix], device=self.device), torch.arange(shared, device=self.device)[None]
            )
            for layer in self.layers:
                layer.select(torch.zeros(len(self.rests), dtype=torch.int64, device=self.device))
        ids = pad_sequence([torch.tensor(rest) for rest in self.rests], batch_first=True, padding_side="left")
        columns = torch.arange(self.width, device=self.device)
        positions = shared + (columns - self.width + (self.lengths - shared)[:, None]).clamp_min(0)
        return self.forward(ids.to(self.device), positions)

    def decode(self, tokens: Tensor) -> Tensor:
        """Run one more token of each row through the model; the logits of the next."""
        logits = self.forward(tokens[:, None], self.lengths[:, None])
        self.lengths = self.lengths + 1
        return logits

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        hides = self.padded and len(ids) == len(self.mask)  # the shared prefix, alone, has no padding
        mask = self.mask[:, : self.layers[0].length + ids.shape[1]].long() if hides else None
        out = self.model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        return self.model.get_output_embeddings()(out.last_hidden_state[:, -1]).float()

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows."""
        for layer in self.layers:
            layer.select(rows)
        self.lengths, self.mask = self.lengths[rows], self.mask[rows]


@torch.no_grad()  # inference mode would switch off autocast's cache: every token would cast every weight again
def sample_completions(
    model: Any,
    prompts: Sequence[Sequence[int]],
    n: int,
    config: SamplerConfig,
    eos_ids: Sequence[int],
    generator: torch.Generator,
    stopped: Callable[[list[int]], bool] | None = None,
    begun: Sequence[Sample] = (),
    keeps: bool = False,
    report: Callable[[int], None] = lambda tokens: None,
) -> list[list[Sample]]:
    """n completions of each prompt, drawn token by token; a function of the arguments and the generator's state.

    Keys and values of what all prompts begin with and of the rest of each are computed once, then repeated n times.
    Rows that ended leave the batch as soon as they are an eighth of it. `stopped(tokens)` says whether a completion so
    far ends in a stop string. begun: with n = 1, of each prompt an unfinished completion, which goes on in its place.
    report: called with the number of tokens that were drawn at each step.
    """
    read = [[*prompt, *one.tokens] for prompt, one in zip(prompts, begun, strict=True)] if begun else prompts
    batch = DecodingBatch(model, read, config.max_new_tokens)
    logits = batch.prefill()
    repeat = torch.arange(len(prompts), device=batch.device).repeat_interleave(n)
    batch.select(repeat)
    logits = logits[repeat]
    samples = list(begun) or [Sample() for _ in range(len(repeat))]
    rows = samples  # of the batch
    asked = [prompts[i] for i in repeat.tolist()]
    noise = config.mismatch.logits_noise
    while True:
        if noise:
            prefixes = [(*prompt, *one.tokens) for prompt, one in zip(asked, rows, strict=True)]
            logits = logits + noise * normal_of(config.seed, prefixes, logits)
        tokens, logprobs, left = sample_tokens(logits, config, generator)
        sets = drawable_ids(left) if keeps else []
        alive, drawn = [], 0
        for i, (one, token, logprob) in enumerate(zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)):
            if one.finish != "length" or len(one.tokens) == config.max_new_tokens:
                continue  # it ended, and has not left the batch yet
            one.tokens.append(token)
            one.logprobs.append(logprob)
            drawn += 1
            if keeps:
                one.kept.append(sets[i])
            if token in eos_ids:
                one.finish = "stop"
            elif stopped is not None and stopped(one.tokens):
                one.finish = "stop_string"
            elif len(one.tokens) < config.max_new_tokens:
                alive.append(i)
        report(drawn)
        if not alive:
            break
        if len(rows) - len(alive) >= max(len(rows) // 8, 1):
            keep = torch.tensor(alive, device=batch.device)
            batch.select(keep)
            tokens, rows, asked = tokens[keep], [rows[i] for i in alive], [asked[i] for i in alive]
        logits = batch.decode(tokens)
    return [samples[i : i + n] for i in range(0, len(samples), n)]


def drawable_ids(logits: torch.Tensor) -> list[list[int]]:
    """Of each row of [N, V] logits the tokens that could be drawn: those that are not −∞."""
    drawable = logits > -torch.inf
    ids_by_row = drawable.nonzero()[:, 1].split(drawable.sum(1).tolist())
    return [ids.tolist() for ids in ids_by_row]


def shared_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all prompts begin with, to compute once; 0 where that is not worth a pass."""
    shortest = min(map(len, prompts)) - 1  # something is left of each, so that each has its own logits
    first = prompts[0]
    length = next((i for i in range(shortest) if any(prompt[i] != first[i] for prompt in prompts)), shortest)
    return length if length >= WORTH_A_PASS and len(prompts) > 1 else 0


def normal_of(seed: int, prefixes: Sequence[tuple[int, ...]], like: Tensor) -> Tensor:
    """A standard normal number for each token after each prefix, in the shape of `like`: the same every time."""
    generators = [torch.Generator().manual_seed(seed_of(seed, *prefix)) for prefix in prefixes]
    return torch.stack([torch.randn(like.shape[-1], generator=each) for each in generators]).to(like.device)


def sample_tokens(logits: Tensor, config: SamplerConfig, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """One token a row from the distribution that temperature, top-k and top-p leave, and its log-probability there.

    The third: every token's, −inf where not left. logits: [rows, vocabulary] float32. Exact: argmax(p / Exp(1)).
    """
    logp = apply_top_k_top_p(logits / config.temperature, config.top_k, config.top_p).log_softmax(-1)
    noise = torch.empty_like(logp).exponential_(generator=generator)
    tokens = (logp.exp() / noise).argmax(-1)
    return tokens, logp.gather(-1, tokens[:, None]).squeeze(-1), logp


def apply_top_k_top_p(logits: Tensor, top_k: int, top_p: float) -> Tensor:
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
