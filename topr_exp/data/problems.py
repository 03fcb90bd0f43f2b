"""Problems of a run: from the embedded generators, the hub or a folder; checked, counted, train and test disjoint."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.config.data import DataConfig, Format, Split
from topr_exp.data import embedded_gsm8k, embedded_math, folder, hub
from topr_exp.data.gold import gsm8k_gold, math_gold
from topr_exp.types import Problem, TOPRError

LARGEST_UNPARSABLE_SHARE = 0.05


@dataclass(frozen=True)
class SplitReport:
    """What became of one split's problems."""

    origin: str  # where they were read
    read: int
    unparsable: int  # left out: no gold answer could be read
    overlapping: int  # left out of training: the same question is in test
    used: int


@dataclass(frozen=True)
class ProblemSets:
    """Training and test problems, without a question in common."""

    train: list[Problem]
    test: list[Problem]
    train_report: SplitReport
    test_report: SplitReport


def load_problems(config: DataConfig) -> ProblemSets:
    """The problems that the settings name, the same for the same settings.

    Where a set is larger than asked, `config.seed` draws the part, in the set's own order; where it is smaller, all
    of it is used, as the report says. Raises TOPRError for a hub or folder that can't be read, for a malformed line,
    and where more than 5 % of a split have no answer that can be read.

    `config.test_split` validation puts problems of the training set that are not trained on in the place of the test
    set, which nothing is then measured on; TOPRError where too few are left.
    """
    if config.source == "embedded":
        return _embedded(config)
    source: Any = hub if config.source == "hub" else folder
    root = Path(config.source).expanduser()
    test_origin, test_rows = source.read(config.format, "test", root)
    test, test_bad = _parse(config.format, "test", test_origin, test_rows)
    train_origin, train_rows = source.read(config.format, "train", root)
    train, train_bad = _parse(config.format, "train", train_origin, train_rows)
    held_out = {normal_form(problem.question) for problem in test}
    disjoint = [problem for problem in train if normal_form(problem.question) not in held_out]
    used_train = _part(disjoint, config.train_problems, config.seed)
    if config.test_split is Split.validation:
        held_out = {normal_form(problem.question) for problem in used_train}
        test = [problem for problem in disjoint if normal_form(problem.question) not in held_out]
        test_origin, test_bad = f"{train_origin}, what is not trained on", 0
        _check_enough(len(test), config)
    used_test = _part(test, config.test_problems, config.seed)
    return ProblemSets(
        used_train,
        used_test,
        SplitReport(train_origin, len(train) + train_bad, train_bad, len(train) - len(disjoint), len(used_train)),
        SplitReport(test_origin, len(test) + test_bad, test_bad, 0, len(used_test)),
    )


def _check_enough(left: int, config: DataConfig) -> None:
    """Refuse a validation set smaller than asked, so that a choice is not made by a handful of problems."""
    assert config.test_problems is not None
    if left < config.test_problems:
        raise TOPRError(
            f"data.test_split=validation: {left} training problems are not trained on, data.test_problems="
            f"{config.test_problems} were asked for; lower one of data.train_problems and data.test_problems"
        )


def normal_form(question: str) -> str:
    """The question without differences of case and white space."""
    return " ".join(question.casefold().split())


def _embedded(config: DataConfig) -> ProblemSets:
    generate = {Format.gsm8k: embedded_gsm8k.generate, Format.math: embedded_math.generate}[config.format]
    assert config.train_problems is not None
    assert config.test_problems is not None
    if config.test_split is Split.validation:  # the next ones of the same list, which holds none twice
        both = generate("train", config.train_problems + config.test_problems, config.seed)
        train, test = both[: config.train_problems], both[config.train_problems :]
    else:
        train = generate("train", config.train_problems, config.seed)
        test = generate("test", config.test_problems, config.seed)
    return ProblemSets(
        train,
        test,
        SplitReport("embedded generator", len(train), 0, 0, len(train)),
        SplitReport("embedded generator", len(test), 0, 0, len(test)),
    )


def _part(problems: list[Problem], count: int | None, seed: int) -> list[Problem]:
    if count is None or count >= len(problems):
        return problems
    chosen = random.Random(seed).sample(range(len(problems)), count)
    return [problems[index] for index in sorted(chosen)]


def _parse(
    data_format: Format, split: str, origin: str, rows: Iterable[tuple[str, dict[str, Any]]]
) -> tuple[list[Problem], int]:
    """The problems of rows that are named by where they stand, and the number without a gold answer."""
    problems: list[Problem] = []
    unparsable: list[str] = []
    read = _gsm8k_problem if data_format is Format.gsm8k else _math_problem
    for where, row in rows:
        index = len(problems) + len(unparsable)
        problem = read(f"{data_format.name}/{split}/{index:06d}", where, row)
        if problem is None:
            unparsable.append(where)
        else:
            problems.append(problem)
    total = len(problems) + len(unparsable)
    if total == 0:
        raise TOPRError(f"{origin} holds no problems")
    if len(unparsable) > LARGEST_UNPARSABLE_SHARE * total:
        raise TOPRError(
            f"{origin}: {len(unparsable)} of {total} problems have no {data_format.name} answer that can be read "
            f"(at most 5 % may be left out); the first is {unparsable[0]}"
        )
    return problems, len(unparsable)


def _text(where: str, row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise TOPRError(f"{where}: the field {field} is " + ("missing" if value is None else "not a text or empty"))
    return value


def _gsm8k_problem(name: str, where: str, row: dict[str, Any]) -> Problem | None:
    gold = gsm8k_gold(_text(where, row, "answer"))
    question = _text(where, row, "question").strip()
    return None if gold is None else Problem(name, question, gold)


def _math_problem(name: str, where: str, row: dict[str, Any]) -> Problem | None:
    """MATH-500 has an `answer` field; elsewhere the gold is the last box of the solution."""
    question = _text(where, row, "problem").strip()
    answer = row.get("answer")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    gold = answer.strip() if isinstance(answer, str) else math_gold(_text(where, row, "solution"))
    if not gold:
        return None
    digits = str(row.get("level", "")).removeprefix("Level ")
    level = int(digits) if digits in ("1", "2", "3", "4", "5") else None
    subject = row.get("subject") or row.get("type")
    return Problem(name, question, gold, level, subject if isinstance(subject, str) else None)
