"""Logs of completions of other frameworks: each is read as what it is, and a malformed row is named."""

import json
import re
from collections import deque
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import column, each_row, lines_of, parted, read_json, refused, write_lines
from topr_exp.config.data import Columns
from topr_exp.imported.log import ROWS_PER_SHARD, import_rows
from topr_exp.imported.log_report import inspect_log
from topr_exp.imported.reader import RolloutReader, describe_columns
from topr_exp.imported.traces import trace_rows
from topr_exp.store import Store
from topr_exp.store.completions import PROMPTS, export_file

FORMATS = read_json(Path(__file__).with_name("formats.json"))  # by name a row, and what is read of it
TRACE = FORMATS["prime_rl_trace"]["row"]
CHAT = [{"role": "user", "content": "2 + 2?"}]


def write_log(folder, rows, kind="jsonl"):
    """A log of these rows; of JSON Lines, their text may be given."""
    path = folder / f"log.{kind}"
    if isinstance(rows, str):
        path.write_text(rows.lstrip("\n"))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    else:
        path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(map(json.dumps, rows)).encode())
    return path


def read(source, columns=None):
    return [*RolloutReader(str(source), columns)]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def filled(store, kind, key, *shards):
    """A table of a store with these columns in its shards."""
    table = store.table(kind, key, len(shards))
    table.fill(lambda index: pa.table(shards[index]))
    return table


def import_file(store, path, columns=None):
    return import_rows(store, RolloutReader(str(path), columns))[0]


# ---- formats


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_and_comes_back_from_the_store(tmp_path, store, name, kind):
    row = FORMATS[name]["row"]
    expected = FORMATS[name]["expected"]
    if kind != "jsonl":
        row.pop("info", None)  # an object without members, which Parquet can't hold
    source = write_log(tmp_path, [row, row], kind)

    assert read(source) == [expected, expected]

    table = import_file(store, source)
    for ending in ("jsonl", "parquet"):
        exported = tmp_path / f"exported.{ending}"
        export_file(table, exported)
        assert import_file(store, exported).read().to_pylist() == table.read().to_pylist()


def test_saved_data_sets_of_splits_are_told_apart_by_what_they_hold(tmp_path, store):
    for text in ("a", "b"):
        split = datasets.Dataset.from_list([{"prompt": "?", "completion": text, "reward": 1.0}])
        datasets.DatasetDict({"train": split}).save_to_disk(str(tmp_path / text))
        assert import_file(store, tmp_path / text).read()["text"].to_pylist() == [text]


def test_of_a_data_set_of_the_hub_the_train_split_is_read(hub):
    split = datasets.Dataset.from_list([FORMATS["verl"]["row"]])
    splits = datasets.DatasetDict({"test": split, "train": split})
    hub(lambda name: splits)

    assert [*RolloutReader("hub:some/log")] == [FORMATS["verl"]["expected"]]


LISTS = '{"prompt": "?", "completion": ["a", "b"], "tokens": [[1], [2, 3]], "reward": [0, 1], "finish": ["stop", null]}'
ROWS_OF_LISTS = """
{"prompt": "?", "completion": "a", "tokens": [1], "reward": 0, "finish": "stop"}
{"prompt": "?", "completion": "b", "tokens": [2, 3], "reward": 1}
"""


def test_a_prompt_with_lists_is_so_many_rows(tmp_path):
    assert read(write_log(tmp_path, LISTS)) == list(map(json.loads, ROWS_OF_LISTS.split("\n")[1:-1]))
    with refused(":1: tokens has 1 values for 2 completions$"):
        read(write_log(tmp_path, LISTS.replace("[[1], [2, 3]]", "[[1]]")))


MORE_NODES = """[
{"parent": 1, "message": {"role": "user", "content": "Sure?"}, "token_ids": [8], "mask": [false]},
{"parent": 2, "message": {"role": "assistant", "content": " Yes."}, "sampled": true,
 "token_ids": [2, 3], "mask": [false, true]},
{"parent": 0, "message": {"role": "assistant", "content": " No."}, "sampled": true},
{"parent": 0, "message": {"role": "user", "content": "Sure?"}}
]"""


def test_each_last_message_of_a_trace_is_a_completion_of_all_before_it():
    more_nodes = json.loads(MORE_NODES)
    messages = column(TRACE["nodes"] + more_nodes, "message")

    deep, shallow = trace_rows(TRACE | {"nodes": TRACE["nodes"] + more_nodes})

    assert deep["prompt"] == [*CHAT, messages[1], messages[2]]
    assert deep["prompt_tokens"] == [5, 6, 7, 1, 8, 2]
    assert deep["tokens"] == [3]
    assert shallow["prompt"] == CHAT
    assert shallow["completion"] == [messages[4]]
    assert "tokens" not in shallow


