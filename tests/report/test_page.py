"""`python -m topr_exp.report`: what it writes, and the page in a real browser, opened from disk, without a network."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import contents, names_in, read_json, refused, write_file, write_lines
from tests.run_folders import completion, make_run, make_sweep
from topr_exp.report.__main__ import AUTHOR, main, write_report
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
SCRIPT = re.compile("<script>(.*?)</script>", re.DOTALL)
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
search("runs", "tis seed=0");
found.filtered = column("runs", "run");
found.lines = [lines()];
boxes[0].click(); found.lines.push(lines());
boxes[0].click(); found.lines.push(lines());
search("completions", "verdict=correct topr_0.2_s0 difficulty=1");
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


BROWSER = """
chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --enable-logging=stderr
--virtual-time-budget=60000
"""


def sha256(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def read(page, width):
    """Let READER loose on a copy of the page whose policy admits it; with the lines on the console."""
    text = page.read_text()
    (script,) = SCRIPT.findall(text)
    code = f"{script}{{{READER}}}"
    copy = page.with_name("copy.html")
    copy.write_text(text.replace(script, code).replace(sha256(script), sha256(code)))
    words = [*BROWSER.split(), f"--window-size={width},900", "--dump-dom", copy.as_uri()]
    process = subprocess.run(words, capture_output=True, text=True, timeout=300)
    values = re.search('data-found="(.*?)"', process.stdout)
    assert values is not None, process.stderr[-2000:]
    return json.loads(html.unescape(values[1])) | {"console": re.findall("CONSOLE.*", process.stderr)}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of ten groups, a run that is unfinished, and one whose completions attack the page."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = make_sweep(folder, 10, steps=2)  # too few for curves of training metrics, which take a while to draw
    make_run(folder, "algo=dpo", done=False, steps=2)
    _, hostile = make_run(folder, "algo=sft", "model.name='<script>1</script>'", steps=2)
    entries = [completion(row, "invalid", attack, question=attack, gold=attack) for row, attack in enumerate(ATTACKS)]
    write_lines(hostile / "completions.jsonl", entries)
    (hostile / "error.txt").write_text(NASTY)
    (hostile / "DONE").unlink()
    publish(sweep)
    return sweep / "report"


def test_a_report_has_a_page_figures_with_captions_and_tables(report):
    names = {path.stem for path in (report / "figures").iterdir()}
    captions = (report / "figures/captions.txt").read_text()
    page = (report / "report.html").read_text()

    assert names_in(report / "tables") == {"runs.csv", "groups.csv", "groups.tex"}
    assert names >= {"curve_pass_1", "curve_invalid", "final", "pass_at_k", "maj_at_k", "sweep_effective_positive"}
    for name in names - {"captions"}:
        assert f"{name}: " in captions
        assert (report / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF-")
        assert (report / f"figures/{name}.png").read_bytes()[1:4] == b"PNG"
    assert "12 runs (1 running, 1 unfinished, 10 done) in 12 groups; they differ in algo.name, effective" in page
    assert "python -m topr_exp algo=dpo; python -m topr_exp algo=sft &#x27;model.name=" in page, "with its quotes"
    sections = ["result", "sweep", "final", "curves", "overview", "runs", "samples", "settings", "completions"]
    assert re.findall(r'<section id="(\w+)">', page) == sections, "what was swept is the first figure"
    assert all(title.strip() for title in re.findall("<th>(.*?)</th>", page))


def test_completions_that_runs_share_stand_there_once_with_their_question_in_the_line(tmp_path):
    """The base's are those of every run of a sweep; what a run drew itself is its own."""
    shared = completion(0, "correct", "The answer is 7.", question=f"How  many\n apples? {'x' * 200}")
    for seed in (0, 1):
        _, folder = make_run(tmp_path, f"seed={seed}", rng=seed)
        of_run = completion(0, "correct", f"Trained {seed} says 7.", iteration=1)
        write_lines(folder / "completions.jsonl", [shared, of_run])
    runs = find_runs([tmp_path])

    section = render_completions(runs)

    assert "3 of 3 different completions" in section
    shared_line, *lines_of_runs = re.findall("<summary>(.*?)</summary>", section)
    assert "run=base of 2 runs" in shared_line
    assert shared_line.endswith(" · How many apples? …")
    assert section.count(f"<p>runs: {runs[0].name}, {runs[1].name}</p>") == 1
    for line, run in zip(lines_of_runs, runs, strict=True):
        assert f"run={run.name} " in line


