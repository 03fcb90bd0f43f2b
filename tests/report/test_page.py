"""The report in a real browser: opened from disk, without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_write import NASTY
from tests.run_folders import completion, make_run, make_sweep, write_lines
from topr_exp.report.__main__ import main

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium not installed (see .ci/run)"),
]

ATTACKS = [
    NASTY,
    "<img src=x onerror=\"document.title='hacked'\">",
    "<b onmouseover=alert(1)>bold</b><style>body{display:none}</style>",
    "javascript:alert(1)\x00\x1b[31m\u202eevil",
    "{{7*7}} ${7*7} `${7*7}`",
]
# What a reader does, one thing after another; each value is what is there to be seen then.
READER = """
const all = (selector) => [...document.querySelectorAll(selector)];
const heads = (table) => all(`#${table}-table th`);
const at = (table, title) => heads(table).findIndex((head) => head.textContent === title);
const column = (table, title) =>
  all(`#${table}-table tbody tr:not([hidden])`).map((row) => row.cells[at(table, title)].textContent);
const sort = (table, title) => heads(table)[at(table, title)].click();
const search = (section, text) => {
  const box = document.querySelector(`#${section} input[type=search]`);
  box.value = text;
  box.dispatchEvent(new Event("input"));
};
const lines = () => [...new Set(all('g[id^="curve_pass_1."]').filter((part) => part.style.display !== "none")
  .map((part) => part.id.split(".")[1]))];
const boxes = all('input[data-line^="curve_pass_1."]');
const cards = () => all("#completions div > details:not([hidden])");
const found = {};

found.fits = document.documentElement.scrollWidth <= innerWidth;
found.drawn = ["result", "curves", "sweep", "samples"].map((name) => all(`#${name} details[open] svg`).length);
found.best = column("groups", "final pass@1");
sort("groups", "final pass@1"); sort("groups", "final pass@1");
found.worst = column("groups", "final pass@1");
search("runs", "tis seed=1");
found.filtered = column("runs", "run");
found.lines = [lines()];
boxes[0].click(); found.lines.push(lines());
boxes[0].click(); found.lines.push(lines());
search("completions", "verdict=correct topr_0.2_s1 difficulty=1");
found.cards = cards().map((card) => card.textContent);
found.count = document.querySelector("#completions output").textContent;
search("completions", "sft verdict=invalid");
found.hostile = cards().flatMap((card) => [...card.querySelectorAll("pre")].map((one) => one.textContent));
found.made = [document.title, all("main img, main b, main script").length];
found.asked = performance.getEntriesByType("resource").map((entry) => entry.name);
fetch("http://127.0.0.1:1/").then(() => "sent", () => "refused").then((answer) => {
  document.body.dataset.found = JSON.stringify({...found, answer});
});
"""


def read(page: Path, width: int) -> dict[str, Any]:
    """Let READER loose on a copy of the page whose policy admits it; with the lines on the console."""
    text = page.read_text()
    (own,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    code = f"{own}{{{READER}}}"
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (own, code))
    copy = page.with_name("copy.html")
    copy.write_text(text.replace(own, code).replace(*digests))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
               "--virtual-time-budget=60000", f"--window-size={width},900", "--dump-dom"]  # fmt: skip
    done = subprocess.run(["chromium", *options, copy.as_uri()], capture_output=True, text=True, timeout=300)
    told = re.search('data-found="(.*?)"', done.stdout)
    assert told is not None, done.stderr[-2000:]
    return json.loads(html.unescape(told[1])) | {"console": re.findall("CONSOLE.*", done.stderr)}


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


def test_what_a_reader_does_and_sees(page: Path) -> None:
    """It fits, asks nothing of the network (its policy refuses even its own script), sorts, filters, shows and hides,
    and hostile text stays text."""
    seen = read(page, 640)
    assert seen["fits"], "the page scrolls sideways"
    assert min(seen["drawn"]) >= 1
    assert (seen["asked"], seen["answer"]) == ([], "refused")
    assert seen["console"]
    assert all("Content Security Policy" in line for line in seen["console"])

    best = seen["best"]
    values = [float(text.split()[0]) for text in best if text != "–"]
    assert values == sorted(values, reverse=True)
    assert len(values) < len(best) == best.index("–") + best.count("–"), "what is missing comes last"
    assert seen["worst"] == [*best[: len(values)][::-1], *best[len(values) :]]
    assert len(seen["filtered"]) == 5
    assert all(name.startswith("tis") for name in seen["filtered"])
    shown = [str(i) for i in range(10)]
    assert seen["lines"] == [shown, shown[1:], shown]

    assert seen["count"] == f"4 of {20 * 60 + len(ATTACKS)}"
    for text in seen["cards"]:
        assert text.startswith("verdict=correct")
        assert "gold=7" in text
        assert "log π=-3.50" in text
    assert seen["hostile"][1::2] == [attack.replace("\0", "") for attack in ATTACKS]  # HTML has no character 0
    assert (seen["made"][0] != "hacked", seen["made"][1]) == (True, 0)
