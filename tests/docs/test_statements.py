"""README and docs/learnt.md say of results what docs/results records: numbers and verdicts in prose.

A paragraph that states results carries comments that a reader does not see. Each names records and what the prose says
of them, and each number of the paragraph has to stand in one of them:

    <!-- fig4 tiny data.name=gsm8k: topr - sft = +12.5 [8.9, 16.1]; topr.maj - sft.maj = undecided -->

FIGURE MODEL [KEY=VALUE ...]: EXPRESSION = TEXT; ... An expression is an algorithm (pass@1 after training, in percent)
or `base`, or a difference of two, `.maj` or `.invalid` after it for another share, `@KEY=VALUE` for settings of its
own. TEXT is a number, a number with its interval, or above, below or undecided for where the interval lies; `within N`
says that all of it lies within N points of 0. What the results page prints in another form is quoted from there:

    <!-- results: "20.5 17.3 25" = 25 -->

Numbers that are no results (updates, sizes) are named as such: <!-- settings: 128 3,200 -->
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from reproduce import records
from reproduce.selection import Runs
from tests.conftest import ROOT
from topr_exp.evaluation.intervals import Interval
from topr_exp.report.results import difference, gain

RESULTS, LEARNT, README = ROOT / "docs" / "results", ROOT / "docs" / "learnt.md", ROOT / "README.md"
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
VERDICTS = ("above", "below", "undecided")
NUMBER = r"[+-]?\d+(?:\.\d+)?"
# What is no result: code, links, and settings that say what they are (p̃ = 2 %, β = 0.05, 1e-4, Figure 1, maj@8).
SETTING = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\d+e-\d+|(?:p̃ =|p̃ of|β =|Figure|Table|Eq\.|pass@|maj@|top-k of) ?\d+(?:\.\d+)?"
)


@dataclass(frozen=True)
class Statement:
    """One thing that a paragraph says."""

    where: str  # FIGURE MODEL [KEY=VALUE ...], or "results"
    what: str  # the expression, or what is quoted
    text: str


def plain(text: str) -> str:
    """Text with one kind of minus and of white space, without emphasis."""
    return " ".join(text.replace("−", "-").replace("*", "").split())


def statements(paragraph: str) -> list[Statement]:
    """The statements in the comments of a paragraph."""
    found = []
    for comment in COMMENT.findall(paragraph):
        where, _, rest = plain(comment).partition(": ")
        if where == "settings":
            continue
        for part in rest.split("; "):
            what, _, text = part.rpartition(" = ")
            assert what, f"{comment}: expected EXPRESSION = TEXT"
            found.append(Statement(where, what.strip(), text.strip()))
    return found


def uncited(paragraph: str) -> list[str]:
    """The numbers of a paragraph that none of its comments states."""
    prose = SETTING.sub(" ", plain(COMMENT.sub("", paragraph)))
    cited = {number.lstrip("+-") for each in statements(paragraph) for number in re.findall(NUMBER, each.text)}
    cited |= {
        word for comment in COMMENT.findall(paragraph) if comment.startswith("settings: ") for word in comment.split()
    }
    return [
        number for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", prose) if number.rstrip(",") not in cited
    ]


def unstated(paragraph: str) -> list[str]:
    """The statements of a paragraph's comments whose numbers or verdicts its prose does not hold."""
    prose = plain(COMMENT.sub("", paragraph))
    words = {"undecided": r"undecided", "above": r"above|below|better|gain|help|lead|more|higher|beat|worth|lose|fall"}
    words |= {"below": words["above"] + r"|collapse|harm", "within": r"level|no difference|equal"}
    missing = []
    for each in statements(paragraph):
        word = each.text.split()[0]
        pattern = words.get(word)
        if pattern is None:
            numbers = re.findall(NUMBER, each.text)
            pattern = r"[^0-9]{1,4}".join(
                rf"(?<![\d.]){re.escape(number.lstrip('+-'))}(?![\d.]\d)" for number in numbers
            )
        if not re.search(pattern, prose, re.IGNORECASE):
            missing.append(f"{each.what} = {each.text}")
    return missing


def computed(each: Statement, results: Path) -> str:
    """The text of a statement by the records, written as the statement writes it."""
    if each.where == "results":
        return quoted(each, results)
    figure, model, *settings = each.where.split()
    stored = list(records.known(records.read(results / f"{figure}.json")).values())
    assert stored, f"{figure}: no records"
    runs = with_settings(Runs(stored).where({"model.name": model}), settings)
    interval = value_of(runs, each.what)
    if each.text.startswith("within "):
        most = float(each.text.split()[1]) / 100
        return each.text if -most <= interval.low and interval.high <= most else interval.percent(sign=True)
    if each.text in VERDICTS:
        return verdict(interval.low, interval.high)
    whole = interval.percent(sign=each.text.startswith("+"))
    if "[" not in each.text:
        digits = len(each.text.partition(".")[2])
        return f"{100 * interval.value:{'+' if each.text.startswith('+') else ''}.{digits}f}"
    return re.sub(r"\[.*\]", lambda found: found[0].replace("+", ""), whole)


def verdict(low: float, high: float) -> str:
    """On which side of 0 an interval lies."""
    return "above" if low > 0 else "below" if high < 0 else "undecided"