# ---- columns


TRL_ROW = {"step": 1, "prompt": "?", "completion": "x", "right": 1.0, "form": 0.5, "advantage": 0.0}
TRL_ROWS = [TRL_ROW, TRL_ROW | {"form": None}, TRL_ROW | {"step": 7}, TRL_ROW | {"step": 7, "form": None}]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rewards_that_are_added_up_and_prompts_of_several_steps(tmp_path, kind):
    """As TRL logs them: a function that has nothing to say gives NaN; a prompt makes a group each epoch."""
    source = write_log(tmp_path, TRL_ROWS, kind)

    rows = read(source, Columns(reward="right+form"))

    assert column(rows, "reward") == [1.5, 1.0, 1.5, 1.0]
    assert len(set(column(rows, "problem_id"))) == 2
    assert column(read(source, Columns(reward="advantage")), "problem_id") == column(rows, "problem_id")
    assert "reward" not in read(source)[0], "which of two columns it is, nobody knows"


def test_a_batch_that_trl_logs_at_two_steps_is_counted(tmp_path):
    rows = []
    for step, texts in enumerate(("ab", "ab", "ba", "c", "c")):
        rows += [TRL_ROW | {"step": step, "completion": text} for text in texts]

    description = inspect_log(str(write_log(tmp_path, rows)), [])

    assert description["repeats"] == "1 of the prompts, with the completions of an earlier step once more"


NO_SUMS = """
"a" | right+form | log.jsonl:2: data.columns.reward=right+form: 'a' is no number
Infinity | right+form | log.jsonl:2: right+form must be a finite number; got inf
1.0 | right+no | data.columns.reward=right+no: no such column; it has step, prompt,
"""


@each_row("reward columns message", NO_SUMS)
def test_rewards_that_can_not_be_added_up_are_named(tmp_path, reward, columns, message):
    source = write_log(tmp_path, [TRL_ROW, TRL_ROW | {"right": json.loads(reward)}])

    with refused(re.escape(message)):
        read(source, Columns(reward=columns))


def test_columns_by_the_settings_and_files_in_their_order(tmp_path):
    for number in (10, 2):
        row = {"prompt": "?", "answer": f"file {number}", "score": 1, "mine": 0.25}
        write_lines(tmp_path / f"{number}.jsonl", [row])

    reader = RolloutReader(str(tmp_path), Columns(completion="answer", reward="mine"))

    rows = [*reader]
    assert column(rows, "completion") == ["file 2", "file 10"]
    assert rows[0] == {"prompt": "?", "completion": "file 2", "reward": 0.25}
    assert reader.names.by_role["reward"] == "mine"
    assert reader.unread == {"score"}
    with refused(r"data\.columns\.gold=x: no such column; it has prompt, answer, score, mine$"):
        read(tmp_path, Columns(gold="x"))


# ---- malformed rows


