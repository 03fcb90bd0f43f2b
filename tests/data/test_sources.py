"""Problems from folders, the hub and the user's files: what is read, what is left out and counted, and each mistake."""

import codecs
import dataclasses
import os
import re
import shlex
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import (
    SHARED_DATA,
    append_text,
    column,
    config_of,
    document,
    each_row,
    lines_of,
    overrides,
    refused,
    sums,
    values_of,
    write_lines,
)
from tests.extending import SOURCE, project
from topr_exp.data import user_lines
from topr_exp.data.benchmarks import ORIGINS, gsm8k_gold, math_gold
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.data.user_lines import read_json_lines
from topr_exp.pipeline import run
from topr_exp.runs.problem_checks import problems_at_hand
from topr_exp.runs.tasks import count_training_problems
from topr_exp.types import ConfigError

needs_real = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason=f"no folder {SHARED_DATA} with gsm8k/ and math/ (set TOPR_SHARED_DATA)"
)
ALL_PROBLEMS = ("data.train_problems=null", "data.test_problems=null")
VALIDATION = ("data.test_split=validation", "data.train_problems=25")


def benchmark(name, source, *words):
    """Problems of a benchmark by these settings, whose own check would read the problems of the hub."""
    sizes = () if source == "embedded" else ALL_PROBLEMS
    data = config_of(f"data={name}", "data.source=hub", *sizes, *words).data
    return load_problems(dataclasses.replace(data, source=str(source)))


def questions_of(problems):
    return values_of(problems, "question")


def sizes(sets):
    """How many problems there are to train and to test on."""
    return len(sets.train), len(sets.test)


@pytest.fixture
def gsm8k(tmp_path):
    """A folder with 40 problems to train on and 20 to test on, in the form of GSM8K."""
    write_lines(tmp_path / "train.jsonl", sums(40, 2000, "#### {:,}"))
    write_lines(tmp_path / "test.jsonl", sums(20, 0, "#### {:,}"))
    return tmp_path


def test_a_file_of_problems_that_would_never_end_is_one_line(tmp_path, monkeypatch):
    """The settings of a run that somebody else packed name it."""
    os.mkfifo(tmp_path / "FIFO")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "line").write_bytes(bytes(101))
    monkeypatch.setattr(user_lines, "MAX_LINE_BYTES", 100)

    for name, fault in (("FIFO", "no regular file"), ("device", "no regular file"), ("line", "1: a line of over 100 ")):
        with refused(fault):
            list(read_json_lines(tmp_path / name))


# ---- the benchmarks


TRAIN_A = r"""
{"problem": "P1", "solution": "so $\\boxed{\\frac{1}{2}}$.", "level": "Level 4", "type": "Algebra"}
{"problem": "P2", "solution": "so $\\boxed{2}$.", "level": "Level ?", "type": "Algebra"}
"""
TRAIN_B = r"""
{"problem": "P3", "solution": "so $\\boxed{3}$.", "level": "Level 4", "type": "Algebra"}
"""
MATH500 = """
{"problem": "P4", "answer": " (1,2) ", "subject": "Geometry", "level": 2}
{"problem": "P5", "answer": 18}
"""


def test_a_folder_of_math_has_levels_and_subjects_and_is_tested_on_math500(tmp_path):
    for name, text in (("train_a", TRAIN_A), ("train_b", TRAIN_B), ("math500", MATH500)):
        (tmp_path / f"{name}.jsonl").write_text(text)

    sets = benchmark("math", tmp_path)

    assert questions_of(sets.train) == ["P1", "P2", "P3"]
    assert values_of(sets.train, "answer") == [r"\frac{1}{2}", "2", "3"]
    assert values_of(sets.train, "level") == [4, None, 4]
    assert values_of(sets.train, "subject") == ["Algebra"] * 3
    assert values_of(sets.test, "answer") == ["(1,2)", "18"]
    assert values_of(sets.test, "level") == [2, None]
    assert values_of(sets.test, "subject") == ["Geometry", None]


def test_training_problems_that_are_in_test_are_left_out_and_counted(gsm8k):
    append_text(gsm8k / "train.jsonl", '{"question": "  what IS\\n5  + 1?", "answer": "#### 6"}\n')

    sets = benchmark("gsm8k", gsm8k)

    assert (*sizes(sets), sets.train_report.overlapping) == (40, 20, 1)
    assert sets.train[0].question == "What is 2000 + 1?"
    assert sets.train[0].answer == "2001"
    assert len(set(values_of(sets.train + sets.test, "id"))) == 60


