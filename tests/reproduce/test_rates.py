"""The choice of learning rates: which runs it lacks, what it writes into conf, and that it goes on from records."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import topr_exp
from reproduce import rates, records
from reproduce.figures.nats import losses as losses_of_nats
from reproduce.jobs import CONF, plan_figure
from reproduce.rates import missing_trials, nearest
from reproduce.records import read_rates, runs_of
from reproduce.selection import Runs, pick
from reproduce.tried_rates import (
    GRID,
    HALF_STEPS,
    SEEDS,
    Tried,
    best_rate,
    best_stands_beside_cliff,
    half_steps,
)
from tests.conftest import ROOT, config_of, make_graded
from tests.reproduce.worlds import named, request_for
from topr_exp.composition.training_set import build_training_set

pytestmark = pytest.mark.extended

ALGORITHMS = {path.stem for path in (ROOT / "conf" / "algo").glob("*")}


def searched(world: Mapping[float, tuple[float, float]]) -> Tried:
    """What is tried of a world, pass@1 by rate and seed, until nothing is lacking; half-way, if not given, the mean."""
    tried: Tried = {}
    while runs := missing_trials(tried):
        for rate, seed in runs:
            low = max(candidate for candidate in GRID if candidate <= rate)
            high = min(candidate for candidate in GRID if candidate >= rate)
            scores = world.get(rate) or tuple(np.mean([world[low], world[high]], axis=0))
            tried.setdefault(rate, []).append(scores[SEEDS.index(seed)])
            assert len(tried[rate]) <= 2
    return tried


@pytest.mark.parametrize(
    ("levels", "best", "runs"),
    [
        ((1, 2, 3, 66, 80, 66, 3), 3e-4, 4),  # the others are plainly worse: one seed each
        ((1, 2, 3, 78, 80, 79, 3), 3e-4, 6),
        ((90, 80, 70, 60, 50, 40, 30), 3e-6, 7),  # to the grid's end, past what is plainly worse
        ((30, 40, 50, 60, 70, 80, 90), 3e-3, 5),
    ],
)
def test_a_grid_grows_until_its_choice_has_neighbours(levels: tuple[float, ...], best: float, runs: int) -> None:
    tried = searched({rate: (level, level) for rate, level in zip(GRID, levels, strict=True)})
    assert best_rate(tried) == best
    assert sum(map(len, tried.values())) == runs
    at = GRID.index(best)
    assert {GRID[i] for i in (at - 1, at + 1) if 0 <= i < len(GRID)} <= tried.keys()


def test_towards_a_cliff_the_rate_half_way_is_tried() -> None:
    world = dict(zip(GRID, [(level, level) for level in (20, 50, 76, 87, 26, 2, 2)], strict=True))
    tried = searched(world | {1.7e-4: (95, 95)})
    assert set(tried) & set(HALF_STEPS) == {1.7e-4}
    assert best_rate(tried) == 1.7e-4
    assert best_rate(searched(world | {1.7e-4: (95, 60)})) == 1e-4


def test_a_chosen_rate_stands_beside_a_cliff_by_what_it_was_chosen_from() -> None:
    runs = runs_of(records.read(records.TRIED_RATES.with_name("nats.json")))
    assert best_stands_beside_cliff(pick(runs, "topr algo.ratio=token data.choices=1"), Runs([]))
    runs = runs_of(records.read(records.TRIED_RATES.with_name("fig1.json")))
    assert not best_stands_beside_cliff(pick(runs, "ppo model.name=tiny"), Runs([]))


def test_the_choice_is_the_higher_mean_of_both_seeds_and_of_two_the_lower() -> None:
    world = dict.fromkeys(GRID, (50.0, 50.0)) | {1e-3: (60.0, 20.0), 3e-4: (55.0, 55.0), 1e-4: (54.0, 56.0)}
    tried = searched(world)
    assert best_rate(tried) == 1e-4
    assert tried[1e-3] == [60, 20]
    assert tried[3e-5] == [50], "the choice was at the edge of what was tried"
    rng = np.random.default_rng(0)
    for _ in range(300):  # any world ends, with a choice that is no edge
        tried = searched({rate: tuple(rng.uniform(0, 100, 2)) for rate in GRID})
        best = best_rate({rate: tried[rate] for rate in GRID if rate in tried})
        at = GRID.index(best)
        assert all(GRID[i] in tried for i in (at - 1, at + 1) if 0 <= i < len(GRID))
        assert half_steps(tried, best) <= tried.keys()
    assert [nearest(rate) for rate in (3e-5, 4e-4, 5e-7, None)] == [3e-5, 3e-4, 3e-6, 3e-4]


def test_the_command_goes_on_from_its_records_and_writes_conf(tmp_path, monkeypatch, capsys):
    """Runs in the place of trained ones: their pass@1 is highest at 3e-3; at 1e-3 one seed fails, which is a cliff."""
    conf, tried = tmp_path / "learning_rates.yaml", tmp_path / "rates.yaml"
    conf.write_text("place: p\ntiny: {topr: 0.001, dpo: 7.0}\n")
    tried.write_text("tiny: {dpo: {7.0: [1.0, 2.0]}}\n")
    monkeypatch.setattr(records, "LEARNING_RATES", conf)
    monkeypatch.setattr(records, "TRIED_RATES", tried)
    started: list[tuple[float, int]] = []

    def run_sweep(jobs: list[Any], words: list[str]) -> int:
        assert len(jobs) <= rates.CHUNK
        for job in jobs:
            config = job.config
            started.append((config.optim.lr, config.seed))
            assert (config.data.test_split, config.evaluation.every, config.sampler.seed) == (
                "validation", None, config.seed,
            )  # fmt: skip
            config.folder.mkdir(parents=True, exist_ok=True)
            (config.folder / "error.txt").write_text(why)
            if started[-1] != (1e-3, 101):
                (config.folder / "DONE").touch()
                records_of[config.folder] = config
        return 1

    def extract(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
        config = records_of[folder]
        settings = records.identifying_settings(config)
        return {"run": folder.name, "settings": yaml.safe_load(yaml.safe_dump(settings)), "environment": {},
                "final": {"pass@1": 0.5 + 30 * config.optim.lr, "invalid": 0.1}, "metrics": {}}  # fmt: skip

    records_of, why = dict[Path, Any](), "the loss or its gradient is not finite at step 7"
    monkeypatch.setattr(topr_exp, "run_sweep", run_sweep)
    monkeypatch.setattr(records, "extract", extract)
    command = ["learning_rates", "algo=topr", f"output_dir={tmp_path}", "--out", str(tmp_path), "--jobs", "1"]
    assert rates.main([*command, "--list"]) == 0
    assert "tiny                           topr                 lacks 0.0003/100 0.001/100 0.003/100" in (
        capsys.readouterr().out
    )
    assert started == []
    assert rates.main(command) == 1
    assert sorted(started) == [(rate, seed) for rate in (3e-4, 1e-3, 1.7e-3, 3e-3) for seed in (100, 101)]
    assert read_rates() == {"place": "p", "tiny": {"topr": 3e-3, "dpo": 7.0}}
    assert read_rates(tried) == {
        "tiny": {
            "dpo": {7.0: [1.0, 2.0]},
            "topr": {3e-4: [50.9, 50.9], 1e-3: [53.0, 0.0], 1.7e-3: [55.1, 55.1], 3e-3: [59.0, 59.0]},
        }
    }
    recorded = runs_of(records.read(tmp_path / "rates.json"))
    assert len(recorded) == 7
    assert {name for record in recorded for name in (*record, *record["final"])} == {
        "run", "settings", "environment", "final", "pass@1"
    }, "what a choice reads"  # fmt: skip
    count = len(started)
    assert rates.main(command) == 1
    assert started[count:] == [(1e-3, 101)], "what is recorded is not run again"
    why = "no space left"
    assert rates.main(command) == 1
    assert "no space left; a rate is judged by loss" in capsys.readouterr().err


def test_conf_has_the_rates_that_were_chosen_and_no_choice_is_at_an_edge() -> None:
    conf = read_rates()
    assert set(conf["tiny"]) == set(conf["tiny_noise"]) <= ALGORITHMS
    for place, losses in read_rates(records.TRIED_RATES).items():
        for loss, tried in losses.items():
            assert conf[place][loss] == best_rate(tried)
            missing_rates = {trial.rate for trial in missing_trials(tried, best_rate(tried))}
            assert missing_rates <= set(HALF_STEPS), "they were chosen before steps were halved"


def test_each_loss_of_a_study_has_a_rate_of_its_own() -> None:
    nats = named("nats")
    cells = rates.cells_of(nats, request_for(nats, full=True, overrides=("optim.lr=3e-4", "seed=100")))
    losses = {"topr", "topr_token_ratio", "topr_geometric_ratio", "tis", "vespo", "cispo", "naive", "ppo_eps_low_0_8"}
    assert {(cell.place, cell.loss) for cell in cells} == {
        (f"tiny_nats_{choices}_choices", loss) for choices in (1, 8, 128) for loss in losses
    }
    groups = losses_of_nats(Runs({"settings": dict(cell.settings)} for cell in cells))
    assert [len(group) for group in groups.values()] == [3] * len(losses), "each is drawn, as one line"


def test_runs_on_long_answers_have_the_rate_of_their_staleness_and_loss() -> None:
    """The loss by its width or division, where these are not the YAML's."""
    names = {("topr", False): "topr_undivided", ("ppo", 0.8): "ppo_eps_low_0_8", ("gspo", 0.03): "gspo_eps_low_0_03",
             ("vespo", 0.5): "vespo_c1_pos_0_5"}  # fmt: skip
    conf, cells, figure = read_rates(), set(), named("staleness_by_rate")
    for job in plan_figure(figure, request_for(figure)).jobs.values():
        algo, updates = job.config.algo, job.config.schedule.updates
        loss_name = getattr(algo, "c1_pos", getattr(algo, "eps_low", getattr(algo, "length_normalize", None)))
        loss_name = names.get((algo.name, loss_name), algo.name)
        assert job.config.optim.lr == conf[f"tiny_long_10_turns_{updates}_updates"][loss_name]
        cells.add((loss_name, updates))
    assert {loss for loss, _ in cells} >= {*names.values(), "topr", "tis", "grpo", "vespo", "cispo", "m2po"}
    assert len(cells) == 23


