"""Seeds for random generators."""

from __future__ import annotations

import hashlib


def seed_of(*numbers: int) -> int:
    """A 63-bit seed for every tuple of numbers."""
    text = " ".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
