"""Log-probabilities of the likeliest tokens, which a sampler notes at each place of a completion.

Two list columns of completions hold them, place after place: `top_logp`, log q of k tokens, −∞ for those that could not
be drawn, and `top_ids`, the tokens. Where k is the whole vocabulary, `top_logp` is in the order of the ids and the only
column.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

TOP_LOGP = "top_logp"
TOP_IDS = "top_ids"


class TopTokens(NamedTuple):
    """The likeliest tokens at a place, [k], or at all T places of a completion, [T, k]."""

    logp: NDArray[np.float32]  # log q
    ids: NDArray[np.int32] | None  # None: the whole vocabulary, in order


def likeliest_tokens(distribution: torch.Tensor, count: int) -> list[TopTokens]:
    """Return the likeliest tokens of each row of log-probabilities [rows, V]; all in order where `count` is V or more.

    Of equally likely ones those with the smaller ids come first.
    """
    if count >= distribution.shape[-1]:
        rows = distribution.float().cpu().numpy()
        return [TopTokens(logp, None) for logp in rows]
    ordered, ids = distribution.sort(dim=-1, descending=True, stable=True)
    logp_of_rows = ordered[:, :count].float().cpu().numpy()
    ids_of_rows = ids[:, :count].int().cpu().numpy()
    return list(map(TopTokens, logp_of_rows, ids_of_rows))


def top_columns(places_by_completion: Sequence[Sequence[TopTokens]]) -> dict[str, pa.Array]:
    """Tabulate the likeliest tokens at the places of each completion."""
    places = [*chain.from_iterable(places_by_completion)]
    place_bounds = np.cumsum([0, *map(len, places_by_completion)])
    number_bounds = len(places[0].logp) * place_bounds
    offsets = pa.array(number_bounds, pa.int64())  # of 64 bits: a shard may hold more than 2^31 numbers
    logp = np.concatenate([place.logp for place in places])
    columns = {TOP_LOGP: pa.LargeListArray.from_arrays(offsets, logp)}
    ids_of_places = [place.ids for place in places if place.ids is not None]
    if ids_of_places:
        ids = np.concatenate(ids_of_places)
        columns[TOP_IDS] = pa.LargeListArray.from_arrays(offsets, ids)
    return columns
