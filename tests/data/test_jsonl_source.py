"""`data=jsonl`: problems of the user's own without code, and each mistake in one line before anything starts."""

from __future__ import annotations

import codecs
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of, overrides
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.pipeline import run
from topr_exp.types import ConfigError, TOPRError


def rows(count: int, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"question": f"What is {k} + 1?", "answer": k + 1, **more} for k in range(start, start + count)]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def load(path: Path, *more: str) -> ProblemSets:
    return load_problems(config_of("data=jsonl", f"data.path={path}", *more).data)


def test_one_file_whose_share_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(200))
    sets = load(path, "data.test_share=0.1", "data.train_problems=null", "data.test_problems=null")
    assert (len(sets.train), len(sets.test)) == (180, 20)
    assert sets.test[0].answer == str(int(sets.test[0].question.split()[2]) + 1)
    assert {one.id for one in sets.train + sets.test} == {f"jsonl/{k:06d}" for k in range(200)}
    assert [one.id for one in sets.train] == sorted(one.id for one in sets.train)
    write(path, rows(220))  # a longer file moves few problems
    longer = load(path, "data.test_share=0.1", "data.train_problems=null", "data.test_problems=null")
    assert len({one.id for one in sets.test} & {one.id for one in longer.test}) >= 17


def test_a_folder_with_both_splits_and_fields_by_their_names(tmp_path: Path) -> None:
    line = {"Q": "Why?", "A": [1, 2], "key": "a", "hard": "Level 4", "kind": "Logic", "hint": "think", "n": 3}
    write(tmp_path / "train.jsonl", [line, line | {"Q": "Who?", "key": "b", "hard": "?"}])
    write(tmp_path / "test.jsonl", [line | {"Q": "When?", "key": "c"}])
    names = ["question=Q", "answer=A", "id=key", "level=hard", "subject=kind", "name=ours", "grader=final"]
    sets = load(tmp_path, *(f"data.{name}" for name in names))
    assert [one.id for one in sets.train + sets.test] == ["a", "b", "c"]
    one = sets.train[0]
    assert (one.question, one.answer, one.level, one.subject) == ("Why?", "[1, 2]", 4, "Logic")
    assert one.fields == {"hint": "think", "n": "3"}
    assert sets.train[1].level is None
    data = config_of("data=jsonl", f"data.path={tmp_path}", *(f"data.{name}" for name in names),
                     "data.template='{hint}: {question}'").data  # fmt: skip
    assert build_prompter(data).render(one.question, fields=one.fields) == "think: Why?"


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ({"train": rows(9)}, [], "no test.jsonl there; data.test_share=0.1 tests on a tenth of the problems"),
        ({"train": rows(9)}, ["test_share=0.01"], "train.jsonl, 0.01 of it to test on holds no problems"),
        ({"test": rows(9)}, [], "no train.jsonl there"),
        ({"train": rows(9), "test": rows(3, 50)}, ["test_share=0.1"], "has a test.jsonl; leave data.test_share out"),
        ({"train": rows(9), "test": rows(9)}, [], "no problem is left; every training question is also"),
        ({"train": rows(9), "test": [{"question": "Why?"}]}, [],
         "test.jsonl:1: there is no answer, it has question; data.answer=NAME names the field"),
        ({"train": rows(9, id="x"), "test": rows(1, 50, id="y")}, ["id=id"], "data=jsonl: 9 problems have the id x"),
        ({"train": [*rows(9, 20), *[{"question": "Why?", "answer": " "}] * 2], "test": rows(3)}, [],
         "train.jsonl: 2 of 11 problems have no answer that can be read (at most 5 % may be left out); the first is "),
        ({"train": [*rows(9, 20), {"question": "Why?", "answer": "No. Yes."}], "test": rows(3)}, ["grader=gsm8k"],
         "grader gsm8k refuses the gold of 1 of 13 problems; the first is jsonl/train/000009, gold 'No. Yes.', tried "
         "as 'The answer is No. Yes..' (at most 5 % may be refused)"),
        ({"train": rows(9), "test": [{"question": "Why \ud800?", "answer": 1}]}, [],
         "test.jsonl:1: holds half of a surrogate pair, which is no character"),
        ({"train": rows(9), "test": [{"question": "Why?", "answer": 1, "more": ["\udfff"]}]}, [],
         "test.jsonl:1: holds half of a surrogate pair, which is no character"),
        ({"train": rows(9), "test": [*rows(1, 50), {"question": " ", "answer": 1}]}, [],
         "test.jsonl:2: the field question is empty"),
        ({"train": rows(9, id="x"), "test": rows(3, 50, id="")}, ["id=id"], "test.jsonl:1: the field id is empty"),
        ({"train": rows(9), "test": [{"question": "Why?", "answer": float("nan")}]}, [],
         "test.jsonl:1: the gold answer NaN is no finite number"),
        ({"train": rows(9), "test": [{"question": "Why?", "answer": float("inf")}]}, ["grader=math"],
         "test.jsonl:1: the gold answer Infinity is no finite number"),
        ({"train": rows(9), "test": [{"question": "Why?", "answer": "[2, NaN]"}]}, [],
         "test.jsonl:1: the gold answer [2, NaN] is no finite number"),
        ({"train": rows(9), "test": [{"question": "Why?", "answer": "1e999"}]}, [],
         "test.jsonl:1: the gold answer 1e999 is no finite number"),
        ({"train": rows(9), "test": rows(3, 50)}, ["grader=nomodule:grade"], "grader nomodule:grade cannot be loaded"),
        ({"train": rows(9), "test": rows(3, 50)}, ["grader=maths"], "grader must be one of gsm8k, math, final"),
    ],
)  # fmt: skip
def test_mistakes(files: dict[str, Any], settings: list[str], message: str, tmp_path: Path) -> None:
    for name, lines in files.items():
        write(tmp_path / f"{name}.jsonl", lines)
    with pytest.raises(ConfigError) as caught:
        config_of("data=jsonl", f"data.path={tmp_path}", *(f"data.{each}" for each in settings), "dry_run=true")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(20))
    plain = load(path, "data.test_share=0.2")
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert load(path, "data.test_share=0.2") == plain


