"""The report in a real browser: opened from disk, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.test_write import NASTY
from tests.report.webdriver import Browser, browser, missing
from tests.run_folders import completion, make_run, make_sweep, write_lines
from topr_exp.report.__main__ import main

pytestmark = [pytest.mark.browser, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

ATTACKS = [
    NASTY,
    "<img src=x onerror=\"document.title='hacked'\">",
    "<b onmouseover=alert(1)>bold</b><style>body{display:none}</style>",
    "javascript:alert(1)\x00\x1b[31m\u202eevil",
    "{{7*7}} ${7*7} `${7*7}`",
]


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of 20 runs, one that is unfinished, and one whose completions attack the page."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = make_sweep(folder, 20)
    make_run(folder, "algo=dpo", done=False)
    _, hostile = make_run(folder, "algo=sft")
    entries = [completion(i, "invalid", text, question=text, gold=text) for i, text in enumerate(ATTACKS)]
    write_lines(hostile / "completions.jsonl", entries)
    (hostile / "error.txt").write_text(ATTACKS[1])
    (hostile / "DONE").unlink()
    assert main([str(sweep), "--out", str(folder / "out")]) == 0
    return folder / "out" / "report.html"


def column(window: Browser, table: str, title: str) -> list[str]:
    """The cells of a table's column that are shown, from top to bottom."""
    script = """
        const table = document.getElementById(arguments[0] + "-table");
        const at = [...table.querySelectorAll("th")].findIndex((head) => head.textContent === arguments[1]);
        return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[at].textContent);
    """
    found: list[str] = window.run(script, table, title)
    return found


def sort(window: Browser, table: str, title: str) -> None:
    script = """
        const heads = document.querySelectorAll(`#${arguments[0]}-table th`);
        [...heads].find((head) => head.textContent === arguments[1]).click();
    """
    window.run(script, table, title)


def search(window: Browser, section: str, text: str) -> None:
    script = """
        const one = document.querySelector(`#${arguments[0]} input[type=search]`);
        one.value = arguments[1];
        one.dispatchEvent(new Event("input"));
    """
    window.run(script, section, text)


@pytest.mark.parametrize("width", [1280, 640])
def test_it_opens_without_a_word_on_the_console(window: Browser, page: Path, width: int) -> None:
    window.open(page, width)
    assert window.log() == []
    assert window.run("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    for section in ("result", "curves", "sweep", "samples"):
        assert window.run(f"return document.querySelectorAll('#{section} details[open] svg').length") >= 1
    overlap = """
        return [...document.querySelectorAll("section")].filter((one, i, all) =>
            i && one.getBoundingClientRect().top < all[i - 1].getBoundingClientRect().bottom - 1).map((one) => one.id)
    """
    assert window.run(overlap) == []


def test_it_asks_nothing_of_the_network(window: Browser, page: Path) -> None:
    window.log("performance")
    window.open(page)
    asked = [entry["message"] for entry in window.log("performance") if "requestWillBeSent" in entry["message"]]
    assert asked
    assert all("file://" in message or '"url":"data:' in message for message in asked)
    # Even a script of the page could not: its policy refuses.
    assert window.run("return fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in entry["message"] for entry in window.log())


def test_tables_are_sorted_by_their_titles(window: Browser, page: Path) -> None:
    window.open(page)
    best = column(window, "groups", "final pass@1")
    values = [float(text.split()[0]) for text in best if text != "–"]
    assert values == sorted(values, reverse=True)
    assert len(values) < len(best) == best.index("–") + best.count("–"), "what is missing comes last"
    sort(window, "groups", "final pass@1")
    sort(window, "groups", "final pass@1")
    assert column(window, "groups", "final pass@1") == [*best[: len(values)][::-1], *best[len(values) :]]
    sort(window, "runs", "run")
    assert column(window, "runs", "run") == sorted(column(window, "runs", "run"))
    sort(window, "subjects", "subject")
    sort(window, "subjects", "subject")
    assert column(window, "subjects", "subject") == ["Geometry", "Algebra"]
    assert column(window, "subjects", "base") == ["20.0", "20.0"]
    assert {"algo.name", "effective_positive"} <= {*column(window, "settings", "setting")}


def test_the_run_filter_takes_words(window: Browser, page: Path) -> None:
    window.open(page)
    search(window, "runs", "tis seed=1")
    found = column(window, "runs", "run")
    assert len(found) == 5
    assert all(name.startswith("tis") for name in found)
    search(window, "runs", "")
    assert len(column(window, "runs", "run")) == 22


def test_lines_are_shown_and_hidden(window: Browser, page: Path) -> None:
    """Of a figure with many those of the best groups at first."""
    window.open(page)
    lines = """
        const parts = [...document.querySelectorAll('g[id^="curve_pass_1."]')];
        return [...new Set(parts.filter((part) => part.style.display !== "none").map((part) => part.id.split(".")[1]))]
    """
    boxes = "[...document.querySelectorAll('input[data-line^=\"curve_pass_1.\"]')]"
    shown = window.run(lines)
    assert shown == [str(i) for i in range(8)]
    window.run(f"{boxes}.at(-1).click()")
    assert len(window.run(lines)) == 9
    window.run(f"{boxes}[0].click()")
    assert window.run(lines)[:2] == ["1", "2"]
    assert window.log() == []


def test_completions_are_filtered(window: Browser, page: Path) -> None:
    window.open(page)
    count = "return document.querySelector('#completions output').textContent"
    everything = 20 * 60 + len(ATTACKS)
    assert window.run(count) == f"{everything} of {everything}"
    for words, number in (("verdict=correct", 400), ("verdict=correct topr_0.2_s1 difficulty=1", 4)):
        search(window, "completions", words)
        assert window.run(count) == f"{number} of {everything}"
    cards = (
        "return [...document.querySelectorAll('#completions div > details:not([hidden])')].map((c) => c.textContent)"
    )
    for text in window.run(cards):
        assert text.startswith("verdict=correct")
        assert "gold=7" in text
        assert "log-ratio=1.50" in text


def test_hostile_text_is_shown_as_text(window: Browser, page: Path) -> None:
    window.open(page)
    search(window, "completions", "sft verdict=invalid")
    shown: list[str] = window.run(
        "return [...document.querySelectorAll('#completions details:not([hidden]) pre')].map((one) => one.textContent)"
    )
    assert shown[1::2] == [attack.replace("\0", "") for attack in ATTACKS]  # HTML has no character 0
    assert window.run("return document.title") != "hacked"
    assert window.run("return document.querySelectorAll('main img, main b, main script').length") == 0
    assert "onerror" in window.run("return document.querySelector('#overview').textContent")
    assert window.log() == []


def test_many_runs_are_there_in_two_seconds(window: Browser, many: tuple[Path, float]) -> None:
    window.open(many[0])
    ready = int(window.run("return performance.timing.domContentLoadedEventEnd - performance.timing.navigationStart"))
    print(f"200 runs: interactive after {ready} ms")
    assert window.log() == []
    assert ready <= 4000, "2 s are the aim; twice that where other work shares the machine"
