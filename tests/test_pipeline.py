"""Whole runs with the shipped model on a handful of problems: what they leave behind, and what a kill changes."""

import random
import re
import time
import weakref
from collections import Counter

import pytest

from tests.conftest import column, config_of, each_row, lines_of, names_in, overrides, read_json, small_config
from tests.observed import reading_models
from tests.processes import start_command
from tests.sweep_tools import SLOW_LOSS, result, slow, steps, wait_for
from topr_exp.models.model_folder import fetch_model_folder, weights_fingerprint
from topr_exp.pipeline import make_report, run
from topr_exp.runs.stage_timer import STAGES
from topr_exp.training.tree_attention import NAME

FILES = {"config.yaml", "environment.json", "metrics.jsonl", "eval.jsonl", "summary.json", "model", "DONE"}
SETTINGS = {"algo": "topr", "data": "math", "source": "embedded", "model": "tiny", "baseline": -0.3}


def test_a_run_leaves_everything_behind(outputs, capsys):
    """Its results, and a model that transformers loads and that another run begins with."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = small_config(outputs, "data=math", "baseline=-0.3")
    folder = config.folder

    summary = run(config)

    printed = "".join(capsys.readouterr())
    for text in ("R           positives: > 0 100 %; negatives: < 0 100 %", "[ ]: 95 % over", str(folder)):
        assert text in printed
    assert names_in(folder) >= FILES
    assert summary == read_json(folder / "summary.json")
    assert summary.items() >= SETTINGS.items()
    assert summary["n_train"] == 16 * 4
    assert tuple(summary["seconds"]) == STAGES
    assert column(lines_of(folder / "metrics.jsonl"), "step") == [1, 2, 3, 4]
    environment = read_json(folder / "environment.json")
    assert environment.keys() >= {"git_commit", "versions", "cores", "seed", "python"}

    assert NAME not in (folder / "model/config.json").read_text(), "our attention, which others do not have"
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert len(model.get_input_embeddings().weight) >= len(tokenizer)
    next_run = small_config(outputs, f"model.path={folder / 'model'}", "data=math", "name=next")
    assert run(next_run)["base"]["pass@1"] == summary["final"]["pass@1"]


# The kind of rewards | the schedule | the setting that decides the weight of positives
WEIGHT_KEYS = """
pm1 | offline | effective_positive
pm1 | on_policy | baseline
zero_one | offline | baseline
zero_one | on_policy | baseline
"""


@each_row("reward schedule key", WEIGHT_KEYS)
def test_advice_on_the_weight_of_positives_names_a_setting_that_such_a_run_has(reward, schedule, key):
    config = config_of("experiment=smoke", f"data.reward={reward}", f"schedule={schedule}")

    assert make_report(config).weight_key == key


def test_runs_that_differ_in_training_alone_share_what_was_sampled(smoke, copied_smoke, tmp_path):
    """And those that differ in the sampler's seed what they are tested on, which has a seed of its own, 0."""
    _, summary = smoke

    of_other_training = run(small_config(tmp_path, "seed=5", "effective_positive=0.5", "optim.lr=1e-5"))
    of_other_samples = run(small_config(tmp_path, "sampler.seed=7"))

    tokens = of_other_training["tokens"]
    assert tokens["tokens_sampled"] == tokens["tokens_scored"] == 0
    assert of_other_training["effective_positive"] == pytest.approx(0.5)
    assert of_other_samples["tokens"]["tokens_sampled"] > 0
    assert of_other_samples["base"]["pass@k"] == summary["base"]["pass@k"]
    seeds = column(rollout_keys(tmp_path), "seed")
    assert sorted(seeds) == [0, 0, 7]


