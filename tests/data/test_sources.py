"""Problems from folders, the hub and the user's files: what is read, what is left out and counted, and each mistake."""

import codecs
import dataclasses
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SHARED_DATA, config_of, overrides, refused, write_lines
from tests.extending import SOURCE, project
from topr_exp.data.benchmarks import ORIGINS, gsm8k_gold, math_gold
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.pipeline import run
from topr_exp.runs import preflight
from topr_exp.runs.tasks import trained_on
from topr_exp.types import ConfigError, Problem, TOPRError

needs_real = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason=f"no folder {SHARED_DATA} with gsm8k/ and math/ (set TOPR_SHARED_DATA)"
)


def benchmark(name: str, source: Path | str, *more: str) -> ProblemSets:
    sizes = [] if source == "embedded" else ["data.train_problems=null", "data.test_problems=null"]
    data = config_of(f"data={name}", "data.source=hub", *sizes, *more).data  # of which no check reads problems
    return load_problems(dataclasses.replace(data, source=str(source)))


def gsm8k_rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is {k} + 1?", "answer": f"{k}+1\n#### {k + 1:,}"} for k in range(start, start + count)]


def rows(count: int, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"question": f"What is {k} + 1?", "answer": k + 1, **more} for k in range(start, start + count)]


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    write_lines(tmp_path / "train.jsonl", gsm8k_rows(40, 2000))
    write_lines(tmp_path / "test.jsonl", gsm8k_rows(20))
    return tmp_path


# ---- the benchmarks


def test_a_math_folder(tmp_path: Path) -> None:
    row = {"problem": "P1", "solution": r"so $\boxed{\frac{1}{2}}$.", "level": "Level 4", "type": "Algebra"}
    write_lines(tmp_path / "train_a.jsonl", [row, row | {"problem": "P2", "level": "Level ?"}])
    write_lines(tmp_path / "train_b.jsonl", [row | {"problem": "P3"}])
    write_lines(tmp_path / "math500.jsonl", [{"problem": "P4", "answer": " (1,2) ", "subject": "Geometry", "level": 2},
                                         {"problem": "P5", "answer": 18}])  # fmt: skip
    sets = benchmark("math", tmp_path)
    assert [(one.question, one.level) for one in sets.train] == [("P1", 4), ("P2", None), ("P3", 4)]
    assert (sets.train[0].answer, sets.train[0].subject) == (r"\frac{1}{2}", "Algebra")
    assert [(one.answer, one.subject, one.level) for one in sets.test] == [("(1,2)", "Geometry", 2), ("18", None, None)]


def test_training_problems_that_are_in_test_are_left_out_and_counted(gsm8k: Path) -> None:
    write_lines(gsm8k / "train.jsonl", [*gsm8k_rows(40, 2000), {"question": "  what IS\n5  + 1?", "answer": "#### 6"}])
    sets = benchmark("gsm8k", gsm8k)
    assert [len(sets.train), len(sets.test)] == [40, 20]
    assert (sets.train[0].question, sets.train[0].answer) == ("What is 2000 + 1?", "2001")
    assert len({problem.id for problem in sets.train + sets.test}) == 60
    assert sets.train_report.overlapping == 1
    with refused("15 training problems are not trained on"):  # nor is one that is in test taken to choose by
        benchmark("gsm8k", gsm8k, "data.test_split=validation", "data.train_problems=25", "data.test_problems=16")


def test_a_part_is_drawn_by_the_seed_and_keeps_order(gsm8k: Path) -> None:
    ten = "data.train_problems=10"
    part, again, other = (benchmark("gsm8k", gsm8k, ten, f"data.seed={seed}").train for seed in (0, 0, 1))
    assert part == again != other
    assert [problem.id for problem in part] == sorted(problem.id for problem in part)
    assert len(part) == 10
    assert len(benchmark("gsm8k", gsm8k, "data.train_problems=1000").train) == 40


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_validation_problems_are_neither_trained_on_nor_tested_on(name: str, gsm8k: Path) -> None:
    source, held_out = gsm8k if name == "gsm8k" else "embedded", "data.test_split=validation"
    sizes = ["data.train_problems=25", "data.test_problems=10"]
    sets, tested = (benchmark(name, source, *sizes, *more) for more in ([held_out], []))
    assert sets.train == tested.train
    questions = [{problem.question for problem in part} for part in (sets.train, sets.test, tested.test)]
    assert [len(part) for part in questions] == [25, 10, 10]
    assert len(set.union(*questions)) == 45
    if name == "gsm8k":
        with pytest.raises(TOPRError, match=r"15 training problems are not trained on, data.test_problems=16"):
            benchmark(name, source, held_out, "data.train_problems=25", "data.test_problems=16")
        with pytest.raises(ConfigError, match=r"data.test_problems must be a number where test_split is validation"):
            benchmark(name, source, held_out, "data.train_problems=25")


