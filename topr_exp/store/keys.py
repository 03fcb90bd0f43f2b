"""What names a table: the canonical JSON of its key, and the short hash that becomes its folder's name."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from topr_exp.types import TOPRError

HASH_BYTES = 8  # 64 bits; a collision is noticed, because key.json holds the whole key


def canonical(key: Mapping[str, Any]) -> str:
    """The one JSON text of a key: members sorted, no spaces, ASCII only; equal keys give equal texts.

    1, 1.0 and true are three different values, as they are in JSON. Tuples count as lists.
    Raises TOPRError for what JSON can't hold (NaN, infinities, members that are not text, other types).
    """
    return json.dumps(_plain(key, "key"), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def key_hash(key: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of BLAKE2b over the canonical JSON."""
    return hashlib.blake2b(canonical(key).encode("ascii"), digest_size=HASH_BYTES).hexdigest()


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TOPRError(f"{where} has the member {name!r}; members of a store key must be text")
        return {str(name): _plain(member, f"{where}.{name}") for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member, f"{where}[{i}]") for i, member in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise TOPRError(f"{where} is {value}; numbers of a store key must be finite")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TOPRError(f"{where} is a {type(value).__name__}; a store key holds JSON values only")
