"""docs/learnt.md and staleness.md say of results what docs/results records: numbers and verdicts in prose and tables.

A YAML beside each names the records of each finding; the head of learnt.yaml says how.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from reproduce import records
from reproduce.selection import Runs, pick
from tests.conftest import ROOT
from topr_exp.report import Interval, difference, gain

RESULTS, LEARNT, STALENESS = (ROOT / "docs" / name for name in ("results", "learnt.md", "staleness.md"))
VERDICTS = ("above", "below", "undecided")
NUMBER = r"[+-]?\d+(?:\.\d+)?"
# What is no result: code, links, and settings that say what they are (p̃ = 2 %, β = 0.05, 1e-4, Figure 1, maj@8).
SETTING = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\d+e-\d+|(?:p̃ =|p =|p̃ of|β =|Figure|Table|Eq\.|pass@|maj@|top-k of|seed|Seed) ?\d+(?:\.\d+)?"
)
MOST_ROWS, MOST_WORDS, FINDINGS = 6, 80, 10


@dataclass(frozen=True)
class Statement:
    """One thing that the page says."""

    where: str  # FIGURE MODEL [KEY=VALUE ...], or "results"
    what: str  # the expression, or what is quoted
    text: str


@dataclass(frozen=True)
class Section:
    """A finding, or what is open: its parts, and where they come from."""

    title: str
    rows: list[str]  # of its table, the head and its rule left out
    picture: str
    prose: str
    source: dict[str, Any]

    @property
    def statements(self) -> list[Statement]:
        return [each for text in self.source.get("says", ()) for each in statements(text)]


def plain(text: str) -> str:
    """Text with one kind of minus and of white space, without emphasis."""
    return " ".join(text.replace("−", "-").replace("*", "").split())


def sections(page: Path) -> dict[Any, Section]:
    """The findings by their number, and `open`."""
    sources: dict[Any, Any] = yaml.safe_load(page.with_suffix(".yaml").read_text(encoding="utf-8"))
    body, rest = re.split(r"\n## (?:Open|Not known yet)\n", page.read_text(encoding="utf-8"))
    found: dict[Any, Section] = {"open": Section("Open", [], "", rest, sources["open"])}
    for number, title, part in re.findall(r"^\*\*(\d+)\. (.*?)\*\*\n(.*?)(?=^\*\*\d+\.|^## |\Z)", body, re.M | re.S):
        blocks = [block for block in part.split("\n\n") if block.strip()]
        table = [line for block in blocks if block.lstrip().startswith("|") for line in block.strip().splitlines()]
        picture = "".join(block for block in blocks if block.lstrip().startswith("!["))
        prose = " ".join(block for block in blocks if not block.lstrip().startswith(("|", "![")))
        found[int(number)] = Section(title, table, picture, prose, sources[int(number)])
    assert found.keys() == sources.keys()
    return found


def statements(text: str) -> list[Statement]:
    """The statements of RECORDS: EXPRESSION = TEXT; ...; a quotation may hold a semicolon."""
    where, _, rest = plain(text).partition(": ")
    parts = [part.rpartition(" = ") for part in re.split(r'; (?=(?:[^"]*"[^"]*")*[^"]*$)', rest)]
    assert all(what for what, _, _ in parts), f"{text}: expected EXPRESSION = TEXT"
    return [Statement(where, what.strip(), said.strip()) for what, _, said in parts]


def uncited(prose: str, cited: set[str]) -> list[str]:
    """The numbers of a text that are none of those that are cited."""
    left = SETTING.sub(" ", plain(prose))
    return [
        number for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", left) if number.rstrip(",") not in cited
    ]


def unstated(prose: str, said: list[Statement]) -> list[str]:
    """The statements whose numbers or verdicts a text does not hold."""
    words = {"undecided": r"undecided", "above": r"above|below|help|better|beat|behind"}
    words |= {"below": words["above"] + r"|collapse", "within": r"no difference|equal|one loss"}
    missing = []
    for each in said:
        pattern = words.get(each.text.split()[0])
        if pattern is None:
            numbers = re.findall(NUMBER, each.text)
            pattern = r"[^0-9]{1,4}".join(
                rf"(?<![\d.]){re.escape(number.lstrip('+-'))}(?![\d.]\d)" for number in numbers
            )
        if not re.search(pattern, plain(prose), re.IGNORECASE):
            missing.append(f"{each.what} = {each.text}")
    return missing


def interval(where: str, expression: str) -> Interval:
    """What an expression is by the records."""
    figure, model, *settings = where.split()
    stored = list(records.records_by_identity(records.read(RESULTS / f"{figure}.json")).values())
    assert stored, f"{figure}: no records"
    return value_of(pick(Runs(stored), " ".join([f"model.name={model}", *settings])), expression)


def computed(each: Statement) -> str:
    """The text of a statement by the records, written as the statement writes it."""
    if each.where == "results":
        return quoted(each)
    found = interval(each.where, each.what)
    if each.text.startswith("within "):
        most = float(each.text.split()[1]) / 100
        return each.text if -most <= found.low and found.high <= most else found.percent(sign=True)
    if each.text in VERDICTS:
        return verdict(found.low, found.high)
    whole = found.percent(sign=each.text.startswith("+"))
    if "[" not in each.text:
        digits = len(each.text.partition(".")[2])
        return f"{100 * found.value:{'+' if each.text.startswith('+') else ''}.{digits}f}"
    return re.sub(r"\[.*\]", lambda ends: ends[0].replace("+", ""), whole)


def verdict(low: float, high: float) -> str:
    """On which side of 0 an interval lies."""
    return "above" if low > 0 else "below" if high < 0 else "undecided"


def quoted(each: Statement) -> str:
    """The number of a quotation from the results page that is the statement's, rounded like it."""
    quotation = each.what.strip('"')
    assert quotation in plain((RESULTS / "README.md").read_text(encoding="utf-8")), f"not in the results: {quotation}"
    numbers = re.findall(NUMBER, quotation)
    if each.text in VERDICTS:
        return verdict(float(numbers[-2]), float(numbers[-1]))
    digits = len(each.text.partition(".")[2])
    rounded = [f"{float(number):.{digits}f}" for number in numbers]
    return each.text if each.text.lstrip("+") in {number.lstrip("+-") for number in rounded} else quotation


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
    chosen = pick(runs, " ".join([algorithm] * (algorithm != "base") + own) or "all")
    if algorithm == "base":
        chosen = Runs(list({run["settings"]["seed"]: run for run in chosen}.values()))
    assert len(chosen), f"{name}: no such runs"
    assert len(set(chosen.seeds)) == len(chosen), f"{name}: several runs of one seed; name more settings"
    return chosen