def test_a_few_problems_without_answer_are_skipped_and_many_are_an_error(gsm8k: Path) -> None:
    bad = {"question": "Why?", "answer": "no number here"}
    write_lines(gsm8k / "train.jsonl", [bad, *gsm8k_rows(19, 2000)])
    sets = benchmark("gsm8k", gsm8k)
    assert (sets.train_report.unparsable, len(sets.train)) == (1, 19)
    write_lines(gsm8k / "train.jsonl", [*gsm8k_rows(38, 2000), bad, bad, bad])
    with pytest.raises(TOPRError, match=r"train.jsonl: 3 of 41 problems have no gsm8k answer .*train.jsonl:39$"):
        benchmark("gsm8k", gsm8k)


def test_missing_folders_files_and_fields(tmp_path: Path) -> None:
    for name, message in (
        ("gsm8k", r"no test\.jsonl there, the test problems of gsm8k"),
        ("math", r"no test\.jsonl or math500\.jsonl there"),
    ):
        with pytest.raises(TOPRError, match=message):
            benchmark(name, tmp_path)
    with pytest.raises(TOPRError, match="no such folder"):
        benchmark("gsm8k", tmp_path / "nowhere")
    write_lines(tmp_path / "test.jsonl", gsm8k_rows(3))
    with pytest.raises(TOPRError, match=r"no train\.jsonl there"):
        benchmark("gsm8k", tmp_path)
    for text, message in (
        ("", r"train\.jsonl holds no problems"),
        ("\n[1, 2]\n", r"train\.jsonl:2: expected a JSON object, found list"),
        ('\n{"answer": "#### 1"}\n', r"train\.jsonl:2: there is no question, it has answer"),
    ):
        (tmp_path / "train.jsonl").write_text(text)
        with refused(message):
            benchmark("gsm8k", tmp_path)


def test_the_hub_is_asked_for_fixed_revisions_and_unreachable_says_how_to_give_a_folder(monkeypatch):
    import datasets

    asked = []

    def answer(path: str, config: str | None, split: str, revision: str) -> list[dict[str, str]]:
        asked.append((path, config, split, revision))
        if "gsm8k" in path:
            raise ConnectionError("no route\nto the hub")
        return [{"problem": f"{path} {config}", "solution": r"\boxed{1}"}]

    monkeypatch.setattr(datasets, "load_dataset", answer)
    sets = benchmark("math", "hub")
    assert (len(sets.train), len(sets.test)) == (7, 1)
    assert {(path, split) for path, _, split, _ in asked} == {
        ("EleutherAI/hendrycks_math", "train"), ("HuggingFaceH4/MATH-500", "test")
    }  # fmt: skip
    assert {revision for *_, revision in asked} <= {origin.revision for origin in ORIGINS.values()}
    assert all(len(origin.revision) == 40 for origin in ORIGINS.values())
    with refused(r"openai/gsm8k can't be read .*no route.*data\.source=FOLDER"):
        benchmark("gsm8k", "hub")


GSM8K = {"#### 5": "5", "x #### 1 #### -1,234.50 ": "-1234.50", "#### $12": "12"}
MATH = {r"$\boxed{1}$ or $\boxed{\frac{1}{\sqrt{2}}}$.": r"\frac{1}{\sqrt{2}}", r"$\fbox{x}$": "x", r"$\boxed 5$": "5"}


def test_golds() -> None:
    for parse, golds in ((gsm8k_gold, GSM8K), (math_gold, MATH)):
        assert {solution: parse(solution) for solution in golds} == golds
    assert {gsm8k_gold(solution) for solution in ("5", "#### five", "#### ٣", "####")} == {None}
    assert {math_gold(solution) for solution in (r"$\boxed{5$", r"\boxed{}", "no box", r"\boxed")} == {None}


