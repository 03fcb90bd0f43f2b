"""Cells of the bench: a loss in a condition, the runs that choose its learning rate, and those that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.bench.conditions import Condition, Row
from reproduce.groups import RATE
from reproduce.jobs import is_finished
from reproduce.rates import Trial, failed_record, missing_trials, result_of_run, scores_by_rate
from reproduce.selection import Record
from reproduce.tried_rates import SEEDS, Tried, best_rate
from topr_exp import Job, plan_runs

MIDDLE_RATE, REACH = 1e-4, 2  # each cell begins with five rates, from 1e-5 to 1e-3
REPORTED_SEEDS = (0, 1, 2)
SPLIT, SAMPLES = "data.test_split", "data.eval_n"


@dataclass(frozen=True, eq=False)
class Cell:
    """A loss in a condition."""

    row: Row
    condition: Condition
    words: Sequence[str]  # the command line of its runs, without learning rate and seed

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of its records, but for rate and seed. ConfigError for a condition that the loss can't have.

        The row tells losses apart whose settings no other record holds.
        """
        probe = Trial(MIDDLE_RATE, SEEDS[0])
        job = self.jobs([probe])[probe]
        settings = {"row": self.row.name, "condition": self.condition.name}
        settings |= records.identifying_settings(job.config)
        return settings

    def jobs(self, trials: Sequence[Trial]) -> dict[Trial, Job]:
        """Plan runs that are tested on the same problems; at once, since composing a sweep takes a second."""
        test = settings_of_test(trials[0])
        assert all(settings_of_test(trial) == test for trial in trials)
        rates = sorted({f"{trial.rate:g}" for trial in trials})
        seeds = sorted({str(trial.seed) for trial in trials})
        sweep = [f"{RATE}={','.join(rates)}", f"seed={','.join(seeds)}"]
        test_words = [f"{key}={value}" for key, value in test.items()]
        jobs = {}
        for job in plan_runs([*self.words, *sweep, *test_words]):
            trial = Trial(job.config.optim.lr, job.config.seed)
            if trial in trials:
                jobs[trial] = job
        return jobs

    def settings_of(self, trial: Trial) -> dict[str, Any]:
        """The settings of a run's record, without composing those of the run."""
        seeds = {"seed": trial.seed, "sampler.seed": trial.seed}
        return self.settings | seeds | {RATE: trial.rate} | settings_of_test(trial)

    def identity(self, trial: Trial) -> str:
        return records.identity_text(self.settings_of(trial))

    def tried(self, recorded: Mapping[str, Record]) -> Tried:
        """pass@1 of the choosing runs that there are records of, in percent by rate; recorded: by identity."""
        return scores_by_rate(self.identity, recorded)

    def trials(self, recorded: Mapping[str, Record]) -> list[Trial]:
        """The runs that its number rests on, as far as that is known; those without a record are to be run."""
        tried = self.tried(recorded)
        trials = []
        for rate, scores in tried.items():
            trials += [Trial(rate, seed) for seed in SEEDS[: len(scores)]]
        missing = missing_trials(tried, MIDDLE_RATE, REACH)
        if missing:
            return trials + missing
        reported_rate = best_rate(tried)
        return trials + [Trial(reported_rate, seed) for seed in REPORTED_SEEDS]

    def missing(self, recorded: Mapping[str, Record]) -> list[Trial]:
        return [trial for trial in self.trials(recorded) if self.identity(trial) not in recorded]


def settings_of_test(trial: Trial) -> dict[str, Any]:
    """How a run is tested: rates are chosen on other problems than are reported, by half as many completions."""
    if trial.seed in SEEDS:
        return {SPLIT: "validation", SAMPLES: 4}
    return {SPLIT: "test", SAMPLES: 8}


def read_cell_record(cell: Cell, trial: Trial, folder: Path) -> Record | None:
    """The record of a run that ended, of one that chooses a rate its result alone; None for one that broke off."""
    settings = cell.settings_of(trial)
    if trial.seed in SEEDS:
        return result_of_run(folder, settings)
    if is_finished(folder):
        return records.extract(folder, ()) | {"settings": settings}
    return failed_record(folder, settings)
