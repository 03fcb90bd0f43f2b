"""A user's own function as a grader: found by name, run in the workers, its mistakes reported instead of scored."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from topr_exp.evaluation.statistics import measure, summarise, without_majorities
from topr_exp.grading import Grader, Outcome, check_name
from topr_exp.grading.verdicts import Verdicts, grade
from topr_exp.types import ConfigError, Problem, TOPRError


@pytest.fixture(autouse=True)
def own_graders_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's module beside the command is; the workers get this process's path."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_a_function_by_name() -> None:
    with Grader("own_graders:contains", workers=2, deadline=60) as grader:
        pairs = [("a 5", "5"), ("a 6", "5"), ("", "5")] * 20
        assert [o.verdict for o in grader.grade(pairs)] == ["correct", "incorrect", "incorrect"] * 20
        assert grader.counters["user"] == 60


def test_a_function_may_tell_the_answer() -> None:
    with Grader("own_graders:with_answer", workers=1, deadline=60) as grader:
        outcomes = list(grader.grade([("a 5", "5"), ("", "5")]))
        assert outcomes == [Outcome("correct", "5", "user"), Outcome("invalid", None, "user")]
        assert grader.classes(["5", "5.0", "x", None]) == [0, 0, 1, -1]


def test_correct_completions_without_an_answer_count_as_one_answer() -> None:
    """Else maj@K of a grader that gives verdicts alone would have correct completions that vote for nothing."""
    with Grader("own_graders:contains", workers=1, deadline=60) as grader:
        problem = np.array([0, 0, 0, 1, 1])
        problems = [Problem("a", "?", "5"), Problem("b", "?", "6")]
        graded = grade(grader, ["a 5", "b 5", "c", "d", "6"], problem, problems)
    assert graded["class"].to_pylist() == [0, 0, -1, -1, 0]
    verdicts = np.array([[0, 0, 1]])
    measure(verdicts, np.array([[0, 0, -1]]))


def test_without_answers_there_is_no_majority() -> None:
    """Incorrect completions that can't be told apart would never outvote a correct one: maj@K would be pass@K."""
    problem, problems = np.array([0, 0, 1, 1]), [Problem("a", "?", "5"), Problem("b", "?", "6")]
    for name, known in (("own_graders:contains", False), ("own_graders:with_answer", True)):
        with Grader(name, workers=1, deadline=60) as grader:
            assert Verdicts("", grade(grader, ["a 5", "c", "d", "6"], problem, problems)).votes_known == known
    codes, classes = np.array([[0, 1], [1, 0]]), np.array([[0, 1], [0, 1]])
    figures = summarise(codes, classes, levels=[1, 2])
    left = without_majorities(figures)
    assert {"maj@2", "maj@2_se"} == figures.keys() - left.keys()
    assert left["maj@k"] == {}
    assert left["levels"]["1"].keys() == figures["levels"]["1"].keys() - {"maj@2", "maj@2_se"}


def test_it_has_the_deadline_and_is_replaced() -> None:
    with Grader("own_graders:endless", workers=1, deadline=3.0) as grader:
        outcomes = list(grader.grade([("go", ""), ("wait", ""), ("go", "")]))
        assert [(o.verdict, o.path) for o in outcomes] == [
            ("correct", "user"),
            ("incorrect", "timeout"),
            ("correct", "user"),
        ]


@pytest.mark.parametrize("name", ["dying", "greedy"])
def test_a_worker_that_ends_is_replaced(name: str) -> None:
    with Grader(f"own_graders:{name}", workers=1, deadline=60) as grader:
        assert [(o.verdict, o.path) for o in grader.grade([("", "")] * 3)] == [("incorrect", "died")] * 3


