"""The choice of learning rates: which runs it lacks, what it writes into conf, and that it goes on from records."""

import shutil

import numpy as np
import pytest

from reproduce import rates, records
from reproduce.jobs import plan_figure
from reproduce.rates import RateFiles, first_rate, missing_trials, scores_by_rate
from reproduce.records import read_rates, runs_of
from reproduce.tried_rates import GRID, HALF_STEPS, SEEDS, best_rate
from tests.conftest import each_row, lines_of, values_of, write_lines
from tests.reproduce.worlds import figure_named, request_for
from tests.run_folders import write_json
from topr_exp.schema import plain
from topr_exp.types import ConfigError

pytestmark = pytest.mark.extended


def of_grid(*levels):
    """Scores of both seeds by rate."""
    return {rate: (level, level) for rate, level in zip(GRID, levels, strict=True)}


def searched(scores):
    """What is tried where runs score so, by rate and seed, until nothing is missing; a half step scores the mean."""
    scores_of_rate = dict(scores)
    for low, half, high in zip(GRID, HALF_STEPS, GRID[1:], strict=False):
        mean = np.mean([scores[low], scores[high]], axis=0)
        scores_of_rate.setdefault(half, tuple(mean))
    tried = {}
    while trials := missing_trials(tried):
        for rate, seed in trials:
            tried.setdefault(rate, []).append(scores_of_rate[rate][SEEDS.index(seed)])
    return tried


# Scores along the grid | the best rate | how many runs it takes
SEARCHES = """
(1, 2, 3, 66, 80, 66, 3) | 3e-4 | 4
(1, 2, 3, 78, 80, 79, 3) | 3e-4 | 6
(90, 80, 70, 60, 50, 40, 30) | 3e-6 | 7
"""  # a neighbour that is plainly worse is tried with one seed; the third search reaches the grid's end


@each_row("levels best runs", SEARCHES, literals=True)
def test_a_search_grows_until_its_choice_has_neighbours(levels, best, runs):
    tried = searched(of_grid(*levels))

    assert best_rate(tried) == best
    assert sum(map(len, tried.values())) == runs


def test_towards_a_cliff_the_rate_half_way_is_tried():
    scores = of_grid(20, 50, 76, 87, 26, 2, 2)

    tried = searched(scores | {1.7e-4: (95, 95)})

    assert set(tried) & set(HALF_STEPS) == {1.7e-4}
    assert best_rate(tried) == 1.7e-4
    assert best_rate(searched(scores | {1.7e-4: (95, 60)})) == 1e-4


def test_the_choice_is_the_higher_mean_of_both_seeds_and_of_two_the_lower():
    equal_scores = dict.fromkeys(GRID, (50.0, 50.0))

    tried = searched(equal_scores | {1e-3: (60.0, 20.0), 3e-4: (55.0, 55.0), 1e-4: (54.0, 56.0)})

    assert best_rate(tried) == 1e-4
    assert tried[1e-3] == [60, 20]
    assert tried[3e-5] == [50], "the choice was at the edge of what was tried"


def test_a_result_of_the_second_seed_alone_does_not_stand_for_the_first():
    result = {"final": {"pass@1": 0.5}}
    results = {(1e-3, 101): result, (3e-4, 100): result, (3e-4, 101): result}

    assert scores_by_rate(tuple, results) == {3e-4: [50, 50]}


class TrainedRuns:
    """A launcher that copies a finished run: pass@1 grows with the rate; runs at 1e-3 with seed 101 fail."""

    def __init__(self, finished):
        self.finished = finished
        self.error = "no space left"
        self.started = []

    def __call__(self, jobs, words):
        assert len(jobs) <= rates.RUNS_BETWEEN_RECORDS
        for job in jobs:
            config = job.config
            trial = (config.optim.lr, config.seed)
            assert config.data.test_split == "validation"
            assert config.sampler.seed == config.seed
            self.started.append(trial)
            shutil.copytree(self.finished.folder, config.folder, dirs_exist_ok=True)
            write_json(config.folder / "config.json", {"identity": plain(config), "resolved": plain(config)})
            *evaluations, final = lines_of(config.folder / "eval.jsonl")
            final["pass@1"] = 0.5 + 30 * config.optim.lr
            write_lines(config.folder / "eval.jsonl", [*evaluations, final])
            if trial == (1e-3, 101):
                (config.folder / "DONE").unlink()
                (config.folder / "error.txt").write_text(self.error)
        return 1


