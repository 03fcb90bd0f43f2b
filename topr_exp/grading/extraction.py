r"""Extraction of the final answer of a completion: the last balanced \boxed{...}, or after the last "the answer is".

Takes time linear in the text and judges nothing. None: the completion states no answer; it is graded as invalid.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from topr_exp.config.data import ANSWER_GRADERS, THOUGHT_START
from topr_exp.grading.surroundings import (
    END_OF_ANSWER,
    NUMBER_IN_TEXT,
    begins_with_number,
    last_number,
    without_markup,
    without_punctuation,
)
from topr_exp.types import ConfigError

FORMATS = (*ANSWER_GRADERS, "verdict")

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
# What may stand between two boxes that are one answer: separators, spaces, math delimiters, "and" / "or".
_JOINT = re.compile(
    r"(?:[\s$.,;:]|\\[()\[\],;:! ]|\\q?quad(?![a-z])|(?<![a-z])(?:and|or)(?![a-z])"
    r"|\\text\s*\{\s*,?\s*(?:and|or)?\s*,?\s*\})*"
)
_JOINT_CHARS = 60
_BARE = re.compile(r"[^\n$]{0,200}?(?=\$|\\[)\]])|[^\s$}]+")  # \boxed 5: to the end of its formula, or one word
MAX_BOXES = 1000  # the last ones of a completion; a text with more repeats itself
_BRACES = re.compile(r"\\[\s\S]|[{}]")
_CONFIRMATIONS = ("correct", "indeed correct", "right", "verified")  # "I hope the answer is correct."
_MARKS = {
    "math": _BOX,
    "gsm8k": re.compile(r"the\s+answer\s+is\b(?!\s+(?:not|n't)\b)", re.IGNORECASE),
    # "Answer: 60", "the answer is 60", GSM8K's own "#### 60" (#### and a word is a heading)
    "lenient": re.compile(
        r"\banswer[\s*_]*(?:is\b(?!\s+(?:not|n't)\b)|[:=])|(?<!#)####(?=[ \t*_$+-]*\d)", re.IGNORECASE
    ),
    "final": re.compile(r"the\s+final\s+answer\s+is\b(?!\s+(?:not|n't)\b)", re.IGNORECASE),
    "verdict": re.compile(r"\bverdict[\s*_]*(?::|\bis\b)", re.IGNORECASE),
}
_TAG = re.compile("<answer>")
_LENIENT_MARK = re.compile(f"{_BOX.pattern}|{_MARKS['lenient'].pattern}", re.IGNORECASE)
_VERDICT_WORDS = re.compile(r"\b(?:correct|incorrect|not|or)\b|n['’]t\b", re.IGNORECASE)
# What begins a clause that says something about the value before it, and takes nothing back.
_CLAUSE = re.compile(
    r"(?:\\text\s*\{[\s,]*|(?<=[\s,])|(?=\())\(?(?:which|because|since|i\.e\.|that\s+is)(?![A-Za-z])", re.IGNORECASE
)
MAX_STATEMENT = 4000  # characters behind a phrase within which its statement has to end
_DISPLAYS = (("\\[", "\\]"), ("$$", "$$"), ("\\(", "\\)"))
# A sentence ends at a line's end, or at a full stop that is no decimal point (nor inside "a.m.").
_SENTENCE_END = re.compile(r"\n|(?<![A-Za-z]\.[A-Za-z])[.!?](?=[\s*_\"')\]”’»」』`]|$)|[.!?](?=[A-Z])|<\||[。．！？｡।]")
_COMMAND = re.compile(r"\\[A-Za-z]")
_THOUGHT_END = "</think>"


def extract(completion: str, answer_format: str) -> str | None:
    r"""The final answer that a completion states, as written; None where it states none.

    `answer_format` is "math" (the last balanced \boxed{...}), "gsm8k" ("The answer is N."), "final" ("the final
    answer is X."), "lenient" (the last \boxed{...}, "####", "answer is" or "answer:", else the last number) or
    "verdict" ("Verdict: correct." or "Verdict: incorrect."; a sentence with both words or a "not" says none). Text
    up to the last `</think>`, or from a `<think>` without end on, does not count, nor does what follows an answer as a
    further question ("Q:", "Question:", "Problem:" at the start of a line), a further turn ("User:") or behind an end
    marker (</s>).

    Raises ConfigError for another format.
    """
    if answer_format not in FORMATS:
        raise ConfigError(f"answer format must be one of {', '.join(FORMATS)}; got {answer_format}")
    if answer_format == "lenient":
        return _lenient_answer(completion)
    mark_pattern = _MARKS[answer_format]
    text = _own_text(completion, mark_pattern)
    if text is None:
        return None
    if answer_format == "math":
        statement = last_boxed(text)
    else:
        statement, start = _after_phrase(text, mark_pattern)
        if answer_format == "gsm8k" and statement in _CONFIRMATIONS:
            confirmed_statement, _ = _after_phrase(text[:start], mark_pattern)
            statement = confirmed_statement or statement
    if statement is None:
        return None
    if answer_format == "verdict":
        return _verdict_word(statement)
    return _without_clause(statement)


def why_invalid(completion: str, answer_format: str) -> str:
    """Say why `extract` finds no answer in a completion."""
    if THOUGHT_START in completion.rpartition(_THOUGHT_END)[2]:
        return "its thought does not end"
    mark = {
        "gsm8k": '"The answer is"',
        "final": '"the final answer is"',
        "verdict": '"Verdict:"',
        "math": r"\boxed{...}",
        "lenient": "number",
    }[answer_format]
    mark_pattern = _MARKS[answer_format]
    if answer_format == "lenient" or mark_pattern.search(_after_thought(completion)) is None:
        return f"it has no {mark}"
    if answer_format == "math":
        return f"its {mark} is empty or not closed"
    return f"nothing that can be read follows {mark}"


def _verdict_word(statement: str) -> str | None:
    """The one verdict in a statement; None beside another, a "not" or an "or"."""
    words = {word.lower() for word in _VERDICT_WORDS.findall(statement)}
    if words in ({"correct"}, {"incorrect"}):
        return words.pop()
    return None


def _lenient_answer(completion: str) -> str | None:
    """The statement after the last mark of an answer, else the last number of the text; None without a number."""
    text = _own_text(completion, _LENIENT_MARK) or _own_text(completion, NUMBER_IN_TEXT)
    if text is None:
        return None
    boxed = last_boxed(text)
    box_start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    statement, phrase_start = _after_phrase(text, _MARKS["lenient"])
    is_box_last = box_start > phrase_start
    if boxed is not None and is_box_last:
        return _without_clause(boxed)
    if statement is not None:
        statement = _without_clause(statement)
        if begins_with_number(statement) or _COMMAND.search(statement):
            return statement
        number = last_number(statement)
        if number is not None:
            return number
    return last_number(text)


def tagged(completion: str) -> str | None:
    """Extract the last closed <answer>...</answer>, without white space around it; None where it is empty.

    Text that `extract` ignores is ignored here, too.
    """
    text = _own_text(completion, _TAG)
    if text is None:
        return None
    before_end, _, _ = text.rpartition("</answer>")  # "" where no tag is closed
    _, opening_tag, content = before_end.rpartition("<answer>")
    if not opening_tag:
        return None
    return content.strip() or None


def _own_text(completion: str, mark_pattern: re.Pattern[str]) -> str | None:
    """A completion without its thoughts, and up to an end of answer behind its first mark; None without a mark."""
    text = _after_thought(completion)
    first_mark = mark_pattern.search(text)
    if first_mark is None:
        return None
    end = END_OF_ANSWER.search(text, first_mark.end())
    if end is None:
        return text
    return text[: end.start()]


def _after_thought(completion: str) -> str:
    """The text behind the last thought that ends, up to one that does not."""
    text = completion.rpartition(_THOUGHT_END)[2]
    return text.partition(THOUGHT_START)[0]


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced \boxed{...} or \fbox{...} that is not empty; None if there is none.

    `\boxed 5` without braces counts up to the end of its formula. Boxes joined by nothing but commas, "and" or "or" are
    one answer, its parts separated by ", ", so that hedging gives a list; the same box over and over is one answer.
    """
    boxes = [box for box in _boxes(text) if text[box.content].strip()]
    if not boxes:
        return None
    first = len(boxes) - 1  # of the boxes that are one answer
    while first > 0 and _is_joint(text[boxes[first - 1].end : boxes[first].start]):
        first -= 1
    contents = [text[box.content].strip() for box in boxes[first:]]
    different_contents = {"".join(content.split()) for content in contents}
    if len(different_contents) == 1:
        contents = contents[:1]
    return ", ".join(contents)


def _is_joint(gap: str) -> bool:
    return len(gap) <= _JOINT_CHARS and _JOINT.fullmatch(gap) is not None


class _Box(NamedTuple):
    r"""The position of a \boxed{...}."""

    start: int
    end: int
    content: slice


def _boxes(text: str) -> list[_Box]:
    """The outermost balanced boxes, in order."""
    command_of_brace: dict[int, int] = {}  # where the opening brace is -> where its command starts
    boxes: list[_Box] = []
    for command in deque(_BOX.finditer(text), MAX_BOXES):  # the last ones
        start = command.end()
        while start < len(text) and text[start].isspace():
            start += 1
        if text.startswith("{", start):
            command_of_brace[start] = command.start()
        elif bare := _BARE.match(text, start):
            content = bare.group().rstrip(".,;: ")
            end = start + len(content)
            if content:
                boxes.append(_Box(command.start(), end, slice(start, end)))
    boxes += _braced_boxes(text, command_of_brace)
    boxes.sort(key=lambda box: (box.start, box.end))
    outermost: list[_Box] = []
    for box in boxes:
        if not outermost or box.start >= outermost[-1].end:
            outermost.append(box)
    return outermost


def _braced_boxes(text: str, command_of_brace: Mapping[int, int]) -> Iterator[_Box]:
    """Yield the boxes whose opening braces have a closing one, in one pass over all braces."""
    open_braces: list[int] = []
    for match in _BRACES.finditer(text):
        if match.group() == "{":
            open_braces.append(match.start())
        elif match.group() == "}" and open_braces:
            opening = open_braces.pop()
            if opening in command_of_brace:
                content = slice(opening + 1, match.start())
                yield _Box(command_of_brace[opening], match.end(), content)


def _after_phrase(text: str, phrase: re.Pattern[str]) -> tuple[str | None, int]:
    """The statement after the last phrase that has one, and where that phrase starts; (None, -1) where none has."""
    end = len(text)
    for match in reversed(list(phrase.finditer(text))):
        start = match.end()
        window = text[start : min(end, start + MAX_STATEMENT)]
        statement = _statement(without_markup(window))
        if statement is not None:
            return statement, match.start()
        end = match.start()  # nothing follows the phrase: the one before it counts
    return None, -1


def _without_clause(statement: str) -> str:
    """The value before a clause that explains it, such as "42, which is 6 times 7" or "42 (i.e. 42.0)"."""
    for clause in _CLAUSE.finditer(statement, 0, MAX_STATEMENT):
        value = statement[: clause.start()].rstrip(" ,;:*_-–—")
        if value.count("{") == value.count("}") and _says_something(value):
            return value
    return statement


def _statement(text: str) -> str | None:
    """The statement at the start of a text: a displayed formula or a sentence, or the box in it; None if empty."""
    sentence, *_ = _SENTENCE_END.split(_without_display(text), maxsplit=1)
    boxed = last_boxed(sentence)
    statement = without_punctuation(sentence if boxed is None else boxed)
    if _says_something(statement):
        return statement
    return None


def _without_display(text: str) -> str:
    r"""The content of a \[...\] with which the text starts, in one line; else the text."""
    for opening, closing in _DISPLAYS:
        if text.startswith(opening):
            content, closing_sign, _ = text.removeprefix(opening).partition(closing)
            if closing_sign:
                return content.replace("\n", " ")
    return text


def _says_something(text: str) -> bool:
    return any(character.isalnum() for character in text)
