"""Problems of a run: from its source, checked and counted, train and test disjoint."""

import contextlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from topr_exp.config.data import DataConfig, NoAnswer
from topr_exp.config.user_code import UserCodeError
from topr_exp.types import Problem, TOPRError, has_half_pair

LARGEST_UNPARSABLE_SHARE = 0.05
PLAIN_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]*")  # without an exponent
BETWEEN_NUMBERS = re.compile(r"[\[\](){},;\s]+")


@dataclass(frozen=True)
class SplitReport:
    """The number of problems that were left out of one split, by reason."""

    origin: str  # where they were read
    unparsable: int  # no gold answer could be read
    overlapping: int = 0  # of the training problems: the same question is in test


@dataclass(frozen=True)
class ProblemSets:
    """Training and test problems, without a question in common."""

    train: list[Problem]
    test: list[Problem]
    train_report: SplitReport
    test_report: SplitReport


def load_problems(source: DataConfig) -> ProblemSets:
    """Load the problems that the settings name, the same for the same settings.

    Of a larger set, `source.seed` draws a subset, in the set's order. Raises TOPRError for an unreadable source, a
    split without problems, two problems with one id, and where more than 5 % of a split have no readable answer.

    `source.test_split` validation tests on training problems that are not trained on; TOPRError where too few remain.
    """
    test, test_report = read_split(source, "test")
    train, train_report = read_split(source, "train")
    refuse_duplicate_ids([*train, *test], source.name)
    disjoint_train = without_questions_of(test, train, source)
    train_report = replace(train_report, overlapping=len(train) - len(disjoint_train))
    train = choose_subset(disjoint_train, source.train_problems, source)
    if source.test_split == "validation":
        test = without_questions_of(train, disjoint_train, source)
        test_report = SplitReport(f"{train_report.origin}, what is not trained on", unparsable=0)
        refuse_few_validation_problems(len(test), source)
    test = choose_subset(test, source.test_problems, source)
    return ProblemSets(train, test, train_report, test_report)


def refuse_duplicate_ids(problems: Iterable[Problem], source_name: str) -> None:
    """Raise TOPRError where two problems have one id."""
    id_counts = Counter(problem.id for problem in problems)
    problem_id, count = id_counts.most_common(1)[0]
    if count > 1:
        raise TOPRError(f"data={source_name}: {count} problems have the id {problem_id}; each needs its own")


def refuse_few_validation_problems(count: int, source: DataConfig) -> None:
    """Raise TOPRError for fewer problems than asked: a choice would be made by a handful of them."""
    assert source.test_problems is not None
    if count < source.test_problems:
        raise TOPRError(
            f"data.test_split=validation: {count} training problems are not trained on, data.test_problems="
            f"{source.test_problems} were asked for; lower one of data.train_problems and data.test_problems"
        )


def without_questions_of(held_out: list[Problem], problems: list[Problem], source: DataConfig) -> list[Problem]:
    """The problems that ask no question of `held_out`, up to case and white space."""
    held_out_questions = {normalized_question(problem, source) for problem in held_out}
    return [problem for problem in problems if normalized_question(problem, source) not in held_out_questions]


def shown_texts(problem: Problem, source: DataConfig) -> list[str]:
    """The question, and the further fields that the template names."""
    texts = [problem.question]
    template = source.template or ""
    for name, text in sorted(problem.fields.items()):
        if f"{{{name}}}" in template:
            texts.append(text)
    return texts


def full_question(problem: Problem, source: DataConfig) -> str:
    """All that a prompt shows of a problem, one text a line."""
    return "\n".join(shown_texts(problem, source))


def normalized_question(problem: Problem, source: DataConfig) -> str:
    return normalized(full_question(problem, source))


def normalized(text: str) -> str:
    """A text in lower case, with single spaces."""
    return " ".join(text.casefold().split())


