"""Problems from folders and the hub: what is read, what is left out and counted, and each error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from topr_exp.config.data import AnswerFormat, Reward, Split
from topr_exp.data.benchmarks import ORIGINS, Benchmarks, Format, gsm8k_gold, math_gold
from topr_exp.data.problems import load_problems
from topr_exp.types import TOPRError

REAL = Path(os.environ.get("TOPR_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason=f"no folder {REAL} with gsm8k/ and math/ (set TOPR_SHARED_DATA)"
)


def settings(data_format: str, source: Path | str, **changes: Any) -> Benchmarks:
    values: dict[str, Any] = {
        "name": data_format,
        "format": Format[data_format],
        "source": str(source),
        "seed": 0,
        "train_problems": None,
        "test_problems": None,
        "test_split": Split.test,
        "completions": None,
        "n": 16,
        "eval_n": 8,
        "answer_format": AnswerFormat[data_format],
        "grader": None,
        "reward": Reward.pm1,
        "threshold": 1.0,
        "shots": 0,
        "fewshot_file": None,
        "template": None,
        "chat": False,
        "stop": None,
    }
    return Benchmarks(**(values | changes))


def gsm8k_rows(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"question": f"What is {k} + 1?", "answer": f"{k}+1\n#### {k + 1:,}"} for k in range(start, start + count)]


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl", gsm8k_rows(40, 2000))
    write(tmp_path / "test.jsonl", gsm8k_rows(20))
    return tmp_path


def test_a_gsm8k_folder(gsm8k: Path) -> None:
    sets = load_problems(settings("gsm8k", gsm8k))
    assert [len(sets.train), len(sets.test)] == [40, 20]
    assert sets.train[0].question == "What is 2000 + 1?"
    assert sets.train[0].answer == "2001"
    assert len({problem.id for problem in sets.train + sets.test}) == 60
    assert sets.train_report.read == sets.train_report.used == 40


def test_a_math_folder(tmp_path: Path) -> None:
    row = {"problem": "P1", "solution": r"so $\boxed{\frac{1}{2}}$.", "level": "Level 4", "type": "Algebra"}
    write(tmp_path / "train_a.jsonl", [row, row | {"problem": "P2", "level": "Level ?"}])
    write(tmp_path / "train_b.jsonl", [row | {"problem": "P3"}])
    write(tmp_path / "math500.jsonl", [{"problem": "P4", "answer": " (1,2) ", "subject": "Geometry", "level": 2},
                                         {"problem": "P5", "answer": 18}])  # fmt: skip
    sets = load_problems(settings("math", tmp_path))
    assert [problem.question for problem in sets.train] == ["P1", "P2", "P3"]
    assert [problem.level for problem in sets.train] == [4, None, 4]
    first, test = sets.train[0], sets.test[0]
    assert (first.answer, first.subject) == (r"\frac{1}{2}", "Algebra")
    assert (test.answer, test.subject, test.level) == ("(1,2)", "Geometry", 2)
    assert sets.test[1].answer == "18"


def test_training_problems_that_are_in_test_are_left_out_and_counted(gsm8k: Path) -> None:
    copy = {"question": "  what IS\n5  + 1?", "answer": "#### 6"}
    write(gsm8k / "train.jsonl", [*gsm8k_rows(40, 2000), copy])
    sets = load_problems(settings("gsm8k", gsm8k))
    assert len(sets.train) == 40
    assert (sets.train_report.read, sets.train_report.overlapping, sets.train_report.used) == (41, 1, 40)


def test_a_part_is_drawn_by_the_seed_and_keeps_order(gsm8k: Path) -> None:
    part = load_problems(settings("gsm8k", gsm8k, train_problems=10)).train
    again = load_problems(settings("gsm8k", gsm8k, train_problems=10)).train
    other = load_problems(settings("gsm8k", gsm8k, train_problems=10, seed=1)).train
    assert part == again != other
    assert [problem.id for problem in part] == sorted(problem.id for problem in part)
    assert len(part) == 10
    everything = load_problems(settings("gsm8k", gsm8k, train_problems=1000))
    assert everything.train_report.used == 40


def test_validation_problems_are_neither_trained_on_nor_tested_on(gsm8k: Path) -> None:
    changes = {"train_problems": 25, "test_problems": 10}
    sets = load_problems(settings("gsm8k", gsm8k, test_split=Split.validation, **changes))
    tested = load_problems(settings("gsm8k", gsm8k, **changes))
    assert sets.train == tested.train
    questions = [{problem.question for problem in part} for part in (sets.train, sets.test, tested.test)]
    assert [len(part) for part in questions] == [25, 10, 10]
    assert len(set.union(*questions)) == 45
    with pytest.raises(TOPRError, match=r"15 training problems are not trained on, data.test_problems=16"):
        load_problems(settings("gsm8k", gsm8k, test_split=Split.validation, train_problems=25, test_problems=16))
    with pytest.raises(ValueError, match="must be numbers where test_split is validation"):
        settings("gsm8k", gsm8k, test_split=Split.validation)


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_generated_validation_problems_are_in_no_other_set(name: str) -> None:
    changes = {"train_problems": 100, "test_problems": 50}
    sets = load_problems(settings(name, "embedded", test_split=Split.validation, **changes))
    tested = load_problems(settings(name, "embedded", **changes))
    assert sets.train == tested.train
    assert len({problem.question for problem in [*sets.train, *sets.test, *tested.test]}) == 200


def test_a_few_problems_without_answer_are_skipped_and_many_are_an_error(gsm8k: Path) -> None:
    bad = {"question": "Why?", "answer": "no number here"}
    write(gsm8k / "train.jsonl", [bad, *gsm8k_rows(39, 2000)])
    sets = load_problems(settings("gsm8k", gsm8k))
    assert (sets.train_report.unparsable, sets.train_report.used) == (1, 39)
    write(gsm8k / "train.jsonl", [*gsm8k_rows(38, 2000), bad, bad, bad])
    with pytest.raises(TOPRError, match=r"train.jsonl: 3 of 41 problems have no gsm8k answer .*train.jsonl:39$"):
        load_problems(settings("gsm8k", gsm8k))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question": "a", "answer": "#### 1"', r"train\.jsonl:3: not valid JSON"),
        (b"[1, 2]", r"train\.jsonl:3: expected a JSON object, found list"),
        (b'{"answer": "#### 1"}', r"train\.jsonl:3: the field question is missing"),
        (b'{"question": 5, "answer": "#### 1"}', r"train\.jsonl:3: the field question is not a text or empty"),
        (b'{"question": "\xff", "answer": "#### 1"}', r"train\.jsonl:3: not UTF-8 text"),
        (b"[" * 100_000, r"train\.jsonl:3: not valid JSON"),
    ],
)
def test_a_malformed_line_is_named(gsm8k: Path, line: bytes, message: str) -> None:
    good = json.dumps(gsm8k_rows(1)[0]).encode()
    (gsm8k / "train.jsonl").write_bytes(good + b"\n\n" + line + b"\n")
    with pytest.raises(TOPRError, match=message) as error:
        load_problems(settings("gsm8k", gsm8k))
    assert "\n" not in str(error.value)


def test_missing_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match="no such folder"):
        load_problems(settings("gsm8k", tmp_path / "nowhere"))
    with pytest.raises(TOPRError, match=r"no test\.jsonl there, the test problems of gsm8k"):
        load_problems(settings("gsm8k", tmp_path))
    with pytest.raises(TOPRError, match=r"no test\.jsonl or math500\.jsonl there"):
        load_problems(settings("math", tmp_path))
    write(tmp_path / "test.jsonl", gsm8k_rows(3))
    with pytest.raises(TOPRError, match=r"no train\.jsonl there"):
        load_problems(settings("gsm8k", tmp_path))
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(TOPRError, match=r"train\.jsonl holds no problems"):
        load_problems(settings("gsm8k", tmp_path))


def test_an_unreachable_hub_says_how_to_give_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(TOPRError, match=r"openai/gsm8k can't be read .*no route.*data\.source=FOLDER") as error:
        load_problems(settings("gsm8k", "hub"))
    assert "\n" not in str(error.value)


def test_the_hub_is_asked_for_fixed_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def answer(path: str, config: str | None, split: str, revision: str) -> list[dict[str, str]]:
        asked.append((path, config, split, revision))
        return [{"problem": f"{path} {config}", "solution": r"\boxed{1}"}]

    monkeypatch.setattr(datasets, "load_dataset", answer)
    sets = load_problems(settings("math", "hub"))
    assert (len(sets.train), len(sets.test)) == (7, 1)
    assert {path for path, *_ in asked} == {"EleutherAI/hendrycks_math", "HuggingFaceH4/MATH-500"}
    assert [split for path, _, split, _ in asked if path.startswith("Eleuther")] == ["train"] * 7
    assert all(len(revision) == 40 for *_, revision in asked)
    assert {origin.revision for origin in ORIGINS.values()} >= {revision for *_, revision in asked}


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("#### 5", "5"),
        ("x #### 1 #### -1,234.50 ", "-1234.50"),
        ("#### $12", "12"),
        ("5", None),
        ("#### five", None),
        ("#### ٣", None),
        ("####", None),
    ],
)
def test_gsm8k_golds(solution: str, gold: str | None) -> None:
    assert gsm8k_gold(solution) == gold


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        (r"$\boxed{1}$ or $\boxed{\frac{1}{\sqrt{2}}}$.", r"\frac{1}{\sqrt{2}}"),
        (r"$\fbox{x}$", "x"),
        (r"$\boxed 5$", "5"),
        (r"$\boxed{5$", None),
        (r"\boxed{}", None),
        ("no box", None),
        (r"\boxed", None),
    ],
)
def test_math_golds(solution: str, gold: str | None) -> None:
    assert math_gold(solution) == gold


@needs_real
@pytest.mark.parametrize(("name", "train", "test"), [("gsm8k", 7473, 1319), ("math", 4500, 500)])
def test_the_real_data_is_read_whole(name: str, train: int, test: int) -> None:
    sets = load_problems(settings(name, REAL / name))
    assert [len(sets.train), len(sets.test)] == [train, test]
    assert sets.train_report.unparsable == sets.test_report.unparsable == 0
    if name == "math":
        assert {problem.level for problem in sets.test} == {1, 2, 3, 4, 5}


@needs_real
def test_math500_golds_agree_with_their_solutions() -> None:
    for line in (REAL / "math" / "math500.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert math_gold(row["solution"]) == row["answer"]
