"""The record of a run against its files, counted here by other means; files of records; checks against records."""

import copy
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from reproduce import records
from reproduce.check import compare
from reproduce.figure import key_of
from reproduce.records import BINS, KEYS, binned_metrics, extract, identity_of
from tests import by_hand
from tests.conftest import column, config_of, each_row, lines_of
from tests.reproduce.worlds import figure_named, group, planted_runs
from topr_exp.report.reader import Run
from topr_exp.types import VERDICTS

pytestmark = pytest.mark.extended

METRICS = ("grad_norm", "log_ratio_q50_neg", "length")


def stored_rows(table):
    """The rows of a table of the store, one shard after the other."""
    rows = []
    for shard in sorted(table.glob("shard-*.arrow")):
        rows += pa.ipc.open_file(pa.memory_map(str(shard))).read_all().to_pylist()
    return rows


def vote_score(verdicts):
    """The thousandths of the most frequent answers that are correct."""
    votes = [(VERDICTS.index(row["verdict"]), row["class"]) for row in verdicts]
    return round(1000 * by_hand.majority(votes))


def counts_by_hand(verdicts):
    """What a record holds of an evaluation: numbers of each problem's four completions, in characters."""
    correct, invalid, maj = [], [], []
    for start in range(0, len(verdicts), 4):
        problem_verdicts = verdicts[start : start + 4]
        counts = Counter(column(problem_verdicts, "verdict"))
        correct.append(str(counts["correct"]))
        invalid.append(str(counts["invalid"]))
        maj.append(str(vote_score(problem_verdicts)))
    return {"correct": " ".join(correct), "invalid": " ".join(invalid), "maj": " ".join(maj)}


def test_a_record_is_what_the_runs_files_say(finished):
    record = extract(finished.folder, METRICS)

    lines = lines_of(finished.folder / "eval.jsonl")
    evaluations = [line for line in lines if not line.get("subset")]
    assert column(evaluations, "iteration") == [0, 1, 2]
    for line, results in zip(evaluations, record["iterations"], strict=True):
        verdicts = stored_rows(Path(line["verdicts"]))
        assert results["of_problems"] == counts_by_hand(verdicts)
        for verdict, count in Counter(column(verdicts, "verdict")).items():
            assert results[verdict] == pytest.approx(count / 24, abs=1e-5)
        assert results["pass@1"] == results["correct"]
        assert results["n"] == results["k"] == 4
    base, _, final = record["iterations"]
    assert record["base"] == base != final == record["final"]


def test_curve_lengths_and_metrics_of_a_record_are_the_files(finished):
    """Three problems, after each of an iteration's updates; the test at its end is that of the fourth."""
    record = extract(finished.folder, METRICS)

    updates = lines_of(finished.folder / "metrics.jsonl")
    assert len(updates) == 8 < BINS  # each is a part by itself
    assert_column(record["metrics"], range(1, 9), "grad_norm", updates)
    lines = lines_of(finished.folder / "eval.jsonl")
    tests = [line for line in lines if line.get("subset") and line.get("step") != 4]
    assert_column(record["curve"], range(9), "pass@1", tests)
    assert_column(record["lengths"], range(9), "length_correct", tests)
    assert "lengths" not in extract(finished.folder, ("grad_norm",))
    assert record["settings"]["optim.lr"] == 1e-3
    assert "effective_positive" not in record["settings"]  # null


def assert_column(columns, steps, name, lines):
    assert columns["step"] == [*steps]
    assert columns[name] == pytest.approx([line.get(name) for line in lines], rel=1e-5)


def test_a_longer_runs_updates_are_averaged_in_twenty_parts():
    """50 updates: ten parts of three and ten of two; what is not finite is left out of its part's mean."""
    updates = [{"optimizer_step": step, "grad_norm": float(step)} for step in range(1, 51)]
    updates[0]["grad_norm"] = None
    updates[1]["grad_norm"] = math.inf
    run = Run(Path("x"), "x", config={"optim": {"batch_size": 1}}, updates=updates)

    columns = binned_metrics(run, ["grad_norm"])

    norms = columns["grad_norm"]
    assert columns["step"] == [*range(3, 31, 3), *range(32, 51, 2)]
    assert norms[0] == 3
    assert norms[1:10] == [*range(5, 30, 3)]
    assert norms[10:] == [*np.arange(31.5, 51, 2)]


