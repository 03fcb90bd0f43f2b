"""`python -m topr_exp.report`: what it writes."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import pytest

from tests.run_folders import completion, make_run, make_sweep, write_lines
from topr_exp.report import figures
from topr_exp.report.__main__ import AUTHOR, main
from topr_exp.sweeps.launch import publish

NASTY = "</script><script>alert(1)</script><!-- \u2028 $script ${data} \\u003c"


def test_page_figures_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, 20)
    assert main([str(sweep)]) == 0
    out = sweep / "report"
    assert capsys.readouterr().out == f"report: {out / 'report.html'} (figures/ and tables/ beside it)\n"
    assert {path.name for path in (out / "tables").iterdir()} == {"runs.csv", "groups.csv", "groups.tex"}
    names = {path.stem for path in (out / "figures").iterdir()}
    assert names >= {"curve_pass_1", "curve_invalid", "final", "pass_at_k", "maj_at_k", "sweep_effective_positive"}
    names.remove("captions")
    captions = (out / "figures" / "captions.txt").read_text()
    for name in names:
        assert f"{name}: " in captions
        assert (out / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
        assert (out / "figures" / f"{name}.png").read_bytes()[1:4] == b"PNG"
    page = (out / "report.html").read_text()
    assert "20 runs (20 done) in 10 groups; they differ in algo.name, effective_positive." in page
    assert main([str(tmp_path / "missing")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'missing'}: no such folder\n"
    # The report is no run, and the same runs give the same files.
    assert main([str(sweep), "--out", str(tmp_path / "other")]) == 0
    for path in (out / "figures").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "figures" / path.name).read_bytes(), path.name
    other = (tmp_path / "other" / "report.html").read_text()
    assert re.sub(r"Made [-\d: ]*", "", other) == re.sub(r"Made [-\d: ]*", "", page)


def test_hostile_text_is_escaped_and_no_script_but_the_page_s_may_run(tmp_path: Path) -> None:
    _, folder = make_run(tmp_path, "name=x", "algo.name='<script>1</script>'")
    write_lines(folder / "completions.jsonl", [completion(0, "invalid", NASTY, question=NASTY, gold=NASTY)])
    (folder / "error.txt").write_text(NASTY)
    (folder / "DONE").unlink()
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<script") == 1
    assert page.count(html.escape(NASTY)) == 4, "question, completion, gold and error"
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    script = re.findall("<script>(.*?)</script>", page, re.DOTALL)[0]
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{known}';" in policy
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//|\w+\.)""", page)


def test_a_sweep_writes_its_report_and_survives_a_failing_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    monkeypatch.setattr(figures, "plots", lambda *_: [])
    monkeypatch.setattr(figures, "draw_files", lambda _: (files, {}))


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "manifest"),
    [("figures/photo.png", None), ("thesis.tex", '{"files": ["letter.txt"], "created": "2024"}'),
     ("figures/photo.png", json.dumps({"written_by": AUTHOR, "files": 3}))],
)  # fmt: skip
def test_a_folder_with_files_that_no_report_listed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, manifest: str | None
) -> None:
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
    for path in (out / "figures" / "old.pdf", out / "tables" / "runs.csv"):
        path.write_text("of an earlier report")
    listing(*listed, "figures/old.pdf", "../mine.txt")
    assert main(command) == 0
    assert {"manifest.json", "figures/photo.png", *listed} == contents(out).keys()
    assert contents(out)["figures/photo.png"] == (tmp_path / "mine.txt").read_text() == "mine"
    assert contents(out)["tables/runs.csv"].startswith("run,")
    listing(*(one for one in listed if one != "tables/runs.csv"))
    assert main(command) == 1
    assert f"no report listed ({out / 'tables' / 'runs.csv'})" in capsys.readouterr().err


@pytest.mark.extended
def test_many_runs_make_a_small_page(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 200, steps=1000)
    assert main([str(sweep)]) == 0
    assert (sweep / "report" / "report.html").stat().st_size <= 25e6