def test_a_worker_that_has_grown_is_replaced_before_it_is_out_of_memory() -> None:
    """Else what one completion took would be missing for the next."""
    with Grader("own_graders:swelling", workers=1, deadline=60) as grader:
        seen = set()
        for outcome in grader.grade([("", "")] * 3):
            assert (outcome.verdict, outcome.path) == ("correct", "user")
            seen |= set(grader.worker_pids())
    assert len(seen) > 2  # the server and more than one worker


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raising", r"grader own_graders:raising raised ValueError: no idea \(completion 1\)$"),
        ("wrong_type", r"grader own_graders:wrong_type must return one of correct, incorrect, invalid.*got True"),
        ("wrong_object", r"grader own_graders:wrong_object must return one of .*got \"{'correct'}\""),
    ],
)
def test_its_mistakes_are_not_scored(name: str, message: str) -> None:
    with (
        Grader(f"own_graders:{name}", workers=1, deadline=60) as grader,
        pytest.raises(TOPRError, match=message) as error,
    ):
        list(grader.grade([("", "")]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("graded", [False, True])
def test_it_may_give_numbers(graded: bool) -> None:
    said = ["number", "whole", "of a library", "with answer", "with verdict", "died"]
    with Grader("own_graders:closeness", 1, 60, graded, threshold=0.5) as grader:
        assert list(grader.grade([(each, "5") for each in said])) == [
            Outcome("correct", None, "user", 0.5),
            Outcome("correct", None, "user", 1.0),
            Outcome("incorrect", None, "user", 0.25),
            Outcome("correct", "5", "user", 2.5),
            Outcome("invalid", None, "user", -3.0),
            Outcome("incorrect", None, "died", None),
        ]
        with pickle.loads(pickle.dumps(grader)) as copy:
            assert (copy.graded, copy.threshold) == (graded, 0.5)
    with Grader("own_graders:closeness", 1, 60) as grader:
        assert [one.verdict for one in grader.grade([("number", ""), ("whole", "")])] == ["incorrect", "correct"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("nan", r"gave the reward nan, which is not finite \(completion 2\)$"),
        ("inf", r"gave the reward -inf, which is not finite \(completion 2\)$"),
        ("large", r"gave the reward 10+, which is not finite \(completion 2\)$"),
        ("verdict alone", r"must give a number where data\.reward=graded; got 'correct' \(completion 2\)$"),
        ("true", r"must return one of .*; got \[True, '5'\] \(completion 2\)$"),
        ("twice", r"must return one of .*; got \[0\.5, '5', 0\.5\]"),
        ("text", r"must return one of .*; got \['correct', '5', '0\.5'\]"),
        ("four", r"must return one of .*; got \['correct', '5', 1, 1\]"),
    ],
)
def test_what_is_no_reward_is_one_line(said: str, message: str) -> None:
    with (
        Grader("own_graders:closeness", 1, 60, graded=True) as grader,
        pytest.raises(TOPRError, match=rf"^grader own_graders:closeness {message}") as error,
    ):
        list(grader.grade([("number", ""), (said, "")]))
    assert "\n" not in str(error.value)


def test_it_writes_no_files(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with (
        Grader("own_graders:writing", workers=1, deadline=60) as grader,
        pytest.raises(TOPRError, match="a grading worker writes no file"),
    ):
        list(grader.grade([(str(target), "")]))
    assert not target.exists()


@pytest.mark.parametrize(
    "name",
    ["mmlu", "", "own_graders", "own_graders:", ":contains", "own_graders:absent", "absent_module:f", "a b:c", "json:",
     "own_graders:NOT_CALLABLE", "..:f", "own_graders:contains:x"],
)  # fmt: skip
def test_bad_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        Grader(name)
    assert "\n" not in str(error.value)
    assert "gsm8k, math, final, verdict or package.module:function" in str(error.value)
    with pytest.raises(ConfigError):
        check_name(name)


@pytest.mark.parametrize(("workers", "deadline"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_bad_settings_are_refused(workers: int, deadline: float) -> None:
    with pytest.raises(ConfigError):
        Grader("math", workers, deadline)


def test_a_copy_starts_its_own_workers() -> None:
    with Grader("own_graders:contains", workers=1, deadline=60) as grader:
        list(grader.grade([("5", "5")]))
        with pickle.loads(pickle.dumps(grader)) as copy:
            assert [o.verdict for o in copy.grade([("5", "5")])] == ["correct"]
            assert not set(copy.worker_pids()) & set(grader.worker_pids())
