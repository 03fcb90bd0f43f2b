"""The study's folder: the model that runs begin from, the runs, and the records of those that ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.jobs import SEARCH, is_finished, is_stopped
from reproduce.rates import error_of, failed_record
from reproduce.real.outcome import write_outcome
from reproduce.real.plan import IMITATION, IMITATION_EPOCHS, Cell, Step, cell_of
from reproduce.real.solutions import write_solutions
from reproduce.selection import Record
from topr_exp import Config, ConfigError, Job, TOPRError, plan_runs, run_sweep, settings_by_key
from topr_exp.report import read_run

METRICS = ("loss", "grad_norm", "ess")
LENGTH_FIGURES = (*records.LENGTHS, "truncated_share")


class Study:
    """The runs below a folder and what is recorded of them in its real.json, which goes on from there."""

    def __init__(self, folder: Path, words: Sequence[str], steps: Sequence[Step]) -> None:
        """words: of every run's command line, the model and its problems among them."""
        self.folder, self.steps = folder, steps
        self.words = [*SEARCH, "experiment=real", "data=gsm8k", "sampler=hf", f"output_dir={folder}", *words]
        stored = records.read(self.file)
        self.imitation: Record | None = stored["extra"].get("imitation")  # the record of the first step's run
        self.record_of_cell: dict[Cell, Record] = {}
        for record in records.records_by_identity(stored).values():
            self.record_of_cell[cell_of(record["settings"])] = record
        self.refuse_other_model()

    @property
    def file(self) -> Path:
        return self.folder / "real.json"

    @cached_property
    def config(self) -> Config:
        """The settings of a run, but for the model that it begins from."""
        (job,) = plan_runs(self.words)
        return job.config

    def refuse_other_model(self) -> None:
        """Raise ConfigError for a folder with the study of another model."""
        if self.imitation is not None:
            model = self.imitation["settings"]["model.name"]
            if model != self.config.model.name:
                raise ConfigError(f"--out {self.folder}: it holds the study of {model}; give another folder")

    def is_done(self, step: Step) -> bool:
        if step is IMITATION:
            return self.imitation is not None
        return all(cell in self.record_of_cell for cell in step.cells)

    def run(self, step: Step) -> int:
        """Run what a step lacks and record it; returns the exit status of a signal, else 0.

        TOPRError where a run failed for another reason than its loss.
        """
        if step is IMITATION:
            jobs, words = self.plan_imitation()
        else:
            jobs, words = self.plan_step(step)
        status = run_sweep(jobs, words)
        failed_folders = []
        for job in jobs:
            if not self.take_record(job, is_imitation=step is IMITATION):
                failed_folders.append(job.config.folder)
        self.write()
        if is_stopped(status):
            return status
        if failed_folders:
            folder = failed_folders[0]
            raise TOPRError(f"{step.name}: {error_of(folder) or 'did not end'} ({folder})")
        return 0

    def plan_imitation(self) -> tuple[list[Job], list[str]]:
        """The run of SFT on GSM8K's solutions, and its command line."""
        solutions = self.folder / "solutions.jsonl"
        write_solutions(solutions, self.config)
        imitation_words = ("algo=sft", "mu=none", f"optim.epochs={IMITATION_EPOCHS}", "checkpoint.weights=all")
        words = [*self.words, "name=imitation", f"data.completions={solutions}", *imitation_words]
        return plan_runs(words), words

    def plan_step(self, step: Step) -> tuple[list[Job], list[str]]:
        """The runs that a step lacks, and the command line of all of them."""
        words = [word for word in self.words if not word.startswith("model.path=")]
        words = ["-m", *words, "name=runs", f"model.path={self.imitation_model()}", *step.words]
        jobs = []
        for job in plan_runs(words):
            cell = cell_of(settings_by_key(job.config))
            if cell in step.cells and cell not in self.record_of_cell:
                jobs.append(job)
        return jobs, words

    def imitation_model(self) -> Path:
        """The model that the imitation left. ConfigError where it is gone, or the completions of recorded runs."""
        assert self.imitation is not None, "the first step is done"
        model = self.folder / "imitation" / self.imitation["run"] / "model"
        needed_folders = [model]
        if self.record_of_cell:
            needed_folders.append(self.folder / "store" / "rollouts")
        for folder in needed_folders:
            if not folder.is_dir():
                raise ConfigError(
                    f"{folder} is missing, on which recorded runs rest: bring it back, or give a new --out"
                )
        return model

    # ---- records

    def take_record(self, job: Job, *, is_imitation: bool) -> bool:
        """Record a run that ended, by itself or by its loss; False for one that did not."""
        folder = job.config.folder
        settings = records.identifying_settings(job.config)
        record: Record | None = None
        if is_finished(folder):
            record = records.extract(folder, METRICS) | {"answers": read_lengths(folder)}
        elif not is_imitation:
            record = failed_record(folder, settings)
        if record is None:
            return False
        if is_imitation:
            self.imitation = record
        else:
            self.record_of_cell[cell_of(settings)] = record
        return True

    def write(self) -> None:
        """Write the records, and from them the page and the picture."""
        records.write(self.file, self.record_of_cell.values(), {"imitation": self.imitation})
        planned_count = sum(len(step.cells) for step in self.steps)
        page = write_outcome(self.imitation, list(self.record_of_cell.values()), planned_count, self.folder)
        print(f"wrote {page}", flush=True)


def read_lengths(folder: Path) -> dict[str, Any]:
    """Lengths of a run's completions before and after, and the share cut off, of them and of what it sampled."""
    run = read_run(folder)
    sampled_share = run.summary_number("truncated_share")
    lengths: dict[str, Any] = {"sampled": {"truncated_share": records.rounded(sampled_share)}}
    for stage in ("base", "final"):
        lengths[stage] = {name: records.rounded(run.summary_number(stage, name)) for name in LENGTH_FIGURES}
    return lengths