GOOD = json.loads(
    '{"problem_id": "1", "prompt": "?", "completion": "x", "tokens": [1, 2], "logprobs": [-1, -2], "reward": 1}'
)
# What makes a good row a bad one | what is said of it
BAD_VALUES = """
{"reward": NaN} | reward must be a finite number; got nan
{"reward": "1"} | reward must be a finite number; got '1'
{"reward": null} | reward is empty (null, or pandas' NaN), unlike the rows before; all rows or none (data.skip_
{"reward": null, "score": 1} | reward is empty (null, or pandas' NaN), unlike the rows before; all rows or none (data
{"prompt": "", "problem_id": null} | problem_id is missing, and question and gold are not both there instead, nor a pr
{"question": "", "prompt": null, "problem_id": null} | problem_id is missing, and question and gold are not both there
{"prompt": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}]} | the prompt ends with the assis
{"logprobs": null} | logprobs is empty (null, or pandas' NaN), unlike the rows before; all rows or none
{"logprobs": [-1.0]} | 1 logprobs for 2 tokens
{"tokens": null} | logprobs without tokens: nothing says which tokens they belong to
{"logprobs": [-1, NaN]} | logprobs must be finite numbers of at most 0 (natural logarithms of probabilities)
{"logprobs": [-1, -1e300]} | logprobs must be finite numbers of at most 0 (natural logarithms of probabilities)
{"logprobs": [0.5, 0.9]} | logprobs must be finite numbers of at most 0 (natural logarithms of probabilities)
{"logprobs": -1} | logprobs must be finite numbers of at most 0 (natural logarithms of probabilities)
{"tokens": []} | tokens must be token ids from 0 to 2147483647, at least one; got []
{"tokens": [1, true]} | tokens must be token ids from 0 to 2147483647, at least one; got [1, True]
{"tokens": [1, -2]} | tokens must be token ids from 0 to 2147483647, at least one; got [1, -2]
{"tokens": [1, 2147483648]} | tokens must be token ids from 0 to 2147483647, at least one; got [1, 2147483648]
{"prompt_tokens": [true]} | prompt_tokens must be token ids from 0 to 2147483647, at least one; got [True]
{"prompt": "other"} | problem_id 1 has another prompt before
{"prompt": [{"role": "assistant", "content": "", "tool_calls": [1]}]} | a message calls a tool; completions with tool
{"completion": [{"role": "user", "content": "?"}]} | messages follow a prompt that is text
{"problem_id": null, "prompt": null, "reward": null, "question": "q"} | problem_id is missing, and question and gold are
{"completion": [{"role": "assistant", "content": [{"type": "image"}]}]} | a message must have a role and a content
{"completion": []} | completion must be text; got list
{"completion": 5} | completion must be text; got int
{"completion": "\\ud800"} | holds half of a surrogate pair, which is no character
{"completion": null, "tokens": null, "logprobs": null} | completion is missing; completion is empty (null)
{"finish": NaN} | finish must be text; got NaN, as pandas writes an empty cell
{"finish": "eos"} | finish must be one of stop, length, stop_string; got 'eos'
{"completion_mask": [true, false]} | completion_mask leaves out tokens of the completion; such rows are not
{"completion": ["x"], "tokens": [[1, 2]], "logprobs": [[-1, -2]], "reward": [1], "response_mask": [[1, 0]]} | response
"""
BAD_LINES = r"""
{"prompt": "a", "answer_text": "b", "reward": 1} | completion is missing; the columns are prompt,
{"ask": "a", "completion": "b", "reward": 1} | problem_id is missing, and question and gold are not
{"prompt": "a", "completion": "b"} | lacks logprobs, unlike the rows before; all rows or none
{"prompt": "a", "tokens": [1, 2], "completion": [TURN, TURN, TURN]} | the completion has several messages, and nothing
{"prompt": CHAT, "completion": REASONED} | the last message's reasoning stands apart from its text, and no token ids say
{ | not valid JSON (Expecting property name enclosed in double quotes
[ | not valid JSON (Expecting value: line 2 column 1 (char 2)); the file must hold an object a line:
DEEP | not valid JSON (maximum recursion depth exceeded
{"problem_id": LONG} | not valid JSON (Exceeds the limit
[1] | expected a JSON object, found list; the file must hold an object a line: jq -c
{"completion": "\xff"} | not UTF-8 text
{TRACE, "nodes": 5} | not a trace as verifiers writes it (TypeError:
{TRACE, "nodes": [{"parent": 0}]} | a message's parent does not stand before it
{TRACE, "nodes": [FIRST, {LAST, "message": {}}]} | a message must have a role and a content that is text
{TRACE, "nodes": [FIRST, {LAST, "logprobs": [-1.0]}]} | 1 logprobs for 2 tokens
"""
FIRST_NODE, LAST_NODE = TRACE["nodes"]
PLACEHOLDERS = {
    "TRACE": json.dumps(TRACE)[1:-1],
    "FIRST": json.dumps(FIRST_NODE),
    "LAST": json.dumps(LAST_NODE)[1:-1],  # whose values are replaced by later ones of the same name
    "CHAT": json.dumps(CHAT),
    "REASONED": '[{"role": "assistant", "content": " 4.", "reasoning": "Hm."}]',
    "TURN": '{"role": "assistant", "content": "?"}',
    "DEEP": "[" * 100_000,
    "LONG": "9" * 5000,
    r"\xff": "\xff",
}


def bad_cases():
    """Lines that are malformed, and what is said of each."""
    cases = []
    for line, message in parted(BAD_LINES):
        for placeholder, text in PLACEHOLDERS.items():
            line = line.replace(placeholder, text)
        cases.append((line.encode("latin-1"), message))
    for changes, message in parted(BAD_VALUES):
        cases.append((json.dumps(GOOD | json.loads(changes)).encode(), message))
    return cases