def test_a_part_is_drawn_by_the_seed_and_keeps_order(gsm8k):
    part = benchmark("gsm8k", gsm8k, "data.train_problems=10").train
    same_part = benchmark("gsm8k", gsm8k, "data.train_problems=10", "data.seed=0").train
    part_of_another_seed = benchmark("gsm8k", gsm8k, "data.train_problems=10", "data.seed=1").train

    assert len(part) == 10
    assert part == same_part != part_of_another_seed
    assert values_of(part, "id") == sorted(values_of(part, "id"))
    assert len(benchmark("gsm8k", gsm8k, "data.train_problems=1000").train) == 40


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_validation_problems_are_neither_trained_on_nor_tested_on(name, gsm8k):
    source = gsm8k if name == "gsm8k" else "embedded"

    validated = benchmark(name, source, *VALIDATION, "data.test_problems=10")
    tested = benchmark(name, source, "data.train_problems=25", "data.test_problems=10")

    assert validated.train == tested.train
    assert (*sizes(validated), len(tested.test)) == (25, 10, 10)
    problems = [*validated.train, *validated.test, *tested.test]
    assert len({*questions_of(problems)}) == 45


def test_validation_problems_that_are_not_there_are_one_line(gsm8k):
    with refused(r"15 training problems are not trained on, data.test_problems=16"):
        benchmark("gsm8k", gsm8k, *VALIDATION, "data.test_problems=16")


def test_a_few_problems_without_answer_are_skipped_and_many_are_an_error(gsm8k):
    unanswered = {"question": "Why?", "answer": "no number here"}
    write_lines(gsm8k / "train.jsonl", [unanswered, *sums(19, 2000, "#### {}")])
    sets = benchmark("gsm8k", gsm8k)
    assert sets.train_report.unparsable == 1
    assert len(sets.train) == 19

    write_lines(gsm8k / "train.jsonl", [*sums(38, 2000, "#### {}"), unanswered, unanswered, unanswered])
    with refused(r"train.jsonl: 3 of 41 problems have no gsm8k answer .*train.jsonl:39$"):
        benchmark("gsm8k", gsm8k)


# A benchmark and a folder below | train.jsonl there | what is said
MISSING = r"""
gsm8k | - | no train\.jsonl there
gsm8k | \n | train\.jsonl holds no problems
gsm8k | \n[1, 2]\n | train\.jsonl:2: expected a JSON object, found list
gsm8k | \n{"answer": "#### 1"}\n | train\.jsonl:2: there is no question, it has answer
gsm8k nowhere | - | no such folder
math | - | no test\.jsonl or math500\.jsonl there
"""


@each_row("words train message", MISSING)
def test_missing_files_and_fields_are_one_line(gsm8k, words, train, message):
    name, *folders = words.split()
    (gsm8k / "train.jsonl").unlink()
    if train != "-":
        (gsm8k / "train.jsonl").write_text(train.replace(r"\n", "\n"))
    if name == "math":
        (gsm8k / "test.jsonl").unlink()

    with refused(message):
        benchmark(name, gsm8k.joinpath(*folders))


def test_the_hub_is_asked_for_fixed_revisions(hub):
    requests = []

    def answer(path, config, split, revision):
        requests.append((path, split, revision))
        return [{"problem": f"{path} {config}", "solution": r"\boxed{1}"}]

    hub(answer)
    sets = benchmark("math", "hub")

    assert sizes(sets) == (7, 1)
    revisions = set(values_of(ORIGINS.values(), "revision"))
    assert set(map(len, revisions)) == {40}
    for path, split, revision in requests:
        assert (path, split) in {("EleutherAI/hendrycks_math", "train"), ("HuggingFaceH4/MATH-500", "test")}
        assert revision in revisions


def test_a_hub_that_is_out_of_reach_is_one_line_that_says_how_to_give_a_folder(hub):
    def fail(*_, **__):
        raise ConnectionError("no route\nto the hub")

    hub(fail)
    with refused(r"openai/gsm8k can't be read .*no route.*data\.source=FOLDER"):
        benchmark("gsm8k", "hub")


