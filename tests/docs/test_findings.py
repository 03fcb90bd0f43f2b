"""docs/findings.md and its details: tables from the records, and no sentence with a direction that no claim bears.

A table's rows are claims of a figure, over all of which Holm's correction goes; a row's label up to its first comma is
what sentences call it.
"""

import re
from dataclasses import dataclass

import pytest

from reproduce.findings import CLIFF_MARK, PAGES, main
from tests.conftest import ROOT

FINDINGS, DETAILS = (ROOT / page for page in PAGES)
MOST_FINDINGS, MOST_WORDS = 10, 3_500
DIRECTION = re.compile(
    r"\b(?:above|below|higher|lower|beats?|los(?:es?|t)|falls?|fell|gains?|rises?|rose|helps?|costs?|worse|better"
    r"|improves?|exceeds?|ahead|recovers?|doubles?|shorter)\b"
)
# What a row must have its sentences say of it, by what its cells say.
RESERVATIONS = {"*alone*": "alone", "*undecided*": "undecided", CLIFF_MARK: "on the grid"}


@dataclass(frozen=True)
class Section:
    """A finding: its heading and text, and the rows of its tables by what sentences call them."""

    heading: str
    text: str
    rows: dict[str, str]


def sections_of(page):
    """The sections of a page, without code and pictures."""
    sections = []
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        text = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
        rows = {}
        for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE):
            label, _, cells = row.partition(" | ")
            name = label.partition(",")[0]
            rows[name] = f"{rows.get(name, '')} {cells}"
        text = re.sub(r"^(?:\||!\[).*$", "", text, flags=re.MULTILINE)
        sections.append(Section(re.sub(r"^\d+\. ", "", heading), text, rows))
    return sections


def sentences_of(section):
    """The heading and the sentences, without code and the addresses of links."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", section.text)
    return [section.heading, *re.split(r"(?<=[.:])\s+(?=[A-Z])|\n\n|\n- ", text)]


def faults(section):
    """A line for each sentence with a direction that names no claim, or not what is unsure of those that it names."""
    lines = []
    for sentence in sentences_of(section):
        if not DIRECTION.search(sentence):
            continue
        words = " ".join(sentence.split())
        unread_words, cells = words, []
        for name in sorted(section.rows, key=len, reverse=True):
            pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
            if pattern.search(unread_words):
                unread_words = pattern.sub("", unread_words)
                cells.append(section.rows[name])
        if not cells:
            lines.append(f"{section.heading}: a direction and no claim: {words}")
        for mark, reservation in RESERVATIONS.items():
            if mark in " ".join(cells) and reservation not in words:
                lines.append(f"{section.heading}: not said to be {reservation}: {words}")
    return lines


SECTIONS = [
    pytest.param(section, id=section.heading)
    for page in (FINDINGS, DETAILS)
    for section in sections_of(page.read_text(encoding="utf-8"))
    if section.heading not in ("What to do with old completions", "What goes wrong offline")
]


def test_tables_are_those_of_the_records(capfd):
    status = main(["--check"])
    assert status == 0, f"run python -m reproduce.findings\n{capfd.readouterr().out}"


@pytest.mark.parametrize("section", SECTIONS)
def test_a_direction_is_that_of_a_claim_and_says_what_is_unsure(section):
    assert faults(section) == []


def test_a_direction_without_a_claim_or_its_reservation_is_named():
    head = "## 1. TOPR ends above GRPO\n\n| | points |\n|---|---|\n| GRPO | +2.0 [+1.0, +3.0] |\n"
    rows = "| PPO, wide | +1.0 [+0.1, +1.9] *alone* |\n| TIS | +9.0 [+8.0, +10.0]° |\n\n"
    text = "TOPR ends above GRPO. It beats CISPO. It beats PPO. It beats\nTIS. TIS loses on the grid, PPO alone."
    (section,) = sections_of(head + rows + text)
    assert faults(section) == [
        "TOPR ends above GRPO: a direction and no claim: It beats CISPO.",
        "TOPR ends above GRPO: not said to be alone: It beats PPO.",
        "TOPR ends above GRPO: not said to be on the grid: It beats TIS.",
    ]


def test_findings_are_few_and_short():
    page = FINDINGS.read_text(encoding="utf-8")
    assert len(re.findall(r"^## \d+\. ", page, re.MULTILINE)) == len(sections_of(page)) <= MOST_FINDINGS
    pages = [FINDINGS, DETAILS, ROOT / "docs/statistics.md"]
    word_count = 0
    for path in pages:
        visible_text = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        word_count += len(visible_text.split())
    assert word_count <= MOST_WORDS
