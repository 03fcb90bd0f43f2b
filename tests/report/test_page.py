"""`python -m topr_exp.report`: what it writes, and the page in a real browser, opened from disk, without a network."""

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

from tests.conftest import write_lines
from tests.run_folders import completion, make_run, make_sweep
from topr_exp.report import drawing, plots
from topr_exp.report.__main__ import AUTHOR, main
from topr_exp.report.page import render_completions
from topr_exp.report.reader import find_runs
from topr_exp.sweeps.launch import publish

NASTY = "</script><script>alert(1)</script><!-- \u2028 $script ${data} \\u003c"
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
found.cut = all(".scroll").filter((box) => box.scrollWidth > box.clientWidth).length;
found.drawn = ["final", "curves", "sweep", "samples"].map((name) => all(`#${name} details[open] svg`).length);
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
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a sweep of 20 runs, one that is unfinished, and one whose completions attack the page."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = make_sweep(folder, 20)
    make_run(folder, "algo=dpo", done=False)
    _, hostile = make_run(folder, "algo=sft", "model.name='<script>1</script>'")
    entries = [completion(i, "invalid", text, question=text, gold=text) for i, text in enumerate(ATTACKS)]
    write_lines(hostile / "completions.jsonl", entries)
    (hostile / "error.txt").write_text(NASTY)
    (hostile / "DONE").unlink()
    assert main([str(sweep), "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_page_figures_and_tables(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {path.name for path in (out / "tables").iterdir()} == {"runs.csv", "groups.csv", "groups.tex"}
    names = {path.stem for path in (out / "figures").iterdir()}
    assert names >= {"curve_pass_1", "curve_invalid", "final", "pass_at_k", "maj_at_k", "sweep_effective_positive"}
    captions = (out / "figures" / "captions.txt").read_text()
    for name in names - {"captions"}:
        assert f"{name}: " in captions
        assert (out / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
        assert (out / "figures" / f"{name}.png").read_bytes()[1:4] == b"PNG"
    page = (out / "report.html").read_text()
    told = "22 runs (1 running, 1 unfinished, 20 done) in 12 groups; they differ in algo.name, effective_positive."
    assert told in page
    assert (
        "<strong>command: </strong>python -m topr_exp algo=dpo; python -m topr_exp algo=sft &#x27;model.name=" in page
    ), "with its quotes"
    # The same runs give the same files.
    assert main([str(out.parent / "runs"), "--out", str(tmp_path / "other")]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'other' / 'report.html'} (figures/ and tables/ beside it)\n"
    for path in (out / "figures").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "figures" / path.name).read_bytes(), path.name
    other = (tmp_path / "other" / "report.html").read_text()
    assert re.sub(r"Made [-\d: ]*", "", other) == re.sub(r"Made [-\d: ]*", "", page)


def test_what_was_swept_is_the_first_figure(out: Path) -> None:
    sections = re.findall(r'<section id="(\w+)">', (out / "report.html").read_text())
    assert sections == ["result", "sweep", "final", "curves", "overview", "runs", "samples", "settings", "completions"]


def test_every_column_of_the_page_has_a_title(out: Path) -> None:
    titles = re.findall("<th>(.*?)</th>", (out / "report.html").read_text())
    assert "paired over" in titles
    assert [title for title in titles if not title.strip()] == []


def test_completions_that_runs_share_stand_there_once_with_their_question_in_the_line(tmp_path: Path) -> None:
    """The base's are those of every run of a sweep; what a run drew itself is its own."""
    shared = [completion(0, "correct", "The answer is 7.", question=f"How  many\n apples? {'x' * 200}"),
              completion(1, "incorrect", "The answer is 8.")]  # fmt: skip
    for seed in range(3):
        _, folder = make_run(tmp_path, f"seed={seed}", rng=seed)
        own = completion(0, "correct", f"Trained {seed} says 7.", iteration=1)
        write_lines(folder / "completions.jsonl", [*shared, own])
    runs = find_runs([tmp_path])
    found = render_completions(runs)
    lines = re.findall("<summary>(.*?)</summary>", found)
    assert "5 of 5 different completions" in found
    assert len(lines) == 5
    assert [line for line in lines if "run=base of 3 runs" in line and "iteration=0" in line] == lines[:2]
    assert found.count(f"<p>runs: {', '.join(run.name for run in runs)}</p>") == 2
    assert [f"run={run.name} " in line for run, line in zip(runs, lines[2:], strict=True)] == [True] * 3
    assert lines[0].endswith(" · How many apples? …")
    assert lines[1].endswith(" · Question 1?")


def test_hostile_text_is_escaped_and_no_script_but_the_page_s_may_run(out: Path) -> None:
    page = (out / "report.html").read_text()
    assert page.count("<script") == 1
    assert page.count(html.escape(NASTY)) == 4, "question, completion, gold and error"
    (line,) = [text for text in re.findall("<summary>(.*?)</summary>", page) if "gold=&lt;/script&gt;" in text]
    assert line.endswith(html.escape("</script><script>alert(1)</script><!-- $script ${data} \\u003c"))
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    script = re.findall("<script>(.*?)</script>", page, re.DOTALL)[0]
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{known}';" in policy
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//|\w+\.)""", page)


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium not installed (see .ci/run)")
def test_what_a_reader_does_and_sees(out: Path) -> None:
    """It fits, asks nothing of the network (its policy refuses even its own script), sorts, filters, shows and hides,
    and hostile text stays text."""
    assert read(out / "report.html", 1280)["cut"] == 0, "tables whose last columns are hidden"
    seen = read(out / "report.html", 640)
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


def test_a_sweep_writes_its_report_and_survives_a_failing_one(tmp_path, capsys):
    sweep = make_sweep(tmp_path, 2)
    publish(sweep)
    assert capsys.readouterr().out.startswith(f"report: {sweep / 'report' / 'report.html'}\n")
    (sweep / "report" / "report.html").unlink()
    (sweep / "report" / "report.html").mkdir()
    publish(sweep)
    error = capsys.readouterr().err
    assert error.startswith("warning: no report (")
    assert error.count("\n") == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two figures in no time."""
    files = dict.fromkeys(("final.pdf", "captions.txt"), b"a figure")
    monkeypatch.setattr(plots, "plot_runs", lambda *_: [])
    monkeypatch.setattr(drawing, "draw_files", lambda _: (files, {}))


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "manifest"),
    [("figures/photo.png", None), ("thesis.tex", '{"files": ["letter.txt"], "created": "2024"}'),
     ("figures/photo.png", json.dumps({"written_by": AUTHOR, "files": 3}))],
)  # fmt: skip
def test_a_folder_with_files_that_no_report_listed_is_refused(tmp_path, capsys, name, manifest):
    make_run(tmp_path / "runs")
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    if manifest is not None:
        (out / "manifest.json").write_text(manifest)
    before = contents(out)
    assert main([str(tmp_path / "runs"), "--out", str(out)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {out} holds files that no report listed ({out}/")
    assert contents(out) == before


@pytest.mark.usefixtures("quick")
def test_a_report_replaces_what_an_earlier_one_listed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs")
    out = tmp_path / "out"
    command = [str(tmp_path / "runs"), "--out", str(out)]
    assert main(command) == 0
    listed = json.loads((out / "manifest.json").read_text())["files"]
    assert {"manifest.json", *listed} == contents(out).keys()

    def listing(*files: str) -> None:
        (out / "manifest.json").write_text(json.dumps({"written_by": AUTHOR, "files": files}))

    for path in (tmp_path / "mine.txt", out / "figures" / "photo.png"):
        path.write_text("mine")
    for path in (out / "figures" / "curve_old.pdf", out / "tables" / "runs.csv"):
        path.write_text("of an earlier report")
    listing(*listed, "figures/curve_old.pdf", "figures/photo.png", "../mine.txt")
    assert main(command) == 0
    assert {"manifest.json", "figures/photo.png", *listed} == contents(out).keys()
    assert contents(out)["figures/photo.png"] == (tmp_path / "mine.txt").read_text() == "mine"
    assert contents(out)["tables/runs.csv"].startswith("run,")
    listing(*(one for one in listed if one != "tables/runs.csv"))
    assert main(command) == 1
    assert f"no report listed ({out / 'tables' / 'runs.csv'})" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["report", "report/figures", "report/tables"])
def test_no_report_is_written_through_a_link(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a folder that somebody else packed may have it, with a manifest that names files beyond."""
    make_run(tmp_path / "runs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "curve_mine.pdf").write_text("mine")
    link = tmp_path / "runs" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    files = [f"{place}/curve_mine.pdf" for place in ("figures", "tables")]
    manifest = json.dumps({"written_by": AUTHOR, "files": files})
    if name != "report":
        (link.parent / "manifest.json").write_text(manifest)
    assert main([str(tmp_path / "runs")]) == 1
    assert f"{link} is a symbolic link" in capsys.readouterr().err
    assert contents(elsewhere) == {"curve_mine.pdf": "mine"}
    if name == "report":  # but a link that the user names is theirs
        assert main([str(tmp_path / "runs"), "--out", str(link)]) == 1, "of other files"
        (elsewhere / "curve_mine.pdf").unlink()
        assert main([str(tmp_path / "runs"), "--out", str(link)]) == 0


@pytest.mark.extended
def test_many_runs_make_a_small_page(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 200, steps=1000)
    assert main([str(sweep)]) == 0
    assert (sweep / "report" / "report.html").stat().st_size <= 25e6