# The end of a solution | its gold answer, - for none
GSM8K_GOLDS = """
#### 5 | 5
x #### 1 #### -1,234.50 | -1234.50
#### $12 | 12
5 | -
#### five | -
#### ٣ | -
#### | -
"""
MATH_GOLDS = r"""
$\boxed{1}$ or $\boxed{\frac{1}{\sqrt{2}}}$. | \frac{1}{\sqrt{2}}
$\fbox{x}$ | x
$\boxed 5$ | 5
$\boxed{5$ | -
\boxed{} | -
no box | -
\boxed | -
"""


@each_row("solution gold", GSM8K_GOLDS)
def test_the_gold_of_a_solution_to_gsm8k_is_read(solution, gold):
    assert (gsm8k_gold(solution) or "-") == gold


@each_row("solution gold", MATH_GOLDS)
def test_the_gold_of_a_solution_to_math_is_read(solution, gold):
    assert (math_gold(solution) or "-") == gold


@needs_real
@pytest.mark.parametrize("name, train_count, test_count", [("gsm8k", 7473, 1319), ("math", 4500, 500)])
def test_the_real_data_is_read_whole(name, train_count, test_count):
    sets = benchmark(name, SHARED_DATA / name)

    assert sizes(sets) == (train_count, test_count)
    assert sets.train_report.unparsable == sets.test_report.unparsable == 0


@needs_real
def test_math500_says_what_its_solutions_say():
    rows = lines_of(SHARED_DATA / "math/math500.jsonl")

    assert set(values_of(benchmark("math", SHARED_DATA / "math").test, "level")) == {1, 2, 3, 4, 5}
    assert list(map(math_gold, column(rows, "solution"))) == column(rows, "answer")


# ---- the user's files


def load(path, *words):
    return load_problems(config_of("data=jsonl", f"data.path={path}", *ALL_PROBLEMS, *words).data)


def test_a_share_of_one_file_is_held_out_to_test_on(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", sums(200))

    sets = load(path, "data.test_share=0.1")

    assert sizes(sets) == (180, 20)
    ids = values_of(sets.train, "id")
    assert ids == sorted(ids)
    assert {*ids, *values_of(sets.test, "id")} == {f"jsonl/{row:06d}" for row in range(200)}
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())  # a byte order mark is passed over
    assert load(path, "data.test_share=0.1") == sets