@needs_real
@pytest.mark.parametrize(("name", "train", "test"), [("gsm8k", 7473, 1319), ("math", 4500, 500)])
def test_the_real_data_is_read_whole(name: str, train: int, test: int) -> None:
    sets = benchmark(name, SHARED_DATA / name)
    assert [len(sets.train), len(sets.test)] == [train, test]
    assert sets.train_report.unparsable == sets.test_report.unparsable == 0
    if name == "math":
        assert {problem.level for problem in sets.test} == {1, 2, 3, 4, 5}
        for line in (SHARED_DATA / "math" / "math500.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            assert math_gold(row["solution"]) == row["answer"]


# ---- the user's files


def load(path: Path, *more: str) -> ProblemSets:
    everything = ["data.train_problems=null", "data.test_problems=null"]
    return load_problems(config_of("data=jsonl", f"data.path={path}", *everything, *more).data)


def test_one_file_whose_share_is_held_out(tmp_path: Path) -> None:
    path, share = write_lines(tmp_path / "mine.jsonl", rows(200)), "data.test_share=0.1"
    sets = load(path, share)
    assert (len(sets.train), len(sets.test)) == (180, 20)
    assert sets.test[0].answer == str(int(sets.test[0].question.split()[2]) + 1)
    assert {one.id for one in sets.train + sets.test} == {f"jsonl/{k:06d}" for k in range(200)}
    assert [one.id for one in sets.train] == sorted(one.id for one in sets.train)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())  # a byte order mark is passed over
    assert load(path, share) == sets
    write_lines(path, [*rows(20, 200), *rows(200)])  # a longer file moves few problems, wherever it grew
    assert len({one.question for one in sets.test} & {one.question for one in load(path, share).test}) >= 17


def test_problems_with_one_question_differ_by_what_the_template_adds(tmp_path: Path) -> None:
    same = [{"question": "How many?", "context": f"There are {i}.", "answer": i} for i in range(20)]
    write_lines(tmp_path / "one.jsonl", same)
    folder = write_lines(tmp_path / "two" / "train.jsonl", same).parent
    write_lines(folder / "test.jsonl", same[:3])
    template = "data.template='{context} {question}'"
    parted = load(tmp_path / "one.jsonl", "data.test_share=0.5", template)
    assert [len(parted.train), len(parted.test), parted.train_report.overlapping] == [10, 10, 0]
    assert [int(one.answer) for one in parted.test] != [*range(10)]
    sets = load(folder, template)
    assert [int(one.answer) for one in sets.train] == [*range(3, 20)]
    with refused("no problem is left; every training question is also a test question"):
        load(folder)
    config = config_of("data=jsonl", f"data.path={folder}", template)
    assert trained_on(config, sets.train, sets.train, None).count == 17


def test_a_folder_with_both_splits_and_fields_by_their_names(tmp_path: Path) -> None:
    line = {"Q": "Why?", "A": [1, 2], "key": "a", "hard": "Level 4", "kind": "Logic", "hint": "think", "n": 3}
    write_lines(tmp_path / "train.jsonl", [line, line | {"Q": "Who?", "key": "b", "hard": "?"}])
    write_lines(tmp_path / "test.jsonl", [line | {"Q": "When?", "key": "c"}])
    names = ["fields={question: Q, answer: A, id: key, level: hard, subject: kind}", "name=ours", "grader=final"]
    names = [f"data.{name}" for name in names]
    sets = load(tmp_path, *names)
    assert [one.id for one in sets.train + sets.test] == ["a", "b", "c"]
    one = sets.train[0]
    assert (one.question, one.answer, one.level, one.subject) == ("Why?", "[1, 2]", 4, "Logic")
    assert one.fields == {"hint": "think", "n": "3"}
    assert sets.train[1].level is None
    data = config_of("data=jsonl", f"data.path={tmp_path}", *names, "data.template='{hint}: {question}'").data
    assert build_prompter(data).render(one.question, fields=one.fields) == "think: Why?"


NINE = {"train": rows(9)}


