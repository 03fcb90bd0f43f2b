"""A sweep on disk: `sweep.json` lists its runs, the settings of each and what was submitted to Slurm.

It is written before a run starts, so that a sweep whose launcher is gone can be watched and resumed by anyone who can
read the folder. Only the holder of `sweep.claim` writes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.load import load
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config
from topr_exp.runs import attempt
from topr_exp.runs.preflight import check_files
from topr_exp.runtime.files import disk_errors, write_json
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.runs.plan import Job

FILE = "sweep.json"
CLAIM = "sweep.claim"
LOG = "log.txt"  # in a run's folder: what it printed, over all attempts
SUBMITIT = ".submitit"  # Submitit's scripts, pickles and logs


@dataclass
class Run:
    """A run of a sweep."""

    number: int  # from 1, in the order of the first launch
    folder: str  # name, below the sweep's folder
    overrides: list[str]
    settings: dict[str, Any]  # resolved: editing a YAML while jobs are queued changes nothing
    cwd: str  # where it was launched: relative paths among the settings count from here

    def enter(self) -> Config:
        """Change to the folder that relative paths count from; returns the settings, checked once more."""
        from omegaconf import OmegaConf

        with disk_errors(f"enter {self.cwd}, where the sweep was launched"):
            os.chdir(self.cwd)
        config = load(OmegaConf.create(self.settings))
        check_files(config)
        return config


@dataclass
class Submission:
    """Runs that were given to Slurm as one array (or one job)."""

    token: str  # in the job's name: finds it again when the launcher was killed before Slurm's answer was noted
    runs: list[int]
    slurm: str | None  # Slurm's id

    def ids(self) -> dict[int, str]:
        """Slurm's id of each run, as squeue prints it."""
        if self.slurm is None:
            return {}
        if len(self.runs) == 1:
            return {self.runs[0]: self.slurm}
        return {number: f"{self.slurm}_{index}" for index, number in enumerate(self.runs)}


@dataclass
class Sweep:
    """The contents of a sweep's folder."""

    folder: Path
    arguments: list[str]  # of the last launch: the cluster settings of a resumed sweep come from them
    runs: list[Run] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Sweep:
        """The sweep in a folder; TOPRError when there is none."""
        path = folder / FILE
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            runs = [Run(**run) for run in stored.pop("runs")]
            submissions = [Submission(**submission) for submission in stored.pop("submissions")]
            return cls(folder, runs=runs, submissions=submissions, **stored)
        except (FileNotFoundError, NotADirectoryError):
            raise TOPRError(
                f"no sweep in {folder} (it has no {FILE}); give output_dir/name of a sweep (a run without -m is none)"
            ) from None
        except OSError as error:
            raise TOPRError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TOPRError(f"{path} is damaged ({error}); launch the sweep again after moving it away") from error

    @classmethod
    def open(cls, folder: Path) -> Sweep:
        """The sweep in a folder, or a new one."""
        return cls.read(folder) if (folder / FILE).exists() else cls(folder, [])

    def save(self) -> None:
        values = {
            "arguments": self.arguments,
            "submissions": [dataclasses.asdict(submission) for submission in self.submissions],
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }
        write_json(self.folder / FILE, values)

    def add(self, jobs: Iterable[Job], arguments: list[str]) -> list[Run]:
        """The runs of these jobs, new ones put at the end; their settings are those of this launch."""
        self.arguments = arguments
        known = {run.folder: run for run in self.runs}
        found = []
        for job in jobs:
            name = job.config.folder.name
            if name not in known:
                known[name] = Run(len(self.runs) + 1, name, [], {}, "")
                self.runs.append(known[name])
            run = known[name]
            run.overrides, run.settings, run.cwd = job.overrides, plain(job.config), os.getcwd()
            found.append(run)
        return found

    def path(self, run: Run) -> Path:
        return self.folder / run.folder

    def slurm_ids(self) -> dict[int, str]:
        """Slurm's newest id of each run that was submitted."""
        ids: dict[int, str] = {}
        for submission in self.submissions:
            ids |= submission.ids()
        return ids

    def find(self, name: str) -> Run:
        """A run by its number, its Slurm id or (the beginning of) its folder's name; TOPRError when it is not one."""
        ids = self.slurm_ids()
        named = [run for run in self.runs if name in (str(run.number), ids.get(run.number), run.folder)]
        named = named or [run for run in self.runs if run.folder.startswith(name)]
        if len(named) != 1:
            raise TOPRError(
                f"{name}: {'several runs' if named else 'no run'} of {self.folder}; give a number from 1 to "
                f"{len(self.runs)}, a Slurm id or a folder's name"
            )
        return named[0]


@contextlib.contextmanager
def lock_sweep(folder: Path) -> Iterator[None]:
    """Keep other launchers out of a sweep's folder; TOPRError while one is active in it."""
    with disk_errors(f"write in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    with attempt.lock_run_folder(folder, CLAIM, "launched"):
        yield