def test_hostile_text_is_escaped_and_no_script_but_the_page_s_may_run(report):
    page = (report / "report.html").read_text()
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    (script,) = SCRIPT.findall(page)

    assert page.count("<script") == 1
    assert page.count(html.escape(NASTY)) == 4, "question, completion, gold and error"
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{sha256(script)}';" in policy
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//|\w+\.)""", page)


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium not installed (see .ci/run)")
def test_what_a_reader_does_and_sees(report):
    """It fits, asks nothing of the network (its policy refuses even its own script), sorts, filters, shows and hides,
    and hostile text stays text."""
    assert read(report / "report.html", 1280)["cut"] == 0, "tables whose last columns are hidden"
    values = read(report / "report.html", 640)
    assert values["fits"], "the page scrolls sideways"
    assert min(values["drawn"]) >= 1
    assert values["asked"] == []
    assert values["answer"] == "refused"
    assert values["console"]
    assert all("Content Security Policy" in line for line in values["console"])

    best = values["best"]
    shares = [float(text.split()[0]) for text in best if text != "–"]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) < len(best) == best.index("–") + best.count("–"), "what is missing comes last"
    assert values["worst"] == [*best[: len(shares)][::-1], *best[len(shares) :]]
    assert [name[:3] for name in values["filtered"]] == ["tis"] * 5
    lines = list(map(str, range(10)))
    assert values["lines"] == [lines, lines[1:], lines]

    assert values["count"] == f"4 of {10 * 60 + len(ATTACKS)}"
    for text in values["cards"]:
        assert re.match("verdict=correct .*gold=7 .*log π=-3.50", text)
    assert values["hostile"][1::2] == [attack.replace("\0", "") for attack in ATTACKS]  # HTML has no character 0
    title, elements_of_attacks = values["made"]
    assert title != "hacked"
    assert elements_of_attacks == 0


# ---- the folder of a report; runs that were just begun have no figures, which take a while


@pytest.fixture
def runs(tmp_path):
    make_run(tmp_path / "runs", done=False, steps=2)
    return tmp_path / "runs"


def write_manifest(folder, *files):
    (folder / "manifest.json").write_text(json.dumps({"written_by": AUTHOR, "files": files}))


def test_a_failing_report_is_a_warning_of_the_sweep(runs, capsys):
    (runs / "report/report.html").mkdir(parents=True)
    write_manifest(runs / "report")
    publish(runs)
    assert re.fullmatch(r"warning: no report \(.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("manifest", [None, '{"files": ["thesis.tex"]}', f'{{"written_by": "{AUTHOR}", "files": 3}}'])
def test_a_folder_with_files_that_no_report_listed_is_refused(manifest, runs, tmp_path):
    out = write_file(tmp_path / "out/thesis.tex", "mine").parent
    if manifest is not None:
        (out / "manifest.json").write_text(manifest)
    files = contents(out)

    with refused(rf"^{out} holds files that no report listed \({out}/"):
        write_report([runs], out)

    assert contents(out) == files


def test_a_report_replaces_what_an_earlier_one_listed_alone(runs, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"report: {out}/report.html (figures/ and tables/ beside it)\n"
    files = read_json(out / "manifest.json")["files"]
    assert {"manifest.json", *files} == contents(out).keys()
    own_files = {"figures/photo.png", "mine/thesis.tex"}
    for name in (*own_files, "figures/curve_old.pdf", "../mine.txt"):
        write_file(out / name, "mine")
    write_manifest(out, *files, "figures/curve_old.pdf", "figures/photo.png", "mine/thesis.tex", "../mine.txt")

    write_report([runs], out)

    assert {"manifest.json", *own_files, *files} == contents(out).keys()
    assert (tmp_path / "mine.txt").exists()
    write_manifest(out, *(name for name in files if name != "tables/runs.csv"))
    with refused(rf"no report listed \({out / 'tables' / 'runs.csv'}\)"):
        write_report([runs], out)


def test_a_page_of_many_folders_names_some(runs, tmp_path):
    folders = [Path(shutil.copytree(runs, tmp_path / f"sweep{number}")) for number in range(4)]

    for count, title in ((3, "sweep0 and sweep1 and sweep2"), (4, "sweep0 and sweep1 and 2 more")):
        page = write_report(folders[:count], tmp_path / "out")
        assert f"<title>{title}</title>" in page.read_text()


@pytest.mark.parametrize("name", ["report", "report/figures", "report/tables"])
def test_no_report_is_written_through_a_link(name, runs, tmp_path):
    """As a folder that somebody else packed may have it, with a manifest that names files beyond."""
    file = write_file(tmp_path / "elsewhere/curve_mine.pdf", "mine")
    link = runs / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(file.parent)
    if name != "report":
        write_manifest(link.parent, "figures/curve_mine.pdf", "tables/curve_mine.pdf")

    with refused(f"^{link} is a symbolic link"):
        write_report([runs])

    assert contents(file.parent) == {"curve_mine.pdf": b"mine"}
    if name == "report":  # but a link that the user names is theirs
        file.unlink()
        assert write_report([runs], link).exists()


@pytest.mark.extended
def test_many_runs_make_a_small_page(tmp_path):
    page = write_report([make_sweep(tmp_path, 200, steps=1000)])
    assert page.stat().st_size <= 25e6