def row(name: str, cells: list[str]) -> str:
    """A row of a table by the records; a difference has its sign."""
    parts = [cell.split(": ", 1) for cell in cells]
    found = [interval(where, what).percent(sign=" - " in what) for where, what in parts]
    return f"| {name} | {' | '.join(found)} |".replace("-", "−" if any(" - " in what for _, what in parts) else "-")


FOUND = [
    pytest.param(section, id=f"{page.stem} {number}")
    for page in (LEARNT, STALENESS)
    for number, section in sections(page).items()
]


def test_there_are_ten_findings_each_with_a_table_or_a_picture_and_few_words() -> None:
    found = sections(LEARNT)
    assert [*found] == ["open", *range(1, FINDINGS + 1)]
    for number in range(1, FINDINGS + 1):
        section = found[number]
        assert bool(section.rows) != bool(section.picture), number
        assert len(section.rows) <= 2 + MOST_ROWS, number
        assert len(section.prose.split()) <= MOST_WORDS, (number, len(section.prose.split()))
    assert len(re.findall(r"^- ", found["open"].prose, re.M)) == 5


@pytest.mark.parametrize("section", FOUND)
def test_what_a_finding_says_is_what_the_records_say(section: Section) -> None:
    for each in section.statements:
        assert computed(each) == each.text, f"{each.where}: {each.what}"
    assert section.rows[2:] == [row(name, cells) for name, cells in section.source.get("table", {}).items()]
    text = f"{section.title} {section.prose}"
    assert not unstated(text, section.statements)
    numbers = {str(number) for number in section.source.get("numbers", ())}
    cited = {number.lstrip("+-") for each in section.statements for number in re.findall(NUMBER, each.text)}
    assert not uncited(f"{text} {' '.join(section.rows[:1])}", numbers | cited)


@pytest.mark.parametrize("section", FOUND)
def test_no_verdict_without_records(section: Section) -> None:
    """ "undecided" and "above" are verdicts too: the finding cites an interval that says so."""
    cited = [each.text for each in section.statements]
    for word in ("undecided", "above"):
        if re.search(rf"\b{word}\b", section.prose):
            assert word in cited or (word == "above" and "below" in cited), f"{word!r} is said without an interval"


def test_a_wrong_number_or_verdict_is_found() -> None:
    said = "fig4 tiny data.name=gsm8k: topr - sft = {}; topr.maj - sft.maj = {}"
    right = statements(said.format("+12.5 [8.9, 16.1]", "undecided"))
    assert [computed(each) for each in right] == [each.text for each in right]
    wrong = statements(said.format("+12.4 [8.9, 16.1]", "within 1"))
    assert all(computed(each) != each.text for each in wrong)
    assert uncited("TOPR is above by 12.5 points and 3.1 more", {"12.5"}) == ["3.1"]
    assert unstated("TOPR is above by 12.5 points", statements("fig4 tiny: topr - sft = +12.6")) == [
        "topr - sft = +12.6"
    ]
    with pytest.raises(AssertionError, match="no such runs"):
        row("PPO", ["fig4 tiny: nobody"])
