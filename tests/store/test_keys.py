"""A table's name follows from its key's content alone."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.store import Store
from topr_exp.store.survey import canonical, key_hash
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
@given(KEYS, st.integers())
def test_order_of_members_does_not_matter(key: dict[str, Any], seed: int) -> None:
    assert canonical(shuffled(key, random.Random(seed))) == canonical(key)


@settings(deadline=None, max_examples=60)
@given(KEYS)
def test_key_file_gives_the_same_key_back(key: dict[str, Any]) -> None:
    assert canonical(json.loads(json.dumps(key, indent=1))) == canonical(key)
    assert json.loads(canonical(key)) == key


@settings(deadline=None, max_examples=60)
@given(KEYS, KEYS)
def test_different_keys_have_different_texts(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical(one) == canonical(other)) == same
    assert (key_hash(one) == key_hash(other)) == same


def test_hash_never_changes_between_versions() -> None:
    """Users' stores outlive a release: another hash would sample everything again."""
    key = {"weights": "ab12", "sampler": {"temperature": 1.0, "top_k": 500, "seed": 0}, "stop": ["\n\n"], "x": None}
    assert canonical(key) == (
        '{"sampler":{"seed":0,"temperature":1.0,"top_k":500},"stop":["\\n\\n"],"weights":"ab12","x":null}'
    )
    assert key_hash(key) == "e96ded1fc75f05fe"


def test_numbers_of_different_types_differ() -> None:
    assert len({canonical({"x": value}) for value in (1, 1.0, True, "1")}) == 4
    assert canonical({"x": (1, 2)}) == canonical({"x": [1, 2]})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"a": {"b": math.nan}}, "key.a.b is nan; numbers of a store key must be finite"),
        ({"a": [1, math.inf]}, "key.a[1] is inf; numbers of a store key must be finite"),
        ({"a": {1: 2}}, "key.a has the member 1; members of a store key must be text"),
        ({"a": {2, 3}}, "key.a is a set; a store key holds JSON values only"),
    ],
)
def test_what_json_cannot_hold_is_refused(key: dict[str, Any], message: str, tmp_path: Any) -> None:
    with pytest.raises(TOPRError) as error:
        Store(tmp_path).table("rollouts", key, 1)
    assert str(error.value) == message


@pytest.mark.parametrize("kind", ["", "Rollouts", "../x", "a/b", ".hidden"])
def test_kind_is_a_plain_name(kind: str, tmp_path: Any) -> None:
    with pytest.raises(TOPRError, match="kind must be lower-case letters, digits and _"):
        Store(tmp_path).table(kind, {}, 1)