def test_each_iteration_stands_for_itself(tmp_path):
    """No weights are kept but the last, what they sampled is this run's alone, the last one is the result."""
    settings = ["iterations=3", "compose=anna_karenina", "checkpoint.weights=last", "data.eval_n=3"]
    config = small_config(tmp_path, *settings)

    summary = run(config)

    assert not list(config.folder.glob("iteration-*/model"))
    base = weights_fingerprint(fetch_model_folder("tiny"))
    shared_keys = rollout_keys(tmp_path)
    keys_of_run = rollout_keys(config.folder)
    assert column(shared_keys, "weights") == [base] * 2, "to train on and to test"
    counts = Counter(column(keys_of_run, "weights"))
    assert sorted(counts.values()) == [1, 2, 2], "the last one is tested alone"
    assert base not in counts
    training_keys = [key for key in shared_keys + keys_of_run if key["n"] == config.data.n]
    assert len(training_keys) == 3
    assert len(set(column(training_keys, "seed"))) == 3, "a policy was trained on what the earlier numbers drew"
    evaluations = lines_of(config.folder / "eval.jsonl")
    assert [evaluation.pop("iteration") for evaluation in evaluations] == [0, 1, 2, 3]
    assert summary["base"] == evaluations[0]
    assert summary["final"] == evaluations[3]
    training_sets = [read_json(config.folder / f"iteration-{number}/training_set.json") for number in (1, 2, 3)]
    assert len(set(column(training_sets, "positive_share"))) > 1
    for name in ("n_train", "positive_share", "effective_positive"):
        assert summary[name] == training_sets[-1][name]


def rollout_keys(folder):
    """What drew each table of completions in a folder's store."""
    return [read_json(path)["key"] for path in folder.glob("store/rollouts/*/key.json")]


@pytest.mark.parametrize(
    "settings",
    [
        ["algo=agro", "iterations=2"],
        pytest.param(
            ["schedule=on_policy", "schedule.rounds=2", "optim.batch_size=32"],
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_model_is_gone_before_the_next_one_is_loaded(outputs, settings):
    """At 8B there is no memory for the trained weights, their gradients, and the same weights read from disk."""
    models = {}

    def read(folder, read_model):
        if folder in models:  # the reference, which stands beside the policy
            return read_model()
        assert all(model() is None for model in models.values())
        model = read_model()
        models[folder] = weakref.ref(model)
        return model

    config = small_config(outputs, *settings, "evaluation.every=1")
    with reading_models(read):
        run(config)

    assert len(models) == 1 + config.iterations


IN_ROUNDS = ["algo=rloo", "schedule.rounds=20", "schedule.prompts=4"]


@pytest.mark.parametrize(
    "loss, settings",
    [
        pytest.param(SLOW_LOSS, ["optim.epochs=6"], id="offline"),
        pytest.param(f"{SLOW_LOSS}RLOO", IN_ROUNDS, id="in rounds", marks=pytest.mark.extended),
    ],
)
def test_kill_and_the_same_command_again_gives_the_same_weights(tmp_path, loss, settings):
    settings = [*settings, "checkpoint.every_seconds=0", "optim.batch_size=16", "optim.micro_batch_size=16"]
    undisturbed = small_config(tmp_path / "a", *settings, loss)
    run(undisturbed)
    brake = tmp_path / "brake"
    command = overrides(tmp_path / "b", *settings, *slow(brake, loss))
    killed = config_of(*command).folder
    rng = random.Random(0)

    for least_steps in (-1, 1, 2):  # in one of the first stages, or in training
        process = start_command(*command)
        wait_for(lambda n=least_steps: killed.exists() and steps(killed) >= n)
        time.sleep(rng.uniform(0.0, 0.3))
        assert process.is_alive(), "was done before it could be killed"
        process.kill()
        process.join()
        assert not (killed / "DONE").exists()
    brake.unlink()
    process = start_command(*command)
    process.join(500)

    assert process.exitcode == 0
    assert result(killed) == result(undisturbed.folder)
    assert len(result(killed)["updates"]) >= 20


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        pytest.param(["schedule.prompts=4", "schedule.updates=1", "schedule.rounds=2"], marks=pytest.mark.extended),
    ],
    ids=["offline", "in rounds"],
)
def test_the_distance_of_the_samplers_mu_from_the_policy_is_printed(outputs, rounds, capsys):
    """At temperature 1 they are the same, at 0.6 not."""
    gaps = []
    for temperature in (1.0, 0.6):
        config = small_config(outputs, "mu=sampler", f"sampler.temperature={temperature}", "name=mu", *rounds)
        run(config)
        printed = capsys.readouterr().out
        gap, line_end = re.findall(r"^log μ +\|log π − log μ\| is (\S+) (.*)$", printed, re.MULTILINE)[0]
        gaps.append(float(gap))
        assert rounds or ("effective sample size 100 %" in line_end) == (temperature == 1)

    assert gaps[0] < 1e-4 < 0.01 < gaps[1]
