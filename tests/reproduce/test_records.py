"""The record of a run against its files, counted here by other means; runs by settings; checks against records."""

import copy
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from reproduce import records
from reproduce.check import check, compare, write_figure
from reproduce.jobs import Need, Request
from reproduce.page import write_page
from reproduce.records import BINS, KEYS, KEYS_OF_LOSSES, binned_metrics, extract, identity_of
from reproduce.selection import Runs, collapsed_seeds, collapsed_share, over_seeds
from tests import by_hand
from tests.conftest import config_of, lines_of
from tests.reproduce.worlds import group, named
from topr_exp.config.settings import Config
from topr_exp.report.reader import Run

pytestmark = pytest.mark.extended

METRICS = ("grad_norm", "log_ratio_q50_neg", "length")


def rows(place: Path) -> list[dict[str, Any]]:
    """A table of a store: its shards one after the other."""
    shards = sorted(place.glob("shard-*.arrow"))
    return [row for shard in shards for row in pa.ipc.open_file(pa.memory_map(str(shard))).read_all().to_pylist()]


def counted(verdicts: Sequence[dict[str, Any]], n: int) -> dict[str, str]:
    """Of each problem the correct and the invalid completions, and whether the most frequent answer is right: in
    thousandths, ties shared."""
    counts: dict[str, list[int]] = {"correct": [], "invalid": [], "maj": []}
    for start in range(0, len(verdicts), n):
        mine = verdicts[start : start + n]
        for name in ("correct", "invalid"):
            counts[name].append(sum(row["verdict"] == name for row in mine))
        votes = Counter(row["class"] for row in mine if row["verdict"] != "invalid")
        first = [answer for answer, count in votes.items() if count == max(votes.values())]
        right = {row["class"] for row in mine if row["verdict"] == "correct"}
        counts["maj"].append(round(1000 * sum(answer in right for answer in first) / max(len(first), 1)))
    return {name: " ".join(map(str, values)) for name, values in counts.items()}


def test_a_record_is_what_the_run_s_files_say(finished: Config) -> None:
    record, folder = extract(finished.folder, METRICS), finished.folder
    evaluations = [evaluation for evaluation in lines_of(folder / "eval.jsonl") if not evaluation.get("subset")]
    assert [evaluation["iteration"] for evaluation in evaluations] == [0, 1, 2]
    for stored, results in zip(evaluations, record["iterations"], strict=True):
        verdicts = rows(Path(stored["verdicts"]))
        assert len(verdicts) == 6 * 4
        assert results["of_problems"] == counted(verdicts, 4)
        for name in ("correct", "incorrect", "invalid"):
            share = sum(row["verdict"] == name for row in verdicts) / len(verdicts)
            assert results[name] == pytest.approx(share, abs=1e-5)
        assert (results["pass@1"], results["n"], results["k"]) == (results["correct"], 4, 4)
    assert record["base"] == record["iterations"][0]
    assert record["final"] == record["iterations"][-1]
    assert (
        len({json.dumps(evaluation["of_problems"]) for evaluation in record["iterations"]}) == 3
    )  # the policy did move


def test_curve_lengths_and_metrics_of_a_record_are_the_files(finished: Config) -> None:
    """Three problems, after each of the four updates of an iteration, and at its end, which is its last update too."""
    record, folder = extract(finished.folder, METRICS), finished.folder
    points = [entry for entry in lines_of(folder / "eval.jsonl") if entry.get("subset")]
    steps = [(iteration, step) for iteration in (1, 2) for step in (1, 2, 3, 4, None)]
    assert [(entry["iteration"], entry.get("step")) for entry in points] == [(0, None), *steps]
    tests, updates = [*points[:4], *points[5:9], points[10]], lines_of(folder / "metrics.jsonl")
    assert len(updates) == 8 < BINS  # each is a part of its own
    for part, names, entries in (
        ("curve", ("pass@1", "correct", "incorrect", "invalid"), tests),
        ("lengths", ("length", "length_correct", "length_incorrect"), tests),
        ("metrics", METRICS[:2], updates),
    ):
        assert record[part]["step"] == list(range(part == "metrics", 9))
        for name in names:
            values = [entry.get(name) for entry in entries]
            assert record[part][name] == [
                None if value is None else pytest.approx(value, 1e-5, 1e-5) for value in values
            ], name
    assert "lengths" not in extract(folder, ("grad_norm",))
    summary = json.loads((folder / "summary.json").read_text())
    assert (record["run"], record["summary"]["n_train"]) == (folder.name, summary["n_train"])
    settings = record["settings"]
    assert (settings["algo.name"], settings["optim.lr"], settings["iterations"]) == ("topr", 1e-3, 2)
    assert "effective_positive" not in settings  # null


@pytest.mark.parametrize(
    ("words", "identifying"),
    [
        ([], {}),
        (["algo=cispo"], {}),
        (["algo=gspo", "algo.eps_low=3e-4"], {}),
        (["algo.length_normalize=false"], {"algo.length_normalize": False}),
        (["algo.advantage=group"], {"algo.advantage": "group"}),
        (["algo=gspo", "algo.eps_low=0.1"], {"algo.eps_low": 0.1}),
        (["algo=vespo", "algo.c1_pos=1.0"], {"algo.c1_pos": 1.0}),
        (["algo=cispo", "optim.reduction=sequences"], {"optim.reduction": "sequences"}),
        (["algo.length_normalize=false", "optim.reduction=tokens"],
         {"algo.length_normalize": False, "optim.reduction": "tokens"}),
        (["model=tiny_long", "data.turns=4"], {"data.turns": 4}),
    ],
)  # fmt: skip
def test_settings_of_losses_tell_runs_apart_where_they_are_not_as_usual(
    words: list[str], identifying: dict[str, Any]
) -> None:
    settings = json.loads(identity_of(config_of(*words)))
    assert {key: settings[key] for key in KEYS_OF_LOSSES if key in settings} == identifying
    assert settings.keys() - set(KEYS_OF_LOSSES) <= set(KEYS)