def choose_subset(problems: list[Problem], count: int | None, source: DataConfig) -> list[Problem]:
    """`count` of the problems in their order: the first of generated ones, else a sample by `source.seed`."""
    if count is None or count >= len(problems):
        return problems
    if source.generated:
        return problems[:count]
    indices = random.Random(source.seed).sample(range(len(problems)), count)
    return [problems[index] for index in sorted(indices)]


def read_split(source: DataConfig, split: str) -> tuple[list[Problem], SplitReport]:
    """Read the problems of a split, and count those without a readable answer."""
    origin = source.origin(split)
    problems = []
    unparsable = []
    limit = source.wanted(split) if source.generated else None
    for problem in islice(checked_problems(source, split), limit):
        if isinstance(problem, NoAnswer):
            unparsable.append(problem)
        else:
            problems.append(problem)
    total = len(problems) + len(unparsable)
    if not total:
        raise TOPRError(source.why_empty(split))
    if len(unparsable) > LARGEST_UNPARSABLE_SHARE * total:
        raise TOPRError(
            f"{origin}: {len(unparsable)} of {total} problems have no {unparsable[0].kind} that can be read "
            f"(at most 5 % may be left out); the first is {unparsable[0].where}"
        )
    return problems, SplitReport(origin, len(unparsable))


def checked_problems(source: DataConfig, split: str) -> Iterator[Problem | NoAnswer]:
    """Check every value that a source yields; TOPRError, with one line, where its code fails or yields another type."""
    where = f"data._target_={type(source).__module__}.{type(source).__qualname__}: problems({split!r})"
    try:
        for problem in source.problems(split):
            if fault := fault_of(problem):
                raise TOPRError(f"{where}{fault}")
            yield problem
    except TOPRError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise TOPRError(f"{where}: {UserCodeError(error)}") from error


def fault_of(problem: object) -> str | None:
    """Say why a value is no problem, to follow the name of its source; None for a good one."""
    if isinstance(problem, NoAnswer):
        return None
    if not isinstance(problem, Problem):
        return f" yields {type(problem).__name__}, not Problem"
    texts = (problem.id, problem.question, problem.answer)
    if not all(isinstance(text, str) and text for text in texts):
        return f": id, question and answer must be texts and not empty; got {problem!r:.200}"
    if any(map(has_half_pair, texts)):
        return f": half of a surrogate pair is no character; got {problem!r:.200}"
    return None


def refuse_no_number(where: str, gold: str) -> None:
    """Raise TOPRError for a gold that no answer can equal: NaN, or an exponent beyond all floats (1e999).

    Digits alone spell a finite number, however many there are.
    """
    for word in BETWEEN_NUMBERS.split(gold):
        # JSON spells two numbers in letters; "infinity" may be an answer and "Nan" a name.
        may_be_number = word.lstrip("-") in ("NaN", "Infinity") or any(map(str.isdigit, word))
        if not may_be_number or PLAIN_NUMBER.fullmatch(word):
            continue
        with contextlib.suppress(ValueError):
            if not math.isfinite(float(word)):
                raise TOPRError(f"{where}: the gold answer {gold} is no finite number")


def level_of(value: object) -> int | None:
    """1 to 5 for a level as MATH writes it, "Level 3"; None for anything else."""
    digits = str(value).removeprefix("Level ")
    if digits in ("1", "2", "3", "4", "5"):
        return int(digits)
    return None


def text_of(where: str, row: dict[str, Any], field: str, *, hint: str = "") -> str:
    """A field as text, which must not be empty; `hint` ends the line where there is no such field."""
    if row.get(field) is None:
        raise TOPRError(f"{where}: there is no {field}, it has {', '.join(row) or 'nothing'}{hint}")
    text = as_text(row[field]).strip()
    if not text:
        raise TOPRError(f"{where}: the field {field} is empty")
    return text


def as_text(value: object) -> str:
    """A text unchanged, anything else as JSON: numbers keep their digits, lists and objects are for a grader."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