def odd(**changes: Any) -> dict[str, Any]:
    """Sound problems to train on, and one to test on that is not."""
    return {**NINE, "test": [{"question": "Why?", "answer": 1, **changes}]}


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        (NINE, "", "no test.jsonl there; data.test_share=0.1 tests on a tenth of the problems"),
        (NINE, "test_share=0.01", r"train.jsonl: of its 9 problems data.test_share=0.01 leaves none to test on"),
        ({"train": []}, "test_share=0.2", "train.jsonl holds no problems"),
        ({"test": rows(9)}, "", "no train.jsonl there"),
        ({**NINE, "test": rows(3, 50)}, "test_share=0.1", "has a test.jsonl; leave data.test_share out"),
        ({**NINE, "test": rows(9)}, "", "no problem is left; every training question is also"),
        ({**NINE, "test": [{"question": "Why?"}]}, "",
         "test.jsonl:1: there is no answer, it has question; data.fields.answer=NAME names the field"),
        ({"train": rows(9, id="x"), "test": rows(1, 50, id="y")}, "fields.id=id",
         "data=jsonl: 9 problems have the id x"),
        ({"train": rows(9, id="x"), "test": rows(3, 50, id="")}, "fields.id=id", "test.jsonl:1: the field id is empty"),
        ({"train": [*rows(9, 20), *[{"question": "Why?", "answer": " "}] * 2], "test": rows(3)}, "",
         "train.jsonl: 2 of 11 problems have no answer that can be read (at most 5 % may be left out); the first is "),
        ({"train": [*rows(9, 20), {"question": "Why?", "answer": "No. Yes."}], "test": rows(3)}, "grader=gsm8k",
         "grader gsm8k refuses the gold of 1 of 13 problems; the first is jsonl/train/000009, gold 'No. Yes.', tried "
         "as 'The answer is No. Yes..' (at most 5 % may be refused); a gold is the answer alone; files in the form of "
         "GSM8K or MATH: data=gsm8k (or math) data.source=FOLDER"),
        (odd(question="Why \ud800?"), "", "test.jsonl:1: holds half of a surrogate pair, which is no character"),
        (odd(more=["\udfff"]), "", "test.jsonl:1: holds half of a surrogate pair, which is no character"),
        (odd(question=" "), "", "test.jsonl:1: the field question is empty"),
        (odd(answer=math.nan), "", "test.jsonl:1: the gold answer NaN is no finite number"),
        (odd(answer="[2, NaN]"), "", "test.jsonl:1: the gold answer [2, NaN] is no finite number"),
        (odd(answer="1e999"), "", "test.jsonl:1: the gold answer 1e999 is no finite number"),
        (odd(answer=math.inf), "grader=math", "test.jsonl:1: the gold answer Infinity is no finite number"),
        (odd(), "grader._target_=nomodule.grade", "grader nomodule.grade cannot be loaded"),
        (odd(), "grader=maths", "data.grader must be gsm8k, lenient, math, final or your own"),
    ],
)  # fmt: skip
def test_mistakes(files: dict[str, Any], settings: str, message: str, tmp_path: Path) -> None:
    for name, lines in files.items():
        write_lines(tmp_path / f"{name}.jsonl", lines)
    more = [f"data.{settings}"] if settings else []
    with refused(re.escape(message), ConfigError):
        config_of("data=jsonl", f"data.path={tmp_path}", *more, "dry_run=true")


def test_a_gold_may_have_any_number_of_digits(tmp_path: Path) -> None:
    digits = "9" * 400
    golds = [10**400, -(10**400), digits, f"-{digits}", f"{digits}.5", f"({digits}, 1)"]
    write_lines(tmp_path / "train.jsonl", [{"question": f"{i}?", "answer": gold} for i, gold in enumerate(golds)])
    write_lines(tmp_path / "test.jsonl", rows(1, 50))
    problems = load_problems(config_of("data=jsonl", f"data.path={tmp_path}", "dry_run=true").data).train
    assert [problem.answer for problem in problems] == [str(gold) for gold in golds]


