"""Problems of a run: from its source, checked and counted, train and test disjoint."""

import contextlib
import json
import math
import random
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from topr_exp.config.data import DataConfig, NoAnswer
from topr_exp.types import Problem, TOPRError, has_half_pair

LARGEST_UNPARSABLE_SHARE = 0.05
DIGITS = re.compile(r"[-+]?[0-9]*\.?[0-9]*")


@dataclass(frozen=True)
class SplitReport:
    """How many of one split's problems were left out, and why."""

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
    """The problems that the settings name, the same for the same settings.

    Of a set larger than asked, `source.seed` draws a part, in the set's order. Raises TOPRError for what can't be read,
    a split without problems, two problems with one id, and where more than 5 % of a split have no readable answer.

    `source.test_split` validation tests on training problems that are not trained on; TOPRError where too few are left.
    """
    test, test_report = _read(source, "test")
    train, train_report = _read(source, "train")
    name, count = Counter(problem.id for problem in (*train, *test)).most_common(1)[0]
    if count > 1:
        raise TOPRError(f"data={source.name}: {count} problems have the id {name}; each needs its own")
    disjoint = _without(train, test, source)
    used_train = _part(disjoint, source.train_problems, source)
    if source.test_split == "validation":
        test = _without(disjoint, used_train, source)
        test_report = SplitReport(f"{train_report.origin}, what is not trained on", 0)
        assert source.test_problems is not None
        if len(test) < source.test_problems:  # or a choice would be made by a handful of problems
            raise TOPRError(
                f"data.test_split=validation: {len(test)} training problems are not trained on, data.test_problems="
                f"{source.test_problems} were asked for; lower one of data.train_problems and data.test_problems"
            )
    train_report = replace(train_report, overlapping=len(train) - len(disjoint))
    return ProblemSets(used_train, _part(test, source.test_problems, source), train_report, test_report)


def _without(problems: list[Problem], others: list[Problem], source: DataConfig) -> list[Problem]:
    """The problems that ask what none of the others does."""
    held_out = {normal_form(asked(problem, source)) for problem in others}
    return [problem for problem in problems if normal_form(asked(problem, source)) not in held_out]


def asked(problem: Problem, source: DataConfig) -> str:
    """The question, and the further fields that the template names."""
    added = [text for name, text in sorted(problem.fields.items()) if f"{{{name}}}" in (source.template or "")]
    return "\n".join([problem.question, *added])


def normal_form(text: str) -> str:
    """The text without differences of case and white space."""
    return " ".join(text.casefold().split())


def _part(problems: list[Problem], count: int | None, source: DataConfig) -> list[Problem]:
    if count is None or count >= len(problems):
        return problems
    if source.generated:
        return problems[:count]
    chosen = random.Random(source.seed).sample(range(len(problems)), count)
    return [problems[index] for index in sorted(chosen)]


def _read(source: DataConfig, split: str) -> tuple[list[Problem], SplitReport]:
    """The problems of a split, and what became of it."""
    origin = source.origin(split)
    found = list(islice(_checked(source, split), source.wanted(split) if source.generated else None))
    problems = [one for one in found if isinstance(one, Problem)]
    unparsable = [one for one in found if isinstance(one, NoAnswer)]
    if not found:
        raise TOPRError(source.why_empty(split))
    if len(unparsable) > LARGEST_UNPARSABLE_SHARE * len(found):
        raise TOPRError(
            f"{origin}: {len(unparsable)} of {len(found)} problems have no {unparsable[0].what} that can be read "
            f"(at most 5 % may be left out); the first is {unparsable[0].where}"
        )
    return problems, SplitReport(origin, len(unparsable))


def _checked(source: DataConfig, split: str) -> Iterator[Problem | NoAnswer]:
    """Check what a source yields; TOPRError, with one line, where its code fails or yields something else."""
    where = f"data._target_={type(source).__module__}.{type(source).__qualname__}: problems({split!r})"
    try:
        for one in source.problems(split):
            if not isinstance(one, Problem | NoAnswer):
                raise TOPRError(f"{where} yields {type(one).__name__}, not Problem")
            texts = (one.id, one.question, one.answer) if isinstance(one, Problem) else ()
            if not all(isinstance(text, str) and text for text in texts):
                raise TOPRError(f"{where}: id, question and answer must be texts and not empty; got {one!r:.200}")
            if any(map(has_half_pair, texts)):
                raise TOPRError(f"{where}: half of a surrogate pair is no character; got {one!r:.200}")
            yield one
    except TOPRError:
        raise
    except Exception as error:  # whatever the user's code raises
        line = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        raise TOPRError(
            f"{where} raised {type(error).__name__}: {text} ({Path(line.filename).name}, line {line.lineno})"
        ) from error


def refuse_no_number(where: str, gold: str) -> None:
    """Raise TOPRError for a gold that no answer can equal: NaN, or an exponent beyond all floats (1e999).

    Digits alone spell a finite number, however many there are.
    """
    for part in re.split(r"[\[\](){},;\s]+", gold):
        # infinity is an answer and Nan a name, but for JSON's spelling of numbers
        number = part.lstrip("-") in ("NaN", "Infinity") or any(map(str.isdigit, part))
        number = number and DIGITS.fullmatch(part) is None
        with contextlib.suppress(ValueError):
            if number and not math.isfinite(float(part)):
                raise TOPRError(f"{where}: the gold answer {gold} is no finite number")


def level_of(value: object) -> int | None:
    """1 to 5 of what MATH writes as "Level 3"; None for anything else."""
    digits = str(value).removeprefix("Level ")
    return int(digits) if digits in ("1", "2", "3", "4", "5") else None


def text_of(where: str, row: dict[str, Any], field: str, hint: str = "") -> str:
    """A field as text, which must not be empty; `hint` follows where there is no such field."""
    if row.get(field) is None:
        raise TOPRError(f"{where}: there is no {field}, it has {', '.join(row) or 'nothing'}{hint}")
    if not (text := as_text(row[field]).strip()):
        raise TOPRError(f"{where}: the field {field} is empty")
    return text


def as_text(value: object) -> str:
    """A text as it is, anything else as JSON: numbers as they are written, lists and objects for a grader."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
