"""The bench: its rows are the documents' losses, a bench that broke off goes on, and a cell says why it is empty."""

import json
import re
import shutil

import pytest

from reproduce.bench.__main__ import cells_of_row, make_bench, parser
from reproduce.bench.cells import REPORTED_SEEDS
from reproduce.bench.conditions import CONDITIONS, NAMED_SETTINGS, REFERENCE, SHIPPED, is_loss_word, row_of
from reproduce.bench.row_files import read_rows
from reproduce.bench.scores import score_cells
from reproduce.bench.table import cell_text, write_bench
from tests.conftest import ROOT, column, document, refused, values_of, write_file
from tests.extending import LOSS, project
from tests.reproduce.worlds import group
from topr_exp.types import ConfigError

pytestmark = pytest.mark.extended

NOT_FINITE = "the loss or its gradient is not finite at step 7"
STOPPED = 143


class CopiedRuns:
    """A launcher that makes each run a copy of a finished one, but for those that fail."""

    def __init__(self, finished, error_of=lambda job: ""):
        self.finished, self.error_of = finished, error_of
        self.started = []  # folders of runs
        self.most_runs = 10**9  # then it is stopped

    def __call__(self, jobs, words):
        for job in jobs:
            if len(self.started) == self.most_runs:
                return STOPPED
            folder = job.config.folder
            self.started.append(folder.name)
            if error := self.error_of(job):
                write_file(folder / "error.txt", error)
            else:
                shutil.copytree(self.finished.folder, folder)
        return 0


def bench(folder, launch, *words):
    """The exit code of a small bench, its table and its records."""
    command = [*words, "--small", "--jobs", "1", "--out", str(folder / "results"), f"output_dir={folder}"]
    code = make_bench(parser().parse_intermixed_args(command), launch)
    table = folder / "results/bench.md"
    text = table.read_text() if table.exists() else ""
    return code, text, read_rows(folder / "results")


def settings_in(stored, key, *, seeds=range(1000)):
    """The values of a setting in the recorded runs of these seeds."""
    settings = column(stored["runs"], "settings")
    return {run_settings[key] for run_settings in settings if run_settings["seed"] in seeds}


# ---- rows and conditions


def test_every_shipped_loss_has_a_row():
    assert sorted(SHIPPED) == sorted(path.stem for path in (ROOT / "conf/algo").glob("*.yaml"))


def test_every_setting_that_a_document_names_has_a_row():
    settings = re.findall(r"^(?:- |  )[^`]*`(algo=[^`]* [^`]*)`", document("losses.md"), re.MULTILINE)
    of_loss_alone = {words for words in settings if all(map(is_loss_word, words.split()))}

    assert len(of_loss_alone) > 10
    assert of_loss_alone == {f"algo={name}" for name in NAMED_SETTINGS}


def test_every_condition_can_be_composed_for_topr():
    cells = cells_of_row(row_of(["algo=topr"]), parser().parse_intermixed_args(["algo=topr"]))

    assert values_of(cells, "condition") == [*CONDITIONS]
    identities = set()
    for cell in cells:
        assert "effective_positive" not in cell.settings
        identities.add(json.dumps(cell.settings, sort_keys=True))
    assert len(identities) == len(CONDITIONS)


# ---- the flow


def test_a_bench_that_broke_off_goes_on(tmp_path, finished):
    launch = CopiedRuns(finished)
    launch.most_runs = 4
    words = ["algo=topr", "--conditions", "fresh"]

    code, _, stored = bench(tmp_path, launch, *words)
    assert code == STOPPED
    assert len(stored["runs"]) == 4
    launch.most_runs = 10**9
    code, table, stored = bench(tmp_path, launch, *words)

    assert code == 0
    # Five rates, the one below the lowest, which all are as good as, two seeds each; then three reported seeds.
    assert len(launch.started) == len(set(launch.started)) == 2 * 6 + 3
    assert settings_in(stored, "optim.lr", seeds=REPORTED_SEEDS) == {3e-6}
    assert "| `topr` | (" in table
    assert bench(tmp_path, launch, *words)[1] == table
    assert len(launch.started) == 15
    assert (tmp_path / "results/bench.png").read_bytes().startswith(b"\x89PNG")


def test_rows_that_are_computed_at_once_stand_together(tmp_path, finished):
    launch = CopiedRuns(finished)

    def launch_beside_another_row(jobs, words):
        bench(tmp_path, launch, "algo=topr", "--conditions", "fresh")
        return launch(jobs, words)

    _, table, stored = bench(tmp_path, launch_beside_another_row, "algo=tis", "--conditions", "fresh")

    assert settings_in(stored, "row") == {"topr", "tis"}
    assert "| `tis` | = |" in table


def test_no_record_is_written_once_the_code_has_changed(tmp_path, finished, monkeypatch):
    launch = CopiedRuns(finished)

    def refuse_changed_code(out):
        if launch.started:
            raise ConfigError(f"--out {out}: uncommitted changes")

    monkeypatch.setattr("reproduce.bench.row_files.refuse_changed_code", refuse_changed_code)
    with refused(f"--out {tmp_path}/results: uncommitted changes"):
        bench(tmp_path, launch, "algo=topr", "--conditions", "fresh")

    assert read_rows(tmp_path / "results")["runs"] == []