def test_the_command_goes_on_from_its_records_and_writes_conf(tmp_path, finished, capsys):
    files = RateFiles(tmp_path / "learning_rates.yaml", tmp_path / "tried.yaml")
    files.chosen.write_text("place: p\ntiny: {topr: 0.001, dpo: 7.0}\n")
    files.tried.write_text("tiny: {dpo: {7.0: [1.0, 2.0]}}\n")
    conf_before = read_rates(files.chosen)
    runs = TrainedRuns(finished)
    command = ["learning_rates", "algo=topr", f"output_dir={tmp_path}", "--out", str(tmp_path), "--jobs", "1"]

    assert rates.main([*command, "--list"], runs, files) == 0
    assert "topr                 lacks 0.0003/100 0.001/100 0.003/100" in capsys.readouterr().out
    assert runs.started == []

    assert rates.main([*command, "sampler.temperature=0.5"], runs, files) == 2, "records don't hold it"
    assert rates.main(command, runs, files) == 1
    assert "no space left; a rate is judged by loss" in capsys.readouterr().err
    assert read_rates(files.chosen) == conf_before, "a run after it would record changed code"
    assert (3e-4, 100) in runs.started

    runs.error = "the loss or its gradient is not finite at step 7"
    assert rates.main(command, runs, files) == 0
    assert runs.started.count((3e-4, 100)) == 1, "what is recorded is not run again"
    assert set(runs.started) == {(rate, seed) for rate in (3e-4, 1e-3, 1.7e-3, 3e-3) for seed in (100, 101)}
    assert read_rates(files.chosen) == {"place": "p", "tiny": {"topr": 3e-3, "dpo": 7.0}}
    tried = {3e-4: [50.9, 50.9], 1e-3: [53.0, 0.0], 1.7e-3: [55.1, 55.1], 3e-3: [59.0, 59.0]}
    assert read_rates(files.tried) == {"tiny": {"dpo": {7.0: [1.0, 2.0]}, "topr": tried}}
    recorded = runs_of(records.read(tmp_path / "rates.json"))
    assert len(recorded) == 8, "the one that failed by its rate, too"
    assert recorded[0].keys() == {"run", "settings", "environment", "final"}, "what a choice reads"

    runs.started.clear()
    assert rates.main(command, runs, files) == 0
    assert runs.started == []


def test_no_result_is_written_once_the_code_has_changed(tmp_path, finished, monkeypatch):
    runs = TrainedRuns(finished)
    runs.error = "the loss or its gradient is not finite at step 7"

    def refuse_changed_code(out):
        if runs.started:
            raise ConfigError(f"--out {out}: uncommitted changes")

    files = RateFiles(tmp_path / "learning_rates.yaml", tmp_path / "tried.yaml")
    files.chosen.write_text("place: p\n")
    monkeypatch.setattr(rates, "refuse_changed_code", refuse_changed_code)
    command = ["learning_rates", "algo=topr", f"output_dir={tmp_path}", "--out", str(tmp_path), "--jobs", "1"]

    assert rates.main(command, runs, files) == 2
    assert not (tmp_path / "rates.json").exists()


def test_conf_has_the_rates_that_were_chosen_and_no_choice_is_at_an_edge():
    conf = read_rates()

    for place, losses in read_rates(records.TRIED_RATES).items():
        for loss, tried in losses.items():
            assert conf[place][loss] == best_rate(tried)
            first = first_rate(conf[place][loss], tried)
            missing_rates = set(values_of(missing_trials(tried, first), "rate"))
            assert missing_rates <= set(HALF_STEPS), "they were chosen before steps were halved"


def test_runs_on_long_completions_have_the_rate_of_their_staleness_and_loss():
    conf = read_rates()
    figure = figure_named("staleness_by_rate")

    losses = set()
    for job in plan_figure(figure, request_for(figure)).jobs.values():
        entry = job.composed.learning_rates
        assert entry.place == f"tiny_long_10_turns_{job.config.schedule.updates}_updates"
        assert job.config.optim.lr == conf[entry.place][entry.loss]
        losses.add(entry.loss)

    by_width_or_division = {"topr_undivided", "ppo_eps_low_0_8", "gspo_eps_low_0_03", "vespo_c1_pos_0_5"}
    assert losses >= {"topr", "tis", "grpo", "vespo", "cispo", "m2po"} | by_width_or_division
