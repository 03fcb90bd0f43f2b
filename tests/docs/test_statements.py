"""README and docs/learnt.md say of results what docs/results records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.statements import computed, statements, uncited, unstated

RESULTS = ROOT / "docs" / "results"
LEARNT = ROOT / "docs" / "learnt.md"
README = ROOT / "README.md"


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