def test_a_cell_that_a_loss_cannot_have_says_why_and_the_row_goes_on(tmp_path, finished):
    code, table, stored = bench(tmp_path, CopiedRuns(finished), "algo=dpo", "--conditions", "fresh,2 turns")

    assert code == 0
    assert "- `dpo`, fresh: schedule.prompts must be null for algo=dpo: a round may have no pairs" in table
    assert settings_in(stored, "condition") == {"2 turns"}
    assert "**TOPR's row is missing**" in table


def test_a_run_that_fails_leaves_its_cell_empty_and_one_that_diverges_counts_as_nothing(tmp_path, finished):
    def error_of(job):
        if job.config.data.name == "ledger":
            return "algo=topr has nothing to learn from"
        return NOT_FINITE if job.config.optim.lr < 1e-4 else ""

    launch = CopiedRuns(finished, error_of)
    code, table, stored = bench(tmp_path, launch, "algo=topr", "--conditions", "fresh,2 turns")

    assert code == 1
    assert "- `topr`, 2 turns: algo=topr has nothing to learn from" in table
    assert settings_in(stored, "optim.lr", seeds=REPORTED_SEEDS) == {1e-4}
    diverged = [run["final"]["pass@1"] for run in stored["runs"] if run["settings"]["optim.lr"] < 1e-4]
    assert set(diverged) == {0}


def test_a_users_loss_has_its_row(tmp_path, finished):
    with project(tmp_path, LOSS) as folder:
        words = ["algo=soft_topr", "algo.ceiling=4", "--config-dir", str(folder / "conf"), "--conditions", "fresh"]
        code, table, stored = bench(tmp_path / "out", CopiedRuns(finished), *words)

    assert code == 0
    assert settings_in(stored, "row") == {"soft_topr algo.ceiling=4"}
    assert "| `soft_topr algo.ceiling=4` | (" in table


# ---- differences


def records_of(row, condition, correct):
    """Made-up records of a row's three seeds, which end at `correct` percent."""
    return group(row.split()[0], correct, row=row, condition=condition).records()


def scored(*cells):
    return score_cells({"runs": [record for cell in cells for record in cell], "rows": {}})


def test_a_difference_to_topr_is_bold_where_it_is_decided():
    scores = scored(
        records_of(REFERENCE, "fresh", 50.0),
        records_of("tis", "fresh", 70.0),
        records_of("is", "fresh", (50.0, 58.0, 44.0)),
        records_of("mine", "int4", 50.0),
        records_of("mine", "fresh", 50.0),
        records_of("ppo", "fresh", (80.0, 10.0, 80.0)),
    )

    assert cell_text(scores[REFERENCE, "fresh"]) == "(50.0)"
    assert cell_text(scores["tis", "fresh"]) == "**+20.0**"
    assert re.fullmatch(r"\+0\.[67]", cell_text(scores["is", "fresh"]))
    assert cell_text(scores["mine", "int4"]) == "(50.0)", "TOPR has no run there"
    assert cell_text(scores["mine", "fresh"]) == "="
    assert cell_text(scores["ppo", "fresh"]).endswith("†"), "a seed has collapsed, which leaves it open"
    assert not scores["ppo", "fresh"].is_decided


def test_holm_is_over_the_whole_table():
    """A difference that its own interval decides, and that it no longer does among forty of chance."""
    reference = records_of(REFERENCE, "fresh", 50.0)
    better = records_of("tis", "fresh", (52.0, 54.0, 51.2))
    cells = [reference, better]
    for condition in CONDITIONS:
        cells.append(records_of(REFERENCE, condition.name, 50.0))
        for row in ("is", "ppo", "naive", "grpo"):
            cells.append(records_of(f"{row} x", condition.name, (49.0, 50.5, 51.0)))

    by_itself = scored(reference, better)["tis", "fresh"]
    in_table = scored(*cells)["tis", "fresh"]

    assert by_itself.is_decided
    assert not in_table.is_decided
    assert in_table.claim.word == "shown alone"


def test_the_table_and_the_picture_hold_every_row(tmp_path):
    cell_records = []
    for row in ("mine algo.x=1", "tis", REFERENCE):
        cell_records += records_of(row, "fresh", 50.0)
    notes = {"dpo": {"seconds": 600.0, "without": {"fresh": "it needs pairs"}}}

    write_bench({"runs": cell_records, "rows": notes}, tmp_path)

    table = (tmp_path / "bench.md").read_text()
    assert re.findall(r"^\| `([^`]*)` \|", table, re.MULTILINE) == [REFERENCE, "tis", "dpo", "mine algo.x=1"]
    assert "| `dpo` | – |" in table
    links = re.findall(r"\]\(([^)#]+)", table)
    assert len(links) == 2
    assert all((tmp_path / link).exists() for link in links), "from a folder that isn't docs/results, too"
    assert (tmp_path / "bench.png").stat().st_size > 10_000
