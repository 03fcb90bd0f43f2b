"""Logs of completions of other frameworks: each is read as what it is, and a malformed row is named."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import write_lines
from topr_exp.config.data import Columns
from topr_exp.imported import log as imported_log
from topr_exp.imported import sources
from topr_exp.imported.log import import_rows
from topr_exp.imported.reader import RolloutReader
from topr_exp.imported.rows import prompt_text
from topr_exp.imported.traces import trace_rows
from topr_exp.store import Store
from topr_exp.store.completions import export_file
from topr_exp.store.table import Table
from topr_exp.types import FINISHES, TOPRError

USER, ANSWER = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": " 4."}
CHAT, TURNS = [USER], [USER, ANSWER, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": " Yes."}]
BEFORE = json.dumps(TURNS[:3], ensure_ascii=False)
PRIME = {"input_tokens": [5, 6], "output_tokens": [7, 1], "output_logprobs": [-0.5, -0.25], "rewards": 1.0,
         "advantages": 0.5, "prompt": "2 + 2?", "completion": " 4.", "problem_id": "p1", "step": 3}  # fmt: skip
NODES = [
    {"message": USER, "token_ids": [5], "mask": [False]},
    {"parent": 0, "message": ANSWER, "sampled": True, "token_ids": [6, 7, 1], "mask": [False, True, True],
     "logprobs": [-0.5, -0.25]},
]  # fmt: skip
TRACE = {"version": 1, "id": "t", "task": {"type": "Task", "data": {"prompt": "2 + 2?", "answer": "4"}}, "nodes": NODES,
         "calls": [{"node": 1, "finish_reason": "length"}], "agent": {"name": "agent"},
         "rewards": {"right": {"score": 1.0, "weight": 0.5}, "short": {"score": 0.25}, "late": None}}  # fmt: skip
FROM_TRACE = {"messages": json.dumps(CHAT), "completion": " 4.", "prompt_tokens": [5, 6], "tokens": [7, 1],
              "logprobs": [-0.5, -0.25], "reward": 0.75, "finish": "length", "gold": "4"}  # fmt: skip


def of_step(step: int, row: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(str(prompt_text(row)).encode()).hexdigest()
    return row | {"problem_id": f"step {step}, {digest[:16]}"}


FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "trl": ({"step": 1, "prompt": "2 + 2?", "completion": " 4.", "accuracy": 1.0, "advantage": 0.7},
            of_step(1, {"prompt": "2 + 2?", "completion": " 4.", "reward": 1.0})),
    "trl_chat": ({"step": 1, "prompt": CHAT, "completion": [ANSWER], "accuracy": 0.0, "advantage": 0.7},
                 of_step(1, {"messages": json.dumps(CHAT), "completion": " 4.", "reward": 0.0})),
    "verl": ({"input": "user\n2 + 2?", "output": " 4.", "gts": "4", "score": 1.0, "step": 1, "acc": True},
             of_step(1, {"prompt": "user\n2 + 2?", "completion": " 4.", "gold": "4", "reward": 1.0})),
    "prime_rl": (PRIME, {"problem_id": "p1", "prompt": "2 + 2?", "prompt_tokens": [5, 6], "completion": " 4.",
                         "tokens": [7, 1], "logprobs": [-0.5, -0.25], "reward": 1.0}),
    "prime_rl_trace": (TRACE, FROM_TRACE),
    "prime_rl_episode": ({"id": "e", "traces": [TRACE, TRACE | {"agent": {"trainable": False}}]}, FROM_TRACE),
    "verifiers": ({"example_id": 7, "prompt": CHAT, "completion": TURNS[1:], "answer": "4", "reward": 0.5, "info": {}},
                  {"problem_id": "7", "messages": BEFORE, "completion": " Yes.", "gold": "4", "reward": 0.5}),
    "openai": ({"messages": TURNS, "reward": 1}, {"messages": BEFORE, "completion": " Yes.", "reward": 1}),
    "truncated": ({"prompt": "?", "completion": "x", "is_truncated": True},
                  {"prompt": "?", "completion": "x", "finish": "length"}),
    "parts": ({"prompt": "?", "completion": [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]},
              {"prompt": "?", "completion": "x"}),
    "ids": ({"prompt": [5, 6], "completion": [7]}, {"prompt_tokens": [5, 6], "tokens": [7]}),
}  # fmt: skip


def written(folder: Path, rows: list[dict[str, Any]], kind: str) -> Path:
    path = folder / f"log.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    else:
        path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps(row) for row in rows).encode())
    return path


def read(source: Path, *given: Any) -> list[dict[str, Any]]:
    return [*RolloutReader(str(source), *given)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_and_comes_back_from_the_store(tmp_path: Path, name: str, kind: str) -> None:
    row, expected = FORMATS[name]
    if not row.get("info", True):
        row = row if kind == "jsonl" else {key: value for key, value in row.items() if key != "info"}
    source = written(tmp_path, [row, row], kind)
    assert read(source) == [expected, expected]
    store = Store(tmp_path / "store")
    table, _ = import_rows(store, RolloutReader(str(source)))
    for ending in ("jsonl", "parquet"):
        (tmp_path / ending).mkdir()
        export_file(table, out := tmp_path / ending / f"again.{ending}")
        again, _ = import_rows(store, RolloutReader(str(out)))
        assert again.read().to_pylist() == table.read().to_pylist()


def test_saved_data_sets_of_splits_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    store, names = Store(tmp_path / "store"), set()
    for text in ("one", "other"):
        split = datasets.Dataset.from_list([{"prompt": "?", "completion": text, "reward": 1.0}])
        datasets.DatasetDict({"train": split}).save_to_disk(str(tmp_path / text))
        table, _ = import_rows(store, RolloutReader(str(tmp_path / text)))
        assert table.read()["text"].to_pylist() == [text]
        names.add(table.name)
    assert len(names) == 2


def test_a_log_whose_rows_are_all_left_out_is_one_line(tmp_path: Path) -> None:
    source = written(tmp_path, [{"prompt": "?", "completion": ["a", "b"], "reward": [1, None]}], "jsonl")
    with pytest.raises(TOPRError, match=r"1: reward is empty .*, unlike the rows before"):
        import_rows(Store(tmp_path / "store"), RolloutReader(str(source), None, skip_malformed=True))


def test_a_prompt_with_lists_is_so_many_rows(tmp_path: Path) -> None:
    row = {"prompt": "?", "completion": ["a", "b"], "tokens": [[1], [2, 3]], "reward": [0, 1], "id": "x"}
    source = written(tmp_path, [row | {"finish": ["stop", None]}], "jsonl")
    first, second = (
        {"completion": "a", "tokens": [1], "reward": 0, "finish": "stop"},
        {"completion": "b", "tokens": [2, 3]},
    )
    assert read(source) == [{"prompt": "?"} | first, {"prompt": "?", "reward": 1} | second]
    for name, values in (("tokens", [[1]]), ("reward", [1, 2, 3])):
        with pytest.raises(TOPRError, match=rf":1: {name} has {len(values)} values for 2 completions$"):
            read(written(tmp_path, [row | {name: values}], "jsonl"))


def test_each_last_message_of_a_trace_is_a_completion_of_all_before_it() -> None:
    said = [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": " Yes."}]
    more = [{"parent": 1, "message": said[0], "token_ids": [8], "mask": [False]},
            {"parent": 2, "message": said[1], "sampled": True, "token_ids": [2, 3], "mask": [False, True]},
            {"parent": 0, "message": said[1], "sampled": True},
            {"parent": 0, "message": USER}]  # fmt: skip
    first, second = trace_rows(TRACE | {"nodes": [*NODES, *more]})
    assert first["prompt"] == [USER, ANSWER, said[0]]
    assert (first["prompt_tokens"], first["tokens"]) == ([5, 6, 7, 1, 8, 2], [3])
    assert (second["prompt"], second["completion"]) == (CHAT, [said[1]])
    assert "tokens" not in second


def test_rewards_that_are_added_up_and_prompts_of_several_steps(tmp_path: Path) -> None:
    """As TRL logs them: a function that has nothing to say gives NaN; a prompt makes a group each epoch."""
    rows = [{"step": step, "prompt": "?", "completion": "x", "right": 1.0, "form": form, "advantage": 0.0}
            for step in (1, 7) for form in (0.5, None)]  # fmt: skip
    for kind in ("jsonl", "parquet"):
        source = written(tmp_path, rows, kind)
        found = read(source, Columns(reward="right+form"))
        assert [row["reward"] for row in found] == [1.5, 1.0] * 2
        assert len({row["problem_id"] for row in found}) == 2
        assert not any("reward" in row for row in read(source)), "which of two columns it is, nobody knows"
    for rows[1]["right"], message in (("a", "data.columns.reward=right+form: 'a' is no number"),
                                      (math.inf, "right+form must be a finite number; got inf")):  # fmt: skip
        with pytest.raises(TOPRError, match=rf"log\.jsonl:2: {re.escape(message)}$"):
            read(written(tmp_path, rows, "jsonl"), Columns(reward="right+form"))
    with pytest.raises(TOPRError, match=r"reward=right\+no: no such column; it has step, "):
        read(source, Columns(reward="right+no"))


def test_columns_by_the_settings_and_files_in_their_order(tmp_path: Path) -> None:
    for number in (10, 2):
        row = {"prompt": "?", "answer": f"file {number}", "score": 1, "mine": 0.25}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row))
    reader = RolloutReader(str(tmp_path), Columns(completion="answer", reward="mine"))
    rows = [*reader]
    assert rows == [{"prompt": "?", "completion": f"file {number}", "reward": 0.25} for number in (2, 10)]
    assert (reader.roles["reward"], reader.unread) == ("mine", {"score"})
    with pytest.raises(TOPRError, match=r"data\.columns\.gold=x: no such column; it has prompt, answer, score, mine$"):
        read(tmp_path, Columns(gold="x"))


def test_the_hub_s_train_split(monkeypatch: pytest.MonkeyPatch) -> None:
    split = datasets.Dataset.from_list([FORMATS["verl"][0]])
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict({"test": split, "train": split}))
    assert list(RolloutReader("hub:some/log")) == [FORMATS["verl"][1]]


GOOD: dict[str, Any] = {
    "problem_id": "1", "prompt": "?", "completion": "x", "tokens": [1, 2], "logprobs": [-1.0, -2.0], "reward": 1.0
}  # fmt: skip
TOOL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}


IDS = "must be token ids from 0 to 2147483647, at least one; got"
EMPTY = "is empty (null, or pandas' NaN), unlike the rows before; all rows or none"
NO_PROBLEM = "problem_id is missing, and question and gold are not both there instead"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": float("nan")}, "reward must be a finite number; got nan"),
        ({"reward": float("-inf")}, "reward must be a finite number; got -inf"),
        ({"reward": "1"}, "reward must be a finite number; got '1'"),
        ({"reward": None}, f"reward {EMPTY} (data.skip_malformed=true leaves"),
        ({"logprobs": None}, f"logprobs {EMPTY}"),
        ({"tokens": None, "logprobs": None}, f"logprobs {EMPTY}"),
        ({"logprobs": [-1.0]}, "1 logprobs for 2 tokens"),
        ({"tokens": None}, "logprobs without tokens: nothing says which tokens they belong to"),
        *(({"logprobs": values}, "logprobs must be finite numbers of at most 0 (natural logarithms of probabilities)")
          for values in ([-1.0, float("nan")], [-1, -1e300], [0.5, 0.9], [-1.0, "a"], -1.0)),
        *(({"tokens": ids}, f"tokens {IDS} {ids}") for ids in ([], [1, True], [1, -2], [1, 2**31], 3)),
        ({"prompt_tokens": [True]}, f"prompt_tokens {IDS} [True]"),
        ({"prompt": "other"}, "problem_id 1 has another prompt before"),
        ({"prompt": [USER, TOOL]}, "a message calls a tool; completions with tool calls are not trained on"),
        ({"completion": [USER]}, "messages follow a prompt that is text"),
        ({"prompt": None, "completion": [ANSWER], "problem_id": None}, NO_PROBLEM),
        ({"prompt": None, "problem_id": None, "reward": None, "question": "q"}, NO_PROBLEM),
        ({"completion": [{"role": "assistant", "content": [{"type": "image"}]}]},
         "a message must have a role and a content that is text"),
        ({"prompt": [USER], "completion": [ANSWER | {"reasoning": "Hm."}], "tokens": None, "logprobs": None},
         "the last message's reasoning stands apart from its text, and no token ids say how it went on"),
        *((TRACE | {"nodes": nodes}, message) for nodes, message in (
            (5, "not a trace as verifiers writes it (TypeError: "),
            ([{"parent": 0}], "a message's parent does not stand before it"),
            ([NODES[0], NODES[1] | {"message": {}}], "a message must have a role and a content that is text"),
            ([NODES[0], NODES[1] | {"logprobs": [-1.0]}], "1 logprobs for 2 tokens"),
            ([NODES[0], NODES[1] | {"message": TOOL}], "a message calls a tool; "),
        )),
        ({"completion": []}, "completion must be text; got list"),
        ({"completion": 5}, "completion must be text; got int"),
        ({"completion": "\ud800"}, "holds half of a surrogate pair, which is no character"),
        ({"completion": None, "tokens": None, "logprobs": None}, "completion is missing; completion is empty (null)"),
        ({"finish": float("nan")}, "finish must be text; got NaN, as pandas writes an empty cell"),
        (b'{"prompt": "a", "answer_text": "b", "reward": 1}',
         "completion is missing; the columns are prompt, answer_text, reward; data.columns={completion: NAME} names"),
        (b'{"ask": "a", "completion": "b", "reward": 1}',
         f"{NO_PROBLEM}, nor a prompt; the columns are ask, completion, reward; data.columns={{prompt: NAME}} names"),
        (b'{"prompt": "a", "completion": "b"}', "lacks logprobs, unlike the rows before; all rows or none"),
        ({"finish": "eos"}, "finish must be one of stop, length, stop_string; got 'eos'"),
        (b"{", "not valid JSON (Expecting property name enclosed in double quotes"),
        (b"[", "not valid JSON (Expecting value: line 2 column 1 (char 2)); the file must hold an object a line: "),
        (b"[" * 100_000, "not valid JSON (maximum recursion depth exceeded"),
        (b'{"problem_id": %b}' % (b"9" * 5000), "not valid JSON (Exceeds the limit"),
        (b"[1]", "expected a JSON object, found list; the file must hold an object a line: jq -c"),
        (b'{"completion": "\xff"}', "not UTF-8 text"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named_and_may_be_left_out(tmp_path: Path, changes: Any, message: str) -> None:
    store, source = Store(tmp_path / "store"), tmp_path / "log.jsonl"
    bad = changes if isinstance(changes, bytes) else json.dumps(GOOD | changes).encode()
    good = json.dumps(GOOD).encode()
    source.write_bytes(b"%b\n\n%b\n%b\n" % (good, bad, good))
    with pytest.raises(TOPRError) as error:
        import_rows(store, RolloutReader(str(source)))
    assert str(error.value).startswith(f"{source}:3: {message}")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "store").exists()
    reader = RolloutReader(str(source), skip_malformed=True)
    assert len([*reader]) == 2
    assert reader.skipped == [str(error.value)]


def test_rows_of_parquet_are_numbered_and_a_torn_file_is_one_line(tmp_path: Path) -> None:
    source = written(tmp_path, [GOOD, GOOD | {"reward": float("nan")}], "parquet")
    with pytest.raises(TOPRError, match=r"log\.parquet: row 2: reward must be a finite number; got nan$"):
        read(source)
    source.write_bytes(source.read_bytes()[:-9])
    with pytest.raises(TOPRError, match=r"log\.parquet: not a whole Parquet file \(") as error:
        read(source)
    assert "\n" not in str(error.value)
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.jsonl").write_text("\n\n")
    for name, message in (
        ("empty", "empty holds no .parquet, .jsonl or .json files"),
        ("blank.jsonl", "blank.jsonl holds no completions"),
        ("gone.jsonl", "gone.jsonl can't be read: No such file or directory"),
    ):
        with pytest.raises(TOPRError, match=f"{re.escape(message)}$"):
            read(tmp_path / name)


def test_other_columns_of_one_file_are_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was stored without rewards doesn't stand in for them; rows of two kinds of prompts go together."""
    monkeypatch.setattr(imported_log, "ROWS_PER_SHARD", 1)
    rows = [
        {"prompt": CHAT, "completion": "a", "one": 1, "two": 2},
        {"prompt": "?", "completion": "b", "one": 3, "two": 4},
    ]
    source, store = str(written(tmp_path, rows, "jsonl")), Store(tmp_path / "store")
    tables = [import_rows(store, RolloutReader(source, Columns(reward=name)))[0] for name in ("one", "two", None)]
    assert len({table.name for table in tables}) == 3
    assert tables[1].read().to_pydict()["reward"] == [2, 4]
    assert tables[0].read().to_pydict()["prompt"] == [None, "?"]