def test_one_file_needs_something_to_test_on(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(9))
    with pytest.raises(ConfigError, match=r"it is one file, with nothing to test on; data\.test_share=0\.1 tests on"):
        config_of("data=jsonl", f"data.path={path}")


def test_a_grader_of_ones_own_says_what_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def grade(completion, gold):\n    return 'correct' if f'<a>{gold}</a>' in completion else 'incorrect'\n"
    (tmp_path / "tags_grader.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path / "mine.jsonl", rows(20))
    settings = ["data=jsonl", f"data.path={path}", "data.test_share=0.2", "data.grader=tags_grader:grade"]
    with pytest.raises(ConfigError, match=r"refuses the gold of 20 of 20 problems; .* gold '1', tried as '1' \(at mo"):
        config_of(*settings)
    config = config_of(*settings, "data.correct='<a>{answer}</a>'")
    assert build_prompter(config.data).render("Q") == "Question: Q\nAnswer:"
    with pytest.raises(ConfigError, match=r"data\.shots=1: the data\.grader=tags_grader:grade examples hold 0"):
        config_of(*settings, "data.shots=1", "data.correct='<a>{answer}</a>'")


def test_the_documents_command_and_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "problems.jsonl", rows(40))
    text = (ROOT / "docs" / "using.md").read_text().partition("## Your own problems")[2]
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("python -m topr_exp")))[3:]
    assert words.pop(0) == "model=llama3_8b"
    settings = [*words, *overrides(tmp_path / "out"), "data.test_problems=4"]
    config = config_of(*settings)
    summary = run(config)
    assert (summary["source"], summary["problems"]) == ("problems.jsonl", {"train": 16, "test": 4})
    write(path, rows(41))
    with pytest.raises(TOPRError, match=r"data\.path \(problems\.jsonl\) has changed since"):
        run(config_of(*settings))
