"""A batch of sequences that grow token by token, with their keys and values."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

from topr_exp.models.loading import NEW_CACHE_ARGUMENT, OLD_CACHE_ARGUMENT, text_config
from topr_exp.sampling.sampler import Prompts
from topr_exp.types import TOPRError

ATTENTION_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})  # of layers
MIN_SHARED_TOKENS = 32  # below this a separate pass over the shared prefix does not pay


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer, written into spare room instead of being copied at every step."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room  # columns, one a token
        self.length = 0  # columns that are filled
        self.all_keys = self.all_values = torch.empty(0)  # [rows, heads, room, size] from the first update on

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        key_states = key_states.to(value_states.dtype)  # rotation leaves float32, which attention would cast each time
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.all_keys = self.allocate(len(key_states), key_states)
            self.all_values = self.allocate(len(value_states), value_states)
        end = self.length + key_states.shape[2]
        self.all_keys[:, :, self.length : end] = key_states
        self.all_values[:, :, self.length : end] = value_states
        self.length = end
        self.set_views()
        return self.keys, self.values

    def allocate(self, row_count: int, like: Tensor) -> Tensor:
        """Allocate [row_count, heads, room, size] for states such as `like`, [rows, heads, tokens, size]."""
        _, heads, _, size = like.shape
        return like.new_empty((row_count, heads, self.room, size))

    def set_views(self) -> None:
        """Point `keys` and `values` at the columns that are filled."""
        self.keys = self.all_keys[:, :, : self.length]
        self.values = self.all_values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows of the batch."""
        self.all_keys = self.gather(self.all_keys, rows)
        self.all_values = self.gather(self.all_values, rows)
        self.set_views()

    def gather(self, states: Tensor, rows: Tensor) -> Tensor:
        """Copy the filled columns of some rows, [len(rows), heads, room, size]; other columns are never read."""
        gathered_states = self.allocate(len(rows), states)
        filled = slice(self.length)
        torch.index_select(states[:, :, filled], 0, rows, out=gathered_states[:, :, filled])
        return gathered_states


class DecodingBatch:
    """Sequences with their cache: takes tokens, returns the logits of the next ones.

    Columns of the cache: the prefix that all prompts share (if long enough to pay for a separate pass), the suffix of
    each prompt, padded on the left, and the sampled tokens. A mask hides the padding; positions skip it.
    """

    def __init__(self, model: Any, prompts: Prompts, max_new_tokens: int) -> None:
        """max_new_tokens: tokens of each row that may be decoded."""
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        prefix_length = shared_prefix_length(prompts)
        lengths = [len(prompt) for prompt in prompts]
        if has_attention_window(model) and len(set(lengths)) > 1:
            prefix_length = 0  # a window counts columns, padding among them
        self.prefix = prompts[0][:prefix_length]
        self.suffixes = [prompt[prefix_length:] for prompt in prompts]
        self.lengths = torch.tensor(lengths, device=self.device)  # [rows] tokens so far
        suffix_lengths = self.lengths - prefix_length
        suffix_width = int(suffix_lengths.max())
        prompt_width = prefix_length + suffix_width
        columns = torch.arange(prompt_width + max_new_tokens, device=self.device)
        layer_count = text_config(model).num_hidden_layers
        self.layers = [PreallocatedLayer(len(columns)) for _ in range(layer_count)]
        self.cache = Cache(layers=self.layers)
        self.cache_argument = cache_argument_of(model.base_model)
        suffix_starts = prompt_width - suffix_lengths[:, None]  # padding lies between prefix and suffix
        self.mask = (columns < prefix_length) | (columns >= suffix_starts)  # [rows, columns]
        self.is_padded = bool((suffix_lengths < suffix_width).any())

    def prefill(self) -> Tensor:
        """Run the prompts through the model; returns the logits [rows, V] of the first sampled tokens."""
        if self.prefix:
            self.prefill_prefix()
        suffixes = [torch.tensor(suffix) for suffix in self.suffixes]
        ids = pad_sequence(suffixes, batch_first=True, padding_side="left")
        width = ids.shape[1]
        columns = torch.arange(width, device=self.device)
        suffix_lengths = self.lengths - len(self.prefix)
        padding_lengths = width - suffix_lengths
        suffix_positions = (columns - padding_lengths[:, None]).clamp_min(0)
        return self.forward(ids.to(self.device), len(self.prefix) + suffix_positions)

    def prefill_prefix(self) -> None:
        """Run the shared prefix through the model once and repeat its keys and values for every row."""
        ids = torch.tensor([self.prefix], device=self.device)
        positions = torch.arange(len(self.prefix), device=self.device)[None]
        self.forward(ids, positions)
        first_row = torch.zeros(len(self.suffixes), dtype=torch.int64, device=self.device)
        for layer in self.layers:
            layer.select(first_row)

    def decode(self, tokens: Tensor) -> Tensor:
        """Run one more token of each row through the model; returns the logits [rows, V] of the next."""
        logits = self.forward(tokens[:, None], self.lengths[:, None])
        self.lengths = self.lengths + 1
        return logits

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Run tokens [rows, new tokens] through the model; returns the logits after each row's last, float32."""
        mask = None
        is_whole_batch = len(ids) == len(self.mask)  # the shared prefix runs as one row, without padding
        if self.is_padded and is_whole_batch:
            end = self.layers[0].length + ids.shape[1]
            mask = self.mask[:, :end].long()
        output = self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self.cache_argument: self.cache},
        )
        output_layer = self.model.get_output_embeddings()
        return output_layer(output.last_hidden_state[:, -1]).float()

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows."""
        for layer in self.layers:
            layer.select(rows)
        self.lengths = self.lengths[rows]
        self.mask = self.mask[rows]


def cache_argument_of(model: Any) -> str:
    """Return the name under which a model takes its cache."""
    parameters = inspect.signature(model.forward).parameters
    if NEW_CACHE_ARGUMENT in parameters:
        return NEW_CACHE_ARGUMENT
    return OLD_CACHE_ARGUMENT


def layer_types_of(model: Any) -> set[str]:
    """Return the types of a model's layers, none where it has one type and no word for it."""
    return set(getattr(text_config(model), "layer_types", None) or ())


def has_attention_window(model: Any) -> bool:
    """True if some layer does not attend to all earlier tokens."""
    if layer_types_of(model) - {"full_attention"}:
        return True
    return bool(getattr(text_config(model), "sliding_window", None))


def refuse_other_states(model: Any) -> None:
    """Raise TOPRError for layers that carry other states than keys and values from token to token."""
    other_types = sorted(layer_types_of(model) - ATTENTION_TYPES)
    if other_types:
        raise TOPRError(
            f"sampler=hf: {type(model).__name__} has layers of {', '.join(other_types)}, whose states this sampler "
            "does not keep; take sampler=vllm"
        )


def shared_prefix_length(prompts: Prompts) -> int:
    """Count the tokens that all prompts begin with; 0 where a separate pass over them does not pay."""
    if len(prompts) == 1:
        return 0
    max_length = min(map(len, prompts)) - 1  # every prompt keeps a token, so that it has its own logits
    length = 0
    while length < max_length and len({prompt[length] for prompt in prompts}) == 1:
        length += 1
    if length >= MIN_SHARED_TOKENS:
        return length
    return 0