# ---- fresh and stale batches


@pytest.mark.parametrize("updates", [1, 8, 64])
@pytest.mark.parametrize("words_of_loss", [(), ("algo=grpo", "data.n=8", "optim.whole_groups=true")])
def test_batches_hold_equally_many_problems_however_stale(updates: int, words_of_loss: tuple[str, ...]) -> None:
    """Of an update's 32 completions: 32 problems with an answer each, or 4 whole groups of 8."""
    words = ("experiment=staleness_by_rate", "schedule=on_policy", f"schedule.updates={updates}", *words_of_loss)
    config = config_of(f"--config-dir={CONF}", *words, "optim.lr=1e-4", "seed=0")
    n, size, schedule = config.data.n, config.optim.batch_size, config.schedule
    assert schedule.prompts is not None
    assert schedule.rounds is not None
    assert schedule.prompts * n == 32 * updates
    assert schedule.rounds * updates == 64
    assert config.data.train_problems is not None
    assert schedule.prompts * schedule.rounds <= config.data.train_problems, "none comes twice"
    problem = np.repeat(np.arange(schedule.prompts), n)
    training_set = build_training_set(make_graded(problem, problem % 3 == 0), "pm1", config.compose, "examples",
                               seed=0, iteration=1, baseline=None, effective=None, round_number=0)  # fmt: skip
    order = training_set.order(0, 1, 1_000_000, whole_groups=config.optim.whole_groups)
    assert sorted(order) == list(range(32 * updates))
    for start in range(0, len(order), size):
        problems = training_set.problem_of(order[start : start + size])
        assert np.unique(problems, return_counts=True)[1].tolist() == [n] * (32 // n)