def test_a_longer_run_s_updates_are_averaged_in_twenty_parts() -> None:
    """50 updates: ten parts of three and ten of two. What is missing or not finite is left out of its part's mean."""
    updates: list[dict[str, Any]] = [{"optimizer_step": i, "grad_norm": float(i)} for i in range(1, 51)]
    updates[0]["grad_norm"], updates[1]["grad_norm"] = None, math.inf
    for update in updates[3:6]:
        update["grad_norm"] = None
    columns = binned_metrics(Run(Path("x"), "x", config={"optim": {"batch_size": 1}}, updates=updates), ["grad_norm"])
    assert columns["step"] == [*range(3, 31, 3), *range(32, 51, 2)]
    means = [*(i - 1.0 for i in range(3, 31, 3)), *(i - 0.5 for i in range(32, 51, 2))]
    assert columns["grad_norm"] == [3.0, None, *means[2:]]


# ---- runs by their settings, and intervals over seeds alone


def test_runs_are_told_apart_by_their_settings() -> None:
    groups = [group("topr", 50, effective_positive=p, compose__positive_share=q) for p in (0.5, 0.02, 0.1)
              for q in (0.1, 0.5)]  # fmt: skip
    runs = Runs([record for members in groups for record in members.records()] + group("topr", 20).records())
    assert {p: len(members) for p, members in runs.split("effective_positive").items()} == {0.02: 6, 0.1: 6, 0.5: 6}
    assert len(runs.where({"effective_positive": 0.1, "compose.positive_share": 0.5})) == 3
    assert len(runs.where({"effective_positive": None})) == 3
    assert runs.seeds == sorted(runs.seeds)


def test_the_interval_over_seeds() -> None:
    values = [0.3, 0.5, 0.1]
    interval = over_seeds(values)
    assert interval is not None
    assert (interval.value, interval.low, interval.high) == pytest.approx(by_hand.interval(values), abs=1e-3)
    assert over_seeds(values[:1]) is None


def test_a_seed_collapsed_below_half_of_its_base() -> None:
    """The bases are at 40 %: 19 is below half of that, 21 is not."""
    runs = Runs(group("topr", (19.0, 21.0, 5.0), base={"correct": 40.0}).records())
    assert collapsed_seeds(runs) == [True, False, True]
    share = collapsed_share(runs)
    assert share is not None
    assert (share.value, share.seeds) == (2 / 3, 3)
    assert collapsed_share(Runs([])) is None


# ---- a check says how many runs agree, how far the others are off, and whether a verdict changes


Found = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture
def fig1(tmp_path: Path) -> Found:
    """Figure 1 of two algorithms and three seeds as it is recorded, and the same numbers of now."""
    made = [record for record in (group("topr", 75), group("ppo", 40)) for record in record.records()]
    records.write(tmp_path / "fig1.json", made, {})
    stored = records.read(tmp_path / "fig1.json")
    return stored, copy.deepcopy(records.records_by_identity(stored))


def test_another_digit_is_counted_and_measured(fig1: Found) -> None:
    stored, computed = fig1
    assert compare(named("fig1"), *fig1) == ["fig1: the same to the digit in 6 of 6 runs"]
    second = next(record for record in computed.values() if record["settings"]["algo.name"] == "topr")
    second["training_seconds"] = 1e9
    second["final"]["pass@1"] += 0.005
    text, moved = compare(named("fig1"), stored, computed)
    assert text == (
        "fig1: the same to the digit in 5 of 6 runs; in the others final shares differ by up to 0.5 points, "
        "no verdict changes"
    )
    assert moved.startswith(f"  {second['run']}: final.pass@1: 0.7")


def test_a_verdict_that_turns_round_is_named(fig1: Found) -> None:
    stored, computed = fig1
    for record in computed.values():
        if record["settings"]["algo.name"] == "topr":
            record["final"] = group("topr", 31).records()[0]["final"]
    text, *_ = compare(named("fig1"), stored, computed)
    claim = "tiny, PPO stalls: it gains less than half of what TOPR gains"
    assert text.endswith(f", 1 verdict changed: {claim}: reversed, was shown")


def test_a_figure_that_lacks_runs_says_how_many(fig1: Found, tmp_path: Path) -> None:
    undone = SimpleNamespace(config=SimpleNamespace(folder=tmp_path / "undone"))
    jobs: Any = dict.fromkeys([*fig1[1], "a", "b"], undone)
    figure, request = named("fig1"), Request([], True, [], 1, False, tmp_path)
    for jobs_of_figure, note in (
        (jobs, "**2 of 8 runs are missing**"),
        (dict.fromkeys(fig1[1], undone), "6 runs, seeds 0 1 2"),
    ):
        assert write_figure(Need(figure, jobs_of_figure, ["fig1 algo=rec"]), request) == 6
        page = write_page([figure], tmp_path).read_text()
        assert note in page
        assert "are missing**, and all of 1 sweep whose rates are not chosen yet." in page
    write_figure(Need(figure, dict.fromkeys(fig1[1], undone)), request)
    assert "missing" not in write_page([figure], tmp_path).read_text()


def test_a_check_of_a_run_that_did_not_finish_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = SimpleNamespace(config=SimpleNamespace(folder=tmp_path / "run"))
    need: Any = SimpleNamespace(figure=named("fig1"), jobs={"key": job})
    assert not check(need, tmp_path)
    assert f"run: not recorded in {tmp_path / 'fig1.json'}" in capsys.readouterr().out
