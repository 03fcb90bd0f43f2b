"""Evaluations during training: the curve, completions that are kept to be read, signals."""

import os
import signal
from collections import Counter
from unittest.mock import Mock, patch

import pytest

from tests.conftest import column, lines_of, names_in, read_json, refused, small_config, write_lines
from tests.observed import OBSERVED, Observer, observed
from tests.sweep_tools import records, result
from tests.training.broken_runs import twins
from topr_exp.evaluate import main as evaluate
from topr_exp.evaluation import showcase
from topr_exp.pipeline import open_journal, run
from topr_exp.runtime.stop import Interrupted
from topr_exp.store import Store

SHOWN = 3  # completions of each verdict


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A finished run of two iterations."""
    config = small_config(tmp_path_factory.mktemp("curve"), "iterations=2")
    with patch.object(showcase, "PER_VERDICT", SHOWN):
        run(config)
    return config


@pytest.fixture(scope="module")
def curved(plain):
    """The same with evaluations while it trains, and weights that are kept."""
    settings = ["iterations=2", "evaluation.every=2", "evaluation.problems=3", "checkpoint.weights_every=2"]
    config = small_config(plain.folder.parents[1], *settings)
    run(config)
    return config


def evaluations_of(config, *, are_points):
    """The points of a run's curve, or its evaluations on all test problems."""
    evaluations = lines_of(config.folder / "eval.jsonl")
    return [evaluation for evaluation in evaluations if bool(evaluation.get("subset")) == are_points]


def test_evaluating_does_not_change_the_training(plain, curved):
    assert result(curved.folder)["weights"] == result(plain.folder)["weights"]
    assert records(curved.folder) == records(plain.folder)


def test_the_curve_has_its_points_and_the_headline_figures_are_of_all_problems(plain, curved):
    points = evaluations_of(curved, are_points=True)
    evaluations = evaluations_of(curved, are_points=False)

    positions = [f"{point['iteration']} {point.get('step')} {point.get('samples_seen')}" for point in points]
    assert positions == ["0 None None", "1 2 32", "1 4 64", "1 None None", "2 2 32", "2 4 64", "2 None None"]
    assert set(column(points, "problems")) == {3}
    pass_at_1 = column(evaluations_of(plain, are_points=False), "pass@1")
    assert column(evaluations, "pass@1") == pass_at_1
    assert read_json(curved.folder / "summary.json")["final"]["pass@1"] == pass_at_1[-1]


def test_no_update_to_evaluate_after_is_told_once(capsys):
    experiment = Mock()
    experiment.config.evaluation.every = 4

    for iteration in (1, 2):
        open_journal(experiment, Mock(step=0), 3, iteration=iteration)

    assert capsys.readouterr().err == "warning: evaluation.every=4 evaluates nothing within 3 updates\n"


def test_weights_that_are_kept_are_those_of_their_point_of_the_curve(curved, tmp_path):
    model = f"model={curved.folder}/iteration-2/update-2"

    assert evaluate([model, "data.test_problems=3", f"output_dir={tmp_path}", "cluster.threads=1"]) == 0

    (path,) = tmp_path.glob("*/*/eval.json")
    figures = read_json(path)["figures"]
    point = evaluations_of(curved, are_points=True)[4]
    assert (point["iteration"], point["step"]) == (2, 2)
    assert (figures["pass@k"], figures["length"]) == (point["pass@k"], point["length"])


def test_each_point_of_the_curve_is_of_completions_of_its_own_weights(curved):
    store = Store(curved.folder / "store")
    logp_by_position = {}
    for path in (curved.folder / "store/rollouts").iterdir():
        table = store.open(path)
        run_name, _, position = table.key["weights"].partition(", ")
        if run_name == curved.folder.name and "update" in position:
            rows = table.read(["sampler_logp"])["sampler_logp"].to_pylist()
            assert len(rows) == 3 * 4
            logp_by_position[position] = round(sum(map(sum, rows)), 6)

    positions = {"iteration 1, update 2", "iteration 1, update 4", "iteration 2, update 2", "iteration 2, update 4"}
    assert logp_by_position.keys() == positions
    assert len(set(logp_by_position.values())) == 4


def test_the_showcase_holds_a_few_of_every_kind_with_log_probabilities(plain, tmp_path):
    entries = lines_of(plain.folder / "completions.jsonl")

    counts = Counter((entry["set"], entry["iteration"], entry["verdict"]) for entry in entries)
    occasions = {(entry["set"], entry["iteration"]) for entry in entries}
    assert occasions == {("test", 0), ("test", 1), ("test", 2), ("train", 1), ("train", 2)}
    assert max(counts.values()) == SHOWN
    assert "correct" in column(entries, "verdict")
    for entry in entries:
        assert -100 < entry["logp"] < 0
        assert entry["verdict"] != "correct" or entry["answer"] == entry["gold"]
        assert entry["set"] != "train" or entry["trained_on"]
    file = write_lines(tmp_path / "damaged.jsonl", [*entries, {"set": "train"}])
    other_entries = [entry for entry in entries if (entry["set"], entry["iteration"]) != ("train", 1)]
    assert showcase.entries_of_other_sets(file, "train", 1) == other_entries


ROUNDS = ["algo=rloo", "schedule.rounds=2", "schedule.prompts=4", "schedule.updates=2", "optim.batch_size=8"]


@pytest.mark.parametrize(
    "schedule, step", [([], 2), pytest.param(ROUNDS, 1, marks=pytest.mark.extended)], ids=["offline", "in a round"]
)
def test_a_signal_within_an_evaluation_saves_and_changes_nothing(tmp_path, schedule, step):
    settings = [*OBSERVED, "sampler.prompts_per_shard=1", "checkpoint.every_seconds=600", *schedule]
    settings += [f"evaluation.every={step}", "data.train_problems=12", "data.test_problems=6"]
    undisturbed, stopped = twins(tmp_path, *settings)
    run(undisturbed)
    shards = []
    signals_at = (3, 5)  # of 6 shards; the second time before any other update

    class Disturber(Observer):
        def before_sample(self, policy, n):
            if policy.fingerprint.endswith(f"update {step}"):
                shards.append(policy.fingerprint)
                if len(shards) in signals_at:
                    os.kill(os.getpid(), signal.SIGTERM)

    with observed(Disturber()):
        for count in signals_at:
            with refused("stopped by SIGTERM", Interrupted):
                run(stopped)
            assert len(shards) == count
            assert names_in(stopped.folder / "checkpoints/1") == {f"step-{step:08}"}
        run(stopped)

    assert len(shards) == 6 + 2, "the shards at work when a signal came are sampled once more"
    assert result(stopped.folder) == result(undisturbed.folder)
