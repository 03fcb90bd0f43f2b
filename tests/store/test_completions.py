"""Completions in and out as JSON lines: nothing is lost on the way, and a malformed line is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topr_exp.data import rollout_files
from topr_exp.data.rollout_files import RolloutReader
from topr_exp.store import Store
from topr_exp.store.completions import export_file
from topr_exp.store.table import Table
from topr_exp.types import TOPRError

TEXT = st.text(max_size=8)
WHICH = st.fixed_dictionaries({"problem_id": TEXT}) | st.fixed_dictionaries({"question": TEXT, "gold": TEXT})
LOGPROB = st.floats(min_value=-(2.0**90), max_value=0, width=32, allow_nan=False, allow_infinity=False)


@st.composite
def files(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lines of one file: all with tokens or none, all with log-probabilities or none."""
    tokens = draw(st.booleans())
    logprobs = tokens and draw(st.booleans())
    rows = []
    for _ in range(draw(st.integers(1, 7))):
        row = draw(WHICH) | {"completion": draw(TEXT)}
        if draw(st.booleans()):
            row["finish"] = draw(st.sampled_from(rollout_files.FINISHES))
        if tokens:
            row["tokens"] = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4))
        if logprobs:
            count = len(row["tokens"])
            row["logprobs"] = draw(st.lists(LOGPROB, min_size=count, max_size=count))
        rows.append(row)
    return rows


def shortest(row: dict[str, Any]) -> dict[str, Any]:
    """The line as it goes out: log-probabilities are float32, written with the fewest digits that tell them apart."""
    if "logprobs" not in row:
        return row
    return row | {"logprobs": [float(str(np.float32(value))) for value in row["logprobs"]]}


def import_file(store: Store, path: Path) -> tuple[Table, int]:
    return rollout_files.import_rows(store, RolloutReader(str(path)))


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(files())
def test_import_then_export_gives_the_same_lines(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("round")
    store = Store(folder / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_files, "ROWS_PER_SHARD", 3)
        table, made = import_file(store, write(folder / "a.jsonl", rows))
        assert (made, table.shards) == (len(rows), -(-len(rows) // 3))
        assert export_file(table, folder / "b.jsonl") == len(rows)
        assert [json.loads(line) for line in (folder / "b.jsonl").open(encoding="utf-8")] == [*map(shortest, rows)]
        again, _ = import_file(store, folder / "b.jsonl")
        export_file(again, folder / "c.jsonl")
    assert (folder / "b.jsonl").read_bytes() == (folder / "c.jsonl").read_bytes()
    assert table.read().equals(again.read())


def test_columns_and_types_and_the_same_content_once(tmp_path: Path) -> None:
    rows = [
        {"problem_id": "a/1", "completion": " 4.", "tokens": [3, 1], "logprobs": [-0.1, 0], "finish": "stop"},
        {"question": "2+2?", "gold": "4", "completion": "", "tokens": [2], "logprobs": [-1e-3], "other": 1},
    ]
    store = Store(tmp_path)
    table, made = import_file(store, write(tmp_path / "a.jsonl", rows))
    found = table.read()
    texts = {"problem_id": "a/1", "question": None, "gold": None, "text": " 4.", "finish": "stop"}
    assert found.to_pylist()[0] == {**texts, "tokens": [3, 1], "sampler_logp": [float(np.float32(-0.1)), 0.0]}
    assert found.schema.field("tokens").type == pa.list_(pa.int32())
    assert found.schema.field("sampler_logp").type == pa.list_(pa.float32())
    assert table.name[:9] == "imported/"
    other, made_again = import_file(store, write(tmp_path / "b.jsonl", rows))
    different, _ = import_file(store, write(tmp_path / "c.jsonl", rows * 2))
    assert (made, made_again) == (2, 0)
    assert table.name == other.name != different.name


def test_files_that_cannot_be_imported(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(TOPRError, match=r"empty\.jsonl holds no completions"):
        import_file(store, tmp_path / "empty.jsonl")
    with pytest.raises(TOPRError, match=r"gone\.jsonl can\'t be read: No such file or directory$"):
        import_file(store, tmp_path / "gone.jsonl")


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "store"), tmp_path / "out.jsonl"
    verdicts, nameless = store.table("verdicts", {}, 1), store.table("rollouts", {}, 1)
    verdicts.fill(lambda _: pa.table({"verdict": ["correct"]}))
    nameless.fill(lambda _: pa.table({"text": ["x"]}))
    unmade = store.table("rollouts", {"other": 1}, 1)
    for table, message in ((verdicts, "no column text"), (nameless, "no column problem_id"), (unmade, "never made")):
        with pytest.raises(TOPRError, match=message):
            export_file(table, out)
    assert {path.name for path in tmp_path.iterdir()} == {"store"}
    out.write_text("precious")
    with pytest.raises(TOPRError, match=r"out\.jsonl exists"):
        export_file(nameless, out)
    assert out.read_text() == "precious"
