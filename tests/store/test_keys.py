"""A table's name follows from its key's content alone."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.store import Store
from topr_exp.store.keys import canonical, key_hash
from topr_exp.types import TOPRError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
KEYS = st.dictionaries(st.text(), VALUES)


def shuffled(value: Any, source: random.Random) -> Any:
    if isinstance(value, dict):
        members = list(value.items())
        source.shuffle(members)
        return {name: shuffled(member, source) for name, member in members}
    return [shuffled(member, source) for member in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=60)
@given(KEYS, KEYS, st.integers())
def test_equal_keys_and_no_others_have_one_text(one: dict[str, Any], other: dict[str, Any], seed: int) -> None:
    assert canonical(shuffled(one, random.Random(seed))) == canonical(one)
    assert json.loads(canonical(one)) == one
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical(one) == canonical(other)) == (key_hash(one) == key_hash(other)) == same


def test_hash_never_changes_between_versions() -> None:
    """Users' stores outlive a release: another hash would sample everything again."""
    key = {"weights": "ab12", "sampler": {"temperature": 1.0, "top_k": 500, "seed": 0}, "stop": ["\n\n"], "x": None}
    assert key_hash(key) == "e96ded1fc75f05fe"
    assert len({canonical({"x": value}) for value in (1, 1.0, True, "1")}) == 4
    assert canonical({"x": (1, 2)}) == canonical({"x": [1, 2]})


@pytest.mark.parametrize("value", [math.nan, [math.inf], {2, 3}])
def test_what_json_cannot_hold_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"^a store key holds JSON values only: "):
        Store(tmp_path).table("rollouts", {"a": value}, 1)


@pytest.mark.parametrize("kind", ["", "Rollouts", "../x", "a/b", ".hidden"])
def test_kind_is_a_plain_name(kind: str, tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match="kind must be lower-case letters, digits and _"):
        Store(tmp_path).table(kind, {}, 1)