def test_a_longer_file_moves_few_problems_wherever_it_grew(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", sums(200))
    test = load(path, "data.test_share=0.1").test

    write_lines(path, [*sums(20, 200), *sums(200)])
    test_of_longer_file = load(path, "data.test_share=0.1").test

    assert len({*questions_of(test)} & {*questions_of(test_of_longer_file)}) >= 17


def test_problems_with_one_question_differ_by_what_the_template_adds(tmp_path):
    rows = [{"question": "How many?", "context": f"There are {number}.", "answer": number} for number in range(20)]
    file = write_lines(tmp_path / "one.jsonl", rows)
    folder = write_lines(tmp_path / "two/train.jsonl", rows).parent
    write_lines(folder / "test.jsonl", rows[:3])
    template = "data.template='{context} {question}'"

    sets_of_file = load(file, "data.test_share=0.5", template)
    sets_of_folder = load(folder, template)

    assert (*sizes(sets_of_file), sets_of_file.train_report.overlapping) == (10, 10, 0)
    assert values_of(sets_of_folder.train, "answer") == [str(number) for number in range(3, 20)]
    config = config_of("data=jsonl", f"data.path={folder}", template)
    train = sets_of_folder.train
    assert count_training_problems(config, train, train, SimpleNamespace(problems=train[:5])).count == 5
    assert count_training_problems(config, train, [*train, train[0]], None).count == 18
    with refused("no problem is left; every training question is also a test question"):
        load(folder)


TRAIN_ROWS = """
{"Q": "Why?", "A": [1, 2], "key": "a", "hard": "Level 4", "kind": "Logic", "hint": "think", "n": 3}
{"Q": "Who?", "A": [1, 2], "key": "b", "hard": "?", "kind": "Logic", "hint": "think", "n": 3}
"""
TEST_ROW = '{"Q": "When?", "A": [1, 2], "key": "c", "hard": "?", "kind": "Logic", "hint": "think", "n": 3}'
NAMED_FIELDS = (
    "data.fields={question: Q, answer: A, id: key, level: hard, subject: kind}",
    "data.name=ours",
    "data.grader=final",
    "data.template='{hint}: {question}'",
)


def test_a_folder_with_both_splits_and_fields_by_their_names(tmp_path):
    (tmp_path / "train.jsonl").write_text(TRAIN_ROWS)
    (tmp_path / "test.jsonl").write_text(TEST_ROW)

    sets = load(tmp_path, *NAMED_FIELDS)

    assert values_of(sets.train + sets.test, "id") == ["a", "b", "c"]
    first, second = sets.train
    assert first.question == "Why?"
    assert first.answer == "[1, 2]"
    assert first.level == 4
    assert first.subject == "Logic"
    assert first.fields == {"hint": "think", "n": "3"}
    assert second.level is None
    prompter = build_prompter(config_of("data=jsonl", f"data.path={tmp_path}", *NAMED_FIELDS).data)
    assert prompter.render(first.question, fields=first.fields) == "think: Why?"


NINE = sums(9)
REFUSED_GOLD = (
    "grader gsm8k refuses the gold of 1 of 13 problems; the first is jsonl/train/000009, gold 'No. Yes.', tried as "
    "'The answer is No. Yes..' (at most 5 % may be refused); a gold is the answer alone; files in the form of GSM8K or "
    "MATH: data=gsm8k (or math) data.source=FOLDER"
)


UNANSWERED = {"question": "Why?", "answer": " "}
NO_ANSWER = "train.jsonl: 1 of 10 problems have no answer that can be read (at most 5 % may be left out); the first "
ROWS = {
    "nine": NINE,
    "nine of one id": sums(9, id="x"),
    "one of another id": sums(1, 50, id="y"),
    "ten, one unanswered": [*NINE, UNANSWERED],
    "ten, one of a wrong gold": [*NINE, UNANSWERED | {"answer": "No. Yes."}],
    "three others": sums(3, 50),
    "nine in a context": [row | {"context": "c"} for row in NINE],
    "one without": [UNANSWERED | {"answer": 2, "context": None}],
}
CONTEXT = "data.template='{context} {question}'"
NO_FIELD = "problem jsonl/test/000000 has no field context, which data.template shows as {context}"
# Rows to train on | to test on | a setting | what is said
UNFIT = f"""
nine | - | - | no test.jsonl there; data.test_share=0.1 tests on a tenth of the problems
- | nine | - | no train.jsonl there
nine | nine | data.test_share=0.1 | has a test.jsonl; leave data.test_share out
nine of one id | one of another id | data.fields.id=id | data=jsonl: 9 problems have the id x
ten, one unanswered | three others | - | {NO_ANSWER}
ten, one of a wrong gold | three others | data.grader=gsm8k | {REFUSED_GOLD}
nine in a context | one without | {CONTEXT} | {NO_FIELD}
"""


@each_row("train test setting message", UNFIT)
def test_files_and_settings_that_do_not_fit_are_one_line(tmp_path, train, test, setting, message):
    for name, rows in (("train", train), ("test", test)):
        if rows != "-":
            write_lines(tmp_path / f"{name}.jsonl", ROWS[rows])
    settings = [] if setting == "-" else [setting]

    with refused(re.escape(message), ConfigError):
        config_of("data=jsonl", f"data.path={tmp_path}", *settings, "dry_run=true")


NO_PROBLEMS = r"""
{"question": "Why?"} | there is no answer, it has question; data.fields.answer=NAME names the field
{"question": "Why \ud800?", "answer": 1} | holds half of a surrogate pair, which is no character
{"question": " ", "answer": 1} | the field question is empty
{"question": "Why?", "answer": NaN} | the gold answer NaN is no finite number
"""


@each_row("row message", NO_PROBLEMS)
def test_a_row_that_is_no_problem_is_named(tmp_path, row, message):
    write_lines(tmp_path / "train.jsonl", NINE)
    write_lines(tmp_path / "test.jsonl", [row])

    with refused(re.escape(f"test.jsonl:1: {message}"), ConfigError):
        config_of("data=jsonl", f"data.path={tmp_path}", "dry_run=true")


def test_a_grader_of_ones_own_says_what_is_right(working_folder):
    code = "def grade(completion, gold):\n    return 'correct' if f'<a>{gold}</a>' in completion else 0.25\n"
    (working_folder / "tags_grader.py").write_text(code)
    path = write_lines(working_folder / "mine.jsonl", sums(20))
    words = ["data=jsonl", f"data.path={path}", "data.test_share=0.2", "data.grader._target_=tags_grader.grade"]
    correct = "data.correct='<a>{answer}</a>'"

    with refused(r"20 of 20 problems; .* reward 0\.25 is below data\.threshold=1 \(.*; set data\.correct", ConfigError):
        config_of(*words)
    with refused(r"data\.shots=1: the data\.grader=tags_grader.grade examples hold 0", ConfigError):
        config_of(*words, "data.shots=1", correct)
    assert build_prompter(config_of(*words, correct).data).render("Q") == "Question: Q\nAnswer:"


FEW = "data.train_problems=4 data.test_problems=2 data.n=2 data.eval_n=1 sampler.max_new_tokens=8"


def test_the_command_of_the_document_runs_and_a_changed_file_ends_it(working_folder):
    path = write_lines(working_folder / "problems.jsonl", sums(40))
    section = document("problems.md").partition("## A file")[2]
    command = re.search(r"^python -m topr_exp model=llama3_8b (.*)$", section, re.MULTILINE)
    settings = [*shlex.split(command[1]), *overrides(working_folder / "out"), *FEW.split()]

    summary = run(config_of(*settings))
    assert summary["source"] == "problems.jsonl"
    assert summary["problems"] == {"train": 4, "test": 2}

    write_lines(path, sums(41))
    with refused(r"data\.path \(problems\.jsonl\) has changed since"):
        run(config_of(*settings))


# ---- docs/problems.md: what is refused in its source of problems, and what is counted


@pytest.fixture
def coins(tmp_path):
    with project(tmp_path, SOURCE):
        yield tmp_path / "coins.py"


def change(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    sys.modules.pop("coins", None)


def coins_config(*words):
    return config_of("--config-dir", "conf", "data=coins", "experiment=smoke", "cluster.threads=1", *words)


# What stands in the page's source | what stands there instead | what is said
FAULTS = """
if (first * more % 5 == 0) == (split == "test") | if split == "train" | the test split of data=coins holds no problems
id=f"coins/{first}+{more}" | id=f"{first}" | data=coins:
answer=str(first + more) | answer=first + more | id, question and answer must be texts and not empty; got
yield Problem( | yield dict( | data._target_=coins.Coins: problems('test') yields dict, not Problem
answer=str(first + more) | answer=str(1 / (first - 5)) | problems('test'): coins.py, line
== gold | == gold + '.' | the grader coins.grade refuses the gold of 24 of 24 problems; the first is coins/
numbers = re | 1 / 0; numbers = re | grader coins.grade raised ZeroDivisionError: division by zero
"""


@each_row("old new message", FAULTS)
def test_what_a_source_must_not_do_is_one_line(coins, old, new, message):
    change(coins, old, new)

    with refused(re.escape(message), ConfigError):
        coins_config()


def test_few_refused_golds_are_counted(coins, capsys):
    change(coins, "== gold else", "== gold != '5' else")
    coins_config(*ALL_PROBLEMS)
    line = "warning: data=coins: the grader coins.grade refuses the gold of 2 of 1444 problems; the first is coins/"
    assert line in capsys.readouterr().err.splitlines()[-1]

    change(coins, "def grade(", "Coins.solution = lambda self, problem: None\n\n\ndef grade(")
    coins_config(*ALL_PROBLEMS)
    assert "warning" not in capsys.readouterr().err


def test_problems_without_end_need_a_number_and_ones_elsewhere_are_not_checked_before(coins):
    change(coins, "    def problems", "    generated = True\n    at_hand = False\n\n    def problems")

    with refused(r"^data\.train_problems must be a number: Coins problems have no end; got null", ConfigError):
        coins_config("data.train_problems=null")
    data = coins_config("data.grader=gsm8k").data
    assert problems_at_hand(data) is None
    assert values_of(load_problems(data).train[:2], "id") == ["coins/2+2", "coins/2+3"]