# ---- out of the store and in again: nothing is lost on the way


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
            row["finish"] = draw(st.sampled_from(FINISHES))
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
    return import_rows(store, RolloutReader(str(path)))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(files())
def test_import_then_export_gives_the_same_lines(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("round")
    store = Store(folder / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imported_log, "ROWS_PER_SHARD", 3)
        table, made = import_file(store, write_lines(folder / "a.jsonl", rows))
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
    table, made = import_file(store, write_lines(tmp_path / "a.jsonl", rows))
    found = table.read()
    texts = {"problem_id": "a/1", "question": None, "gold": None, "text": " 4.", "finish": "stop"}
    assert found.to_pylist()[0] == {**texts, "tokens": [3, 1], "sampler_logp": [float(np.float32(-0.1)), 0.0]}
    assert found.schema.field("tokens").type == pa.list_(pa.int32())
    assert found.schema.field("sampler_logp").type == pa.list_(pa.float32())
    assert table.name[:9] == "imported/"
    other, made_again = import_file(store, write_lines(tmp_path / "b.jsonl", rows))
    different, _ = import_file(store, write_lines(tmp_path / "c.jsonl", rows * 2))
    assert (made, made_again) == (2, 0)
    assert table.name == other.name != different.name


def test_parquet_has_each_completion_s_own_verdict(tmp_path: Path) -> None:
    store, said = Store(tmp_path / "store"), [["correct", "incorrect"], ["invalid", "correct"]]
    table = store.table("rollouts", {}, 2)
    table.fill(lambda shard: pa.table({"problem_id": ["p", "q"], "text": [f"{shard}a", f"{shard}b"]}))
    store.table("verdicts", {"rollouts": table.name}, 2).fill(lambda shard: pa.table({"verdict": said[shard]}))
    export_file(table, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert (found["completion"], found["verdict"]) == (["0a", "0b", "1a", "1b"], [*said[0], *said[1]])
    assert found["reward"] == [1, -1, -1, 1]


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


# ---- numbers beyond 64 bits, and files that unpack without end


@pytest.mark.parametrize("reward", [2**63, -(2**63) - 1, 10**38])
def test_rewards_and_log_probabilities_of_any_size_are_stored(tmp_path: Path, reward: int) -> None:
    row = {"prompt": "1", "completion": "2", "tokens": [3], "logprobs": [-(10**25)], "reward": reward}
    path = write_lines(tmp_path / "log.jsonl", [row])
    table, _ = import_rows(Store(tmp_path / "store"), RolloutReader(str(path)))
    stored = table.read().to_pylist()[0]
    assert stored["reward"] == float(reward)
    assert stored["sampler_logp"] == [np.float32(-1e25)]


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_small_parquet_that_unpacks_to_very_much_is_refused(tmp_path, monkeypatch, dictionary):
    """By its own account where it has one; repetitions of one text it does not count."""
    monkeypatch.setattr(sources, "MOST_UNPACKED", 1 << 20)
    monkeypatch.setattr(sources, "LARGEST_EXPANSION", 10)
    path = tmp_path / "log.parquet"
    rows = pa.table({"prompt": ["1"] * 500, "completion": ["x" * 10_000] * 500})
    pq.write_table(rows, path, compression="zstd", use_dictionary=dictionary)
    with pytest.raises(TOPRError, match=r"^.*log.parquet: its [\d,]+ bytes unpack to 0.0 GB or more; allowed are 10 "):
        list(RolloutReader(str(path)))
    monkeypatch.undo()
    assert len(list(RolloutReader(str(path)))) == 500


def test_a_parquet_for_which_there_is_no_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"prompt": ["1"], "completion": ["2"]}), path)

    def refuse(*_: object, **named: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 6000000000 failed")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(TOPRError, match=r"log\.parquet: it unpacks to more than there is memory"):
        list(RolloutReader(str(path)))