IDENTIFYING = """
"algo=gspo algo.eps_low=0.1" | {"algo.eps_low": 0.1}
"algo=cispo" | {}
"algo=cispo optim.reduction=sequences" | {"optim.reduction": "sequences"}
"algo.length_normalize=false" | {"algo.length_normalize": False}
"algo.b_neg=5" | {"algo.b_neg": 5.0}
"algo=policy_gradient algo.b_pos=.inf" | {}
"model=tiny_long data.turns=4" | {"data.turns": 4}
"""


@each_row("words identifying", IDENTIFYING, literals=True)
def test_settings_of_losses_tell_runs_apart_where_they_are_not_as_usual(words, identifying):
    settings = json.loads(identity_of(config_of(*words.split())))

    assert {key: value for key, value in settings.items() if key not in KEYS} == identifying


# ---- files of records


def test_records_come_back_from_their_file_with_environment_and_base(tmp_path):
    """Both stand in the file once for many runs."""
    first, second = group("topr", 50, seeds=(0, 1)).records()
    second["environment"] = {"git_commit": "def"}

    records.write(tmp_path / "x.json", [second, first], {"number": 1.5})

    stored = records.read(tmp_path / "x.json")
    assert stored["extra"] == {"number": 1.5}
    assert len(stored["bases"]) == 1
    recorded = records.records_by_identity(stored)
    for record in (first, second):
        assert records.differences(recorded[key_of(record)], record) == []
        assert recorded[key_of(record)]["environment"] == record["environment"]
    second["final"]["of_problems"]["correct"] = "1 2"
    assert records.differences(recorded[key_of(second)], second)[0].startswith("final.of_problems.correct: ")
    assert records.read(tmp_path / "absent.json")["runs"] == []


@pytest.mark.parametrize("counts", ["4 0 4 1000", "0", " ".join(map(str, range(36))), " ".join(map(str, range(40)))])
def test_counts_come_back_from_fewer_characters(counts):
    assert records.unpack_counts(records.pack_counts(counts)) == counts
    assert records.pack_counts("4 0 4 1000") == "4 0 1000:0102"


# ---- a check says how many runs agree, how far the others are off, and whether a verdict changes

FIG1 = figure_named("fig1")


@pytest.fixture
def fig1(tmp_path):
    """Figure 1 of two algorithms and three seeds as it is recorded, and the same numbers of now."""
    records.write(tmp_path / "fig1.json", planted_runs(group("topr", 75), group("ppo", 40)), {})
    stored = records.read(tmp_path / "fig1.json")
    return stored, copy.deepcopy(records.records_by_identity(stored))


def test_a_check_says_how_far_off_runs_are_and_which_verdicts_turn_round(fig1):
    stored, computed = fig1
    assert compare(FIG1, stored, computed) == ["fig1: the same to the digit in 6 of 6 runs"]

    topr_records = [record for record in computed.values() if record["settings"]["algo.name"] == "topr"]
    topr_records[0]["training_seconds"] = 1e9
    topr_records[0]["final"]["pass@1"] += 0.005
    summary, difference = compare(FIG1, stored, computed)

    assert summary == (
        "fig1: the same to the digit in 5 of 6 runs; in the others final shares differ by up to 0.5 points, "
        "no verdict changes"
    )
    assert difference.startswith(f"  {topr_records[0]['run']}: final.pass@1: 0.7")

    (collapsed, *_) = group("topr", 31).records()
    for record in topr_records:
        record["final"] = collapsed["final"]
    summary, *_ = compare(FIG1, stored, computed)

    claims = "tiny, PPO stalls: it gains less than half of what TOPR gains", "tiny, TOPR ends above PPO"
    changes = "; ".join(f"{claim}: reversed, was shown" for claim in claims)
    assert summary.endswith(f", 2 verdicts changed: {changes}")