BAD_CASES = bad_cases()


@pytest.mark.parametrize("line, message", BAD_CASES, ids=range(len(BAD_CASES)))
def test_a_malformed_row_is_named_and_may_be_left_out(tmp_path, store, line, message):
    source = tmp_path / "log.jsonl"
    good_line = json.dumps(GOOD).encode()
    source.write_bytes(b"\n".join([good_line, b"", line, good_line, b"{}"]))
    named = f"{source}:3: {message}"

    with refused(f"^{re.escape(named)}"):
        import_rows(store, RolloutReader(str(source)))

    assert not store.root.exists()
    tolerant_reader = RolloutReader(str(source), skip_malformed=True)
    assert len([*tolerant_reader]) == 2
    assert f"; 2 malformed rows left out: {named}" in describe_columns(tolerant_reader)


LEFT_OUT = '{"problem_id": "1", "prompt": "?", "completion": ["a", "b"], "reward": [1, null]}\n'
GOOD_OF_SAME_PROBLEM = '{"problem_id": "1", "prompt": "other", "completion": "a", "reward": 1}\n'


def test_a_row_that_is_left_out_says_nothing_about_later_ones(tmp_path):
    source = write_log(tmp_path, LEFT_OUT + GOOD_OF_SAME_PROBLEM)

    rows = [*RolloutReader(str(source), skip_malformed=True)]

    assert column(rows, "prompt") == ["other"]


def test_a_log_whose_rows_are_all_left_out_is_one_line(tmp_path, store):
    source = write_log(tmp_path, LEFT_OUT)

    with refused(r"1: reward is empty .*, unlike the rows before"):
        import_rows(store, RolloutReader(str(source), skip_malformed=True))


def test_rows_of_parquet_are_numbered_and_a_torn_file_is_one_line(tmp_path):
    source = write_log(tmp_path, [GOOD, GOOD | {"reward": float("nan")}], "parquet")
    with refused(r"log\.parquet: row 2: reward must be a finite number; got nan$"):
        read(source)

    source.write_bytes(source.read_bytes()[:-9])
    with refused(r"log\.parquet: not a whole Parquet file \("):
        read(source)


WITHOUT_ROWS = """
empty | empty holds no .parquet, .jsonl or .json files
blank.jsonl | blank.jsonl holds no completions
gone.jsonl | gone.jsonl can't be read: No such file or directory
"""