def quoted(each: Statement, results: Path) -> str:
    """The number of a quotation from the results page that is the statement's, rounded like it."""
    quotation = each.what.strip('"')
    assert quotation in plain((results / "README.md").read_text(encoding="utf-8")), f"not in the results: {quotation}"
    numbers = re.findall(NUMBER, quotation)
    if each.text in VERDICTS:
        return verdict(float(numbers[-2]), float(numbers[-1]))
    digits = len(each.text.partition(".")[2])
    rounded = [f"{float(number):.{digits}f}" for number in numbers]
    return each.text if each.text.lstrip("+") in {number.lstrip("+-") for number in rounded} else quotation


def with_settings(runs: Runs, settings: list[str]) -> Runs:
    """The runs with these settings, KEY=VALUE each."""
    pairs = [text.partition("=") for text in settings]
    chosen = [run for run in runs if all(matches(run["settings"].get(key), value) for key, _, value in pairs)]
    return Runs(chosen)


def matches(value: object, text: str) -> bool:
    """True if a setting has this value; None: it is not recorded, since it is what its YAML says."""
    if text == "None":
        return value is None
    return float(text) == value if isinstance(value, float | int) else text == str(value)


def value_of(runs: Runs, expression: str) -> Interval:
    """The interval of an expression: of one group of runs, or of the difference of two."""
    names = expression.split(" - ")
    shares = {name.rpartition(".")[2] if name.endswith((".maj", ".invalid")) else "pass@1" for name in names}
    assert len(shares) == 1, f"{expression}: of one share only"
    share = shares.pop()
    if len(names) == 1:
        return group(runs, names[0]).interval(share, "base" if names[0].startswith("base") else "final")
    if names[1].startswith("base"):
        found = gain(group(runs, names[0]), share)
    else:
        found = difference(group(runs, names[1]), group(runs, names[0]), share)
    assert found is not None, f"{expression}: no seed in common"
    return found


def group(runs: Runs, name: str) -> Runs:
    """The runs of an operand; several settings among them would be a mistake in the comment."""
    algorithm, *own = name.removesuffix(".maj").removesuffix(".invalid").split("@")
    chosen = with_settings(runs, own)
    if algorithm != "base":
        chosen = chosen.where({"algo.name": algorithm})
    elif len(chosen):
        chosen = Runs(list({run["settings"]["seed"]: run for run in chosen}.values()))
    assert len(chosen), f"{name}: no such runs"
    assert len(set(chosen.seeds)) == len(chosen), f"{name}: several runs of one seed; name more settings"
    return chosen


def paragraphs(path: Path) -> list[str]:
    """The paragraphs and list items of a page, comments with what they follow; code, headings and tables left out."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = [part for part in re.split(r"\n\s*\n|\n(?=- )", text) if part.strip()]
    return [part for part in found if not part.lstrip().startswith(("#", "|", "!["))]


def named(path: Path, part: str) -> object:
    return pytest.param(part, id=f"{path.stem}: {' '.join(part.split())[:50]}")


STATED = [named(path, part) for path in (LEARNT, README) for part in paragraphs(path) if statements(part)]


@pytest.mark.parametrize("paragraph", STATED)
def test_what_a_paragraph_states_is_what_the_records_say(paragraph: str) -> None:
    for each in statements(paragraph):
        assert computed(each, RESULTS) == each.text, f"{each.where}: {each.what}"
    assert not unstated(paragraph)


@pytest.mark.parametrize("paragraph", [named(LEARNT, part) for part in paragraphs(LEARNT)])
def test_every_number_of_what_we_learnt_is_cited(paragraph: str) -> None:
    assert not uncited(paragraph)


@pytest.mark.parametrize("paragraph", [named(LEARNT, part) for part in paragraphs(LEARNT)])
def test_no_verdict_without_records(paragraph: str) -> None:
    """ "undecided", "level" and "no difference" are verdicts too: the paragraph cites an interval that says so."""
    prose = re.sub(r"<!--.*?-->", "", paragraph, flags=re.DOTALL)
    cited = [each.text.split()[0] for each in statements(paragraph)]
    for word, verdict in (("undecided", "undecided"), ("level", "within"), ("no difference", "within")):
        if re.search(rf"\b{word}\b", prose) and "claims" not in prose:
            assert verdict in cited, f"{word!r} is said without an interval"


def test_a_wrong_number_or_verdict_is_found() -> None:
    said = "<!-- fig4 tiny data.name=gsm8k: topr - sft = {}; topr.maj - sft.maj = {} -->"
    right = statements(said.format("+12.5 [8.9, 16.1]", "undecided"))
    assert [computed(each, RESULTS) for each in right] == [each.text for each in right]
    wrong = statements(said.format("+12.4 [8.9, 16.1]", "within 1"))
    assert all(computed(each, RESULTS) != each.text for each in wrong)
    assert uncited("TOPR is above by 12.5 points and 3.1 more <!-- fig4 tiny: topr - sft = +12.5 -->") == ["3.1"]
    assert unstated("TOPR is above by 12.5 points <!-- fig4 tiny: topr - sft = +12.6 -->") == ["topr - sft = +12.6"]