def test_a_grader_of_ones_own_says_what_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def grade(completion, gold):\n    return 'correct' if f'<a>{gold}</a>' in completion else 'incorrect'\n"
    (tmp_path / "tags_grader.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    path = write_lines(tmp_path / "mine.jsonl", rows(20))
    with pytest.raises(ConfigError, match=r"it is one file, with nothing to test on; data\.test_share=0\.1 tests on"):
        config_of("data=jsonl", f"data.path={path}")
    settings = ["data=jsonl", f"data.path={path}", "data.test_share=0.2", "data.grader._target_=tags_grader.grade"]
    with pytest.raises(ConfigError, match=r"the gold of 20 of 20 problems; .* tried as '1' \(.*; set data\.correct to"):
        config_of(*settings)
    config = config_of(*settings, "data.correct='<a>{answer}</a>'")
    assert build_prompter(config.data).render("Q") == "Question: Q\nAnswer:"
    with pytest.raises(ConfigError, match=r"data\.shots=1: the data\.grader=tags_grader.grade examples hold 0"):
        config_of(*settings, "data.shots=1", "data.correct='<a>{answer}</a>'")


def test_the_documents_command_and_a_changed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_lines(tmp_path / "problems.jsonl", rows(40))
    text = (ROOT / "docs" / "problems.md").read_text().partition("## A file")[2]
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("python -m topr_exp")))[3:]
    assert words.pop(0) == "model=llama3_8b"
    settings = [*words, *overrides(tmp_path / "out"), "data.test_problems=4"]
    summary = run(config_of(*settings))
    assert (summary["source"], summary["problems"]) == ("problems.jsonl", {"train": 16, "test": 4})
    write_lines(path, rows(41))
    with pytest.raises(TOPRError, match=r"data\.path \(problems\.jsonl\) has changed since"):
        run(config_of(*settings))


# ---- docs/problems.md: what is refused in its source of problems, and what is counted


@pytest.fixture
def coins(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, SOURCE):
        yield tmp_path


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "coins.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    sys.modules.pop("coins", None)


def settings(*more: str) -> list[str]:
    return ["--config-dir", "conf", "data=coins", "experiment=smoke", "cluster.threads=1", *more]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('if (first * more % 5 == 0) == (split == "test")', 'if split == "train"',
         "the test split of data=coins holds no problems"),
        ('id=f"coins/{first}+{more}"', 'id=f"{first}"', "data=coins: "),
        ("answer=str(first + more)", "answer=first + more", "id, question and answer must be texts and not empty; got"),
        ("answer=str(first + more)", "answer='\\ud800'", "half of a surrogate pair is no character; got"),
        ("yield Problem(", "yield dict(", "data._target_=coins.Coins: problems('test') yields dict, not Problem"),
        ("answer=str(first + more)", "answer=str(1 / (first - 5))",
         "problems('test') raised ZeroDivisionError: division by zero (coins.py, line "),
        ("== gold", "== gold + '.'",
         "data=coins: the grader coins.grade refuses the gold of 24 of 24 problems; the first is coins/"),
        ("numbers = re", "1 / 0; numbers = re", "grader coins.grade raised ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_what_a_source_must_not_do_is_one_line(coins: Path, old: str, new: str, message: str) -> None:
    change(coins, old, new)
    with refused(re.escape(message), ConfigError):
        config_of(*settings())


def test_few_refused_golds_are_counted(coins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(coins, "== gold else", "== gold != '5' else")
    config_of(*settings("data.train_problems=null", "data.test_problems=null"))
    told = "warning: data=coins: the grader coins.grade refuses the gold of 2 of 1444 problems; the first is coins/"
    assert f"\n{told}" in f"\n{capsys.readouterr().err}"
    change(coins, "def grade(", "Coins.solution = lambda self, problem: None\n\n\ndef grade(")
    config_of(*settings("data.train_problems=null", "data.test_problems=null"))
    assert "warning" not in capsys.readouterr().err


def test_problems_without_end_and_ones_that_are_elsewhere(coins: Path) -> None:
    change(coins, "    def problems", "    generated = True\n    at_hand = False\n\n    def problems")
    without_end = r"^data\.train_problems must be a number: Coins problems have no end; got null"
    with pytest.raises(ConfigError, match=without_end):
        config_of(*settings("data.train_problems=null"))
    config = config_of(*settings("data.grader=gsm8k"))
    assert preflight.problems_at_hand(config.data) is None
    assert [one.id for one in load_problems(config.data).train[:2]] == ["coins/2+2", "coins/2+3"]


def test_the_prompt_may_name_further_fields(coins: Path) -> None:
    prompter = build_prompter(config_of(*settings(r"data.template='{hint} {question} \boxed{x}'")).data)
    problem = Problem("a", "What is {hint}?", "1", fields={"hint": "{question}"})
    assert prompter.render(problem.question, fields=problem.fields) == r"{question} What is {hint}? \boxed{x}"