@each_row("name message", WITHOUT_ROWS)
def test_a_log_without_rows_is_one_line(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.jsonl").write_text("\n\n")

    with refused(f"{re.escape(message)}$"):
        read(tmp_path / name)


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_small_parquet_that_unpacks_to_very_much_is_refused(tmp_path, dictionary):
    """By its own account where it has one; repetitions of one text it does not count."""
    path = tmp_path / "log.parquet"
    rows = pa.table({"prompt": ["1"] * 1000, "completion": ["x" * 2**16] * 1000})
    with pq.ParquetWriter(path, rows.schema, compression="zstd", use_dictionary=dictionary) as writer:
        for _ in range(17):
            writer.write_table(rows)

    with refused(r"^.*log.parquet: its [\d,]+ bytes unpack to 1.\d GB or more; allowed are 1000 "):
        deque(RolloutReader(str(path)), maxlen=0)


# ---- in the store and out of it


UNROUNDED = """
{"problem_id": "a/1", "completion": " 4.", "tokens": [3, 1], "logprobs": [-0.1, 0]}
{"question": "2+2?", "gold": "4", "completion": "", "tokens": [2], "logprobs": [-1e25]}
"""


def test_what_does_not_fit_into_float32_is_rounded(tmp_path, store):
    table = import_file(store, write_log(tmp_path, UNROUNDED))

    logprobs = table.read()["sampler_logp"].to_pylist()

    assert logprobs == [[np.float32(-0.1), 0.0], [np.float32(-1e25)]]


def test_the_same_content_is_one_table_whatever_its_file(tmp_path, store):
    table = import_file(store, write_lines(tmp_path / "a.jsonl", [GOOD]))
    copy = import_file(store, write_lines(tmp_path / "b.jsonl", [GOOD]))
    longer = import_file(store, write_lines(tmp_path / "c.jsonl", [GOOD, GOOD]))

    assert table.name == copy.name != longer.name


def test_import_then_export_gives_the_same_lines(tmp_path, store):
    """Over several shards; log-probabilities are float32, written with the fewest digits that tell them apart."""
    texts = ["", "a\nb", '"{}\\', "é\u2028", "\x00"]
    rows = []
    for index in range(ROWS_PER_SHARD + 3):
        logprob = float(str(np.float32(-index / 7)))
        row = {"problem_id": f"p{index % 9}", "completion": texts[index % 5]}
        rows.append(row | {"tokens": [index], "logprobs": [logprob]})
    first_export = tmp_path / "b.jsonl"
    second_export = tmp_path / "c.jsonl"

    table = import_file(store, write_lines(tmp_path / "a.jsonl", rows))
    export_file(table, first_export)
    export_file(import_file(store, first_export), second_export)

    assert table.shards == 2
    assert list(map(json.loads, first_export.open(encoding="utf-8"))) == rows
    assert first_export.read_bytes() == second_export.read_bytes()


TWO_REWARDS = """
{"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": "a", "one": 1, "two": 2}
{"prompt": "?", "completion": "b", "one": 3, "two": 1e38}
"""


def test_other_columns_of_one_file_are_another_table(tmp_path, store):
    """A table that was stored without rewards doesn't stand in for them; rows of two kinds of prompts go together."""
    source = write_log(tmp_path, TWO_REWARDS)

    first_table = import_file(store, source, Columns(reward="one"))
    second_table = import_file(store, source, Columns(reward="two"))
    table_without_reward = import_file(store, source)

    assert len({first_table.name, second_table.name, table_without_reward.name}) == 3
    assert first_table.read()["reward"].to_pylist() == [1, 3]
    assert second_table.read()["reward"].to_pylist() == [2, 1e38]
    assert first_table.read()["prompt"].to_pylist() == [None, "?"]


def sampled_shard(first_problem, texts):
    prompt = {"prompt": "?", "prompt_tokens": [1], "gold": "as sampled"}
    columns = {"problem_id": ["p", "q"], "problem": [first_problem, first_problem + 1], "text": texts}
    return pa.table(columns, metadata={PROMPTS: json.dumps([prompt, prompt])})


def test_parquet_has_the_verdict_of_each_completion_and_the_gold_that_it_is_by(tmp_path, store):
    shards = [sampled_shard(0, ["a", "b"]), sampled_shard(2, ["c", "d"])]
    verdicts = [{"verdict": ["correct", "incorrect"]}, {"verdict": ["invalid", "correct"]}]
    golds = ["a", "1", "2", "d"]
    table = filled(store, "rollouts", {}, *shards)
    filled(store, "verdicts", {"rollouts": table.name, "golds": golds}, *verdicts)

    export_file(table, tmp_path / "out.parquet")

    exported = pq.read_table(tmp_path / "out.parquet")
    assert exported["completion"].to_pylist() == ["a", "b", "c", "d"]
    assert exported["gold"].to_pylist() == golds
    assert exported["verdict"].to_pylist() == ["correct", "incorrect", "invalid", "correct"]
    assert exported["reward"].to_pylist() == [1, -1, -1, 1]


NOTED = """{
    "problem_id": ["p"], "text": ["x"], "tokens": [[4]], "sampler_logp": [[-0.125]],
    "top_logp": [[-0.1, -2.5]], "top_ids": [[4, 7]], "kept": [[4, 7]], "kept_sizes": [[2]]
}"""
EXPORTED = {"problem_id": "p", "completion": "x", "tokens": [4], "logprobs": [-0.125]}


def test_what_a_sampler_noted_beside_the_tokens_stays_in_the_store(tmp_path, store):
    """It is many numbers a token, and no import reads them."""
    table = filled(store, "rollouts", {}, json.loads(NOTED))

    export_file(table, tmp_path / "out.jsonl")
    export_file(table, tmp_path / "out.parquet")

    assert lines_of(tmp_path / "out.jsonl") == [EXPORTED]
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [EXPORTED]


def test_what_cannot_be_exported_is_one_line_and_leaves_no_file(tmp_path, store):
    target = tmp_path / "out.jsonl"
    verdicts = filled(store, "verdicts", {}, {"verdict": ["correct"]})
    without_problems = filled(store, "rollouts", {}, {"text": ["x"]})
    empty = store.table("rollouts", {"other": 1}, 1)

    with refused("no column text"):
        export_file(verdicts, target)
    with refused("no column problem_id"):
        export_file(without_problems, target)
    with refused("never made"):
        export_file(empty, target)
    assert not target.exists()

    target.write_text("precious")
    with refused(r"out\.jsonl exists"):
        export_file(without_problems, target)
    assert target.read_text() == "precious"
