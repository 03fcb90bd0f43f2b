"""The report in a real browser: opened from disk, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """The cells of a table's column, from top to bottom."""
    script = """
        const table = document.querySelector(`table[aria-label="${arguments[0]}"]`);
        const at = [...table.querySelectorAll("th")].findIndex((head) => head.textContent === arguments[1]);
        return [...table.querySelectorAll("tbody tr")].map((row) => row.cells[at].textContent);
    """
    found: list[str] = window.run(script, table, title)
    return found


def sort(window: Browser, table: str, title: str) -> None:
    script = """
        const table = document.querySelector(`table[aria-label="${arguments[0]}"]`);
        [...table.querySelectorAll("th button")].find((head) => head.textContent === arguments[1]).click();
    """
    window.run(script, table, title)


def choose(window: Browser, section: str, title: str, value: str) -> None:
    """Choose an option of a list by its text, as a user would see it."""
    script = """
        const list = document.querySelector(`#${arguments[0]} select[aria-label="${arguments[1]}"]`);
        list.value = [...list.options].find((option) => option.text === arguments[2]).value;
        list.dispatchEvent(new Event("change"));
    """
    window.run(script, section, title, value)


def type_in(window: Browser, where: str, text: str) -> None:
    script = """
        const one = document.querySelector(arguments[0]);
        one.value = arguments[1];
        one.dispatchEvent(new Event("input"));
    """
    window.run(script, where, text)


def lines(window: Browser, section: str) -> int:
    script = "return document.querySelectorAll(`#${arguments[0]} .canvas path[stroke-dasharray]`).length"
    return int(window.run(script, section))


@pytest.mark.parametrize("width", [1280, 640])
def test_it_opens_without_a_word_on_the_console(window: Browser, page: Path, width: int) -> None:
    window.open(page, width)
    assert window.log() == []
    assert int(window.run("return document.body.dataset.ready")) > 0
    assert window.run("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    for section in ("curves", "sweep", "samples"):
        assert window.run(f"return document.querySelectorAll('#{section} svg[role=img]').length") == 1
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


def test_tables_sort_up_and_down(window: Browser, page: Path) -> None:
    window.open(page)
    title = "final pass@1 %"

    def numbers() -> list[float]:
        cells = column(window, "runs", title)
        assert cells[-1] == "–"  # the unfinished run stays last
        return [float(cell.split()[0]) for cell in cells if cell != "–"]

    sort(window, "runs", title)
    assert numbers() == sorted(numbers(), reverse=True)
    sort(window, "runs", title)
    assert numbers() == sorted(numbers())
    sort(window, "runs", "run")
    assert column(window, "runs", "run") == sorted(column(window, "runs", "run"))
    assert len(column(window, "runs", "run")) == 22


def test_the_run_filter_takes_words(window: Browser, page: Path) -> None:
    window.open(page)
    type_in(window, "#runs input", "tis seed=1")
    found = column(window, "runs", "run")
    assert len(found) == 5
    assert all(name.startswith("tis") for name in found)
    type_in(window, "#runs input", "")
    assert len(column(window, "runs", "run")) == 22


def test_curves_and_sweeps_follow_their_controls(window: Browser, page: Path) -> None:
    window.open(page)
    groups = lines(window, "curves")
    assert groups == 8  # the best ones; the others can be switched on
    window.run("[...document.querySelectorAll('#curves .legend input')].at(-1).click()")
    assert lines(window, "curves") == groups + 1
    window.run("document.querySelector('#curves .legend input').click()")
    assert lines(window, "curves") == groups
    choose(window, "curves", "show", "training: loss")
    choose(window, "curves", "against", "samples seen")
    choose(window, "curves", "lines", "single runs")
    texts = window.run("return [...document.querySelectorAll('#curves svg text')].map((one) => one.textContent)")
    assert {"loss", "samples seen"} <= set(texts)
    assert lines(window, "sweep") == 3  # topr, tis and the run of sft
    choose(window, "sweep", "show", "final invalid")
    assert lines(window, "sweep") == 3
    for kind in (
        "maj@K: the most frequent answer of K correct",
        "problems by number of correct completions",
        "pass@1 by difficulty",
    ):
        choose(window, "samples", "show", kind)
        assert lines(window, "samples") > 1
    tip = """
        const svg = document.querySelector("#sweep svg[role=img]"), frame = svg.getBoundingClientRect();
        const at = {clientX: frame.left + 300, clientY: frame.top + 100, bubbles: true};
        svg.dispatchEvent(new MouseEvent("mousemove", at));
        return document.querySelector("#sweep .tip").textContent;
    """
    assert "topr: " in window.run(tip)
    assert window.log() == []


def test_completions_are_filtered_and_paged(window: Browser, page: Path) -> None:
    window.open(page)
    count = "return document.querySelector('#browser .controls > span').textContent"
    everything = 20 * 60 + len(ATTACKS)
    assert window.run(count) == f"{everything} of {everything}"
    choose(window, "browser", "verdict", "correct")
    assert window.run(count) == f"400 of {everything}"
    choose(window, "browser", "run", "topr_0.2_s1")
    choose(window, "browser", "difficulty", "1")
    assert window.run(count) == f"4 of {everything}"
    cards = "return [...document.querySelectorAll('#browser .card')].map((card) => card.textContent)"
    for text in window.run(cards):
        assert text.startswith("correct")
        assert "gold 7" in text
        assert "log-ratio 0 before, 1.50 after" in text
    choose(window, "browser", "verdict", "all")
    choose(window, "browser", "run", "all")
    choose(window, "browser", "difficulty", "all")
    assert len(window.run(cards)) == 20
    window.run("document.querySelector('#browser .controls button').click()")
    assert len(window.run(cards)) == 40


def test_hostile_text_is_shown_as_text(window: Browser, page: Path) -> None:
    window.open(page)
    choose(window, "browser", "verdict", "invalid")
    for attack in ATTACKS:
        type_in(window, "#browser input", attack)
        shown: Any = window.run(
            "return [...document.querySelectorAll('#browser pre.completion')].map((one) => one.textContent)"
        )
        assert shown == [attack]
    assert window.run("return document.title") != "hacked"
    assert window.run("return document.querySelectorAll('main img, main b, main style, main script').length") == 0
    assert "onerror" in window.run("return document.querySelector('#notes').textContent")
    assert window.log() == []


def test_settings_are_compared(window: Browser, page: Path) -> None:
    window.open(page)
    keys = column(window, "settings that differ", "setting")
    assert {"algo.name", "effective_positive"} <= set(keys)
    choose(window, "differences", "compare", "topr_0.2_s0")
    choose(window, "differences", "with", "topr_0.5_s1")
    assert column(window, "two runs", "setting") == ["effective_positive", "seed"]
    assert column(window, "two runs", "second") == ["0.5", "1"]


def test_subjects_stand_beside_one_another(window: Browser, page: Path) -> None:
    window.open(page)
    assert column(window, "subjects", "subject") == ["Algebra", "Geometry"]
    assert column(window, "subjects", "base") == ["20.0", "20.0"]
    sort(window, "subjects", "subject")
    sort(window, "subjects", "subject")
    assert column(window, "subjects", "subject") == ["Geometry", "Algebra"]


def test_many_runs_are_there_in_two_seconds(window: Browser, many: tuple[Path, float]) -> None:
    window.open(many[0])
    ready = int(window.run("return document.body.dataset.ready"))
    print(f"200 runs: interactive after {ready} ms")
    assert window.log() == []
    assert ready <= 4000, "2 s are the aim; twice that where other work shares the machine"
