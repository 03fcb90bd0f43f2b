"""A run's folder: its attempts, its progress, and its end. Every file is whole or absent; `DONE` comes last."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from topr_exp.config.settings import Config
from topr_exp.runs import attempt, provenance
from topr_exp.runs.console import describes_run
from topr_exp.runs.finished import DONE_FILE, changed_results, keeps_no_model, mark_finished, model_folders_of
from topr_exp.runs.forecast import Forecast
from topr_exp.runs.records import Evaluations, Metrics, describe_missing_updates
from topr_exp.runs.run_files import read_run_file
from topr_exp.runs.run_lock import lock_run_folder
from topr_exp.runs.stage_timer import StageTimer
from topr_exp.runtime import distributed, progress
from topr_exp.runtime.bus_error import one_line_for_bus_errors
from topr_exp.runtime.files import disk_errors, guard_writes, refuse_linked_folders, see_new_names, write_text
from topr_exp.runtime.json_files import write_json
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.runtime.terminal import plural, warn
from topr_exp.schema import literal, plain
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.runtime.progress import Progress

OWN_FOLDERS = ("*", "checkpoints/*", "iteration-*/*")  # in which a run writes and removes


class RunFolder:
    """The folder of a run, locked during a `with` block, which also records how the attempt ended.

    All processes of a run call the same methods; only the main one writes. Opening raises TOPRError for a folder that
    another process is working in, or that can't be written. A finished run's folder is not locked.
    """

    def __init__(self, config: Config, stop: StopFlag | None = None) -> None:
        self.path = config.folder
        self.stop_flag = stop or StopFlag()
        self.metrics = Metrics(self.path)
        self.evaluations = Evaluations(self.path)
        self.timer = StageTimer()
        self.counts: dict[str, int] = {}  # of tokens that this run sampled and scored
        self._config = config
        self._was_finished = False
        self._attempt: dict[str, Any] = {}
        self._progress: dict[str, Any] | None = None
        self._forecast = Forecast([])  # until the run knows its problems
        self._cleanup = contextlib.ExitStack()

    # ---- an attempt, from its beginning to its end

    def __enter__(self) -> RunFolder:
        with contextlib.ExitStack() as cleanup:
            self._open(cleanup)
            self._was_finished, self._attempt = distributed.broadcast((self.done, self._attempt))  # of the main process
            cleanup.enter_context(one_line_for_bus_errors(self._record_bus_error))
            self._cleanup = cleanup.pop_all()
        return self

    @distributed.main_process_only
    def _open(self, cleanup: contextlib.ExitStack) -> None:
        """Lock the folder and begin an attempt, unless the run is finished."""
        refuse_linked_folders(self.path, *OWN_FOLDERS)  # also of a finished run, whose leftovers are removed
        if self._has_results():
            return
        cleanup.enter_context(lock_run_folder(self.path))
        if self._has_results():  # of the process that had the lock
            return
        if self.done:
            warn(f"{self.path / 'summary.json'} is missing or damaged and is made again")
            self._warn_of_changes()
        attempt.keep_log(self.path)
        with disk_errors(f"write in {self.path}"):
            (self.path / DONE_FILE).unlink(missing_ok=True)
        self._write_description()
        self._read_state()
        attempt.remove_partial_files(self.path)
        self.save_state()
        cleanup.enter_context(guard_writes(self.path, self.refuse_if_taken_over))
        self.evaluations.drop_damaged()
        cleanup.enter_context(progress.watched_by(self))

    def _has_results(self) -> bool:
        """True for a finished run whose summary can be shown."""
        if not self.done:
            return False
        summary, _ = read_run_file(self.path / "summary.json")
        return describes_run(summary)

    def _write_description(self) -> None:
        """Write environment and settings if missing or damaged; config.json is last, as a sign of the others."""
        config = self._config
        noted_environment = self.read("environment.json")
        if noted_environment:
            self._warn_of_other_code(noted_environment)
        else:
            environment = provenance.describe_environment(config.seed, config.sampler.seed)
            environment["run"] = self.path.name  # else runs of a sweep that start in one second may have the same file
            write_json(self.path / "environment.json", environment)
        if not self.read("config.json"):
            settings = plain(config)
            composed = OmegaConf.create(literal(settings))
            write_text(self.path / "config.yaml", OmegaConf.to_yaml(composed))
            write_json(self.path / "config.json", {"identity": config.identity, "resolved": settings})

    def _warn_of_other_code(self, environment: dict[str, Any]) -> None:
        """Warn where the code is not that of the first attempt, whose environment this is."""
        code_changes = provenance.describe_code_changes(environment)
        if code_changes:
            warn(f"{self.path} was begun with other code, which its environment.json names: {code_changes}")

    def _read_state(self) -> None:
        """Continue the seconds, counts and number of earlier attempts."""
        state = self.read("state.json")
        self.timer.add_earlier_attempts(state.get("seconds", {}))
        self.counts |= state.get("counts", {})
        last_number = state.get("attempt", {}).get("number", 0)
        self._attempt = attempt.describe_attempt(last_number + 1)

    def refuse_if_taken_over(self) -> None:
        """Raise TOPRError if a later attempt has begun, as it does when this process seemed to be dead."""
        state, _ = read_run_file(self.path / "state.json")
        newest = state.get("attempt", {})
        if self._attempt and newest and newest != self._attempt:
            raise TOPRError(
                f"{self.path} was taken over by process {newest.get('host')}:{newest.get('pid')} (attempt "
                f"{newest.get('number')}, begun {newest.get('began')}), since this one was silent; nothing more is "
                "written by this one"
            )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._cleanup:
            if error is not None and not self._is_marked_finished():
                self.refuse_if_taken_over()
                self._record_failure(error)

    def _is_marked_finished(self) -> bool:
        """True once the mark is there: a later error (of a flush of the folder) is no failure of the run."""
        with contextlib.suppress(OSError):
            return self._was_finished or self.done
        return False

    def _record_bus_error(self, error: TOPRError) -> bool:
        """Record a SIGBUS, which ends this process at once; False: nobody prints it yet."""
        if not self._was_finished:
            self.refuse_if_taken_over()
            self._record_failure(error)
        return False

    def _record_failure(self, error: BaseException) -> None:
        """Record why the attempt ended, on any process: the others may only know that one is gone."""
        status = "stopped"
        if not isinstance(error, (Interrupted, KeyboardInterrupt)):
            status = "failed"
            cause = distributed.recognize_gone_peer(error)
            if not self._leaves_to_peer(cause):
                attempt.record_error(self.path, cause)
        with contextlib.suppress(TOPRError):  # of a full disk; the user must see the error itself
            self.save_state(status)

    def _leaves_to_peer(self, error: BaseException) -> bool:
        """True for the loss of a peer, which the main process records unless the peer's own error is there."""
        if not isinstance(error, distributed.PeerGoneError):
            return False
        if not distributed.is_main_process():
            return True
        see_new_names(self.path)
        with contextlib.suppress(OSError):
            return (self.path / attempt.ERROR).exists()
        return False

    # ---- reading

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the folder; {} if it is missing or, with a warning, damaged."""
        path = self.path / name
        stored, fault = read_run_file(path)
        if fault and path.exists():
            warn(f"{path} is damaged: it {fault}")
        return stored

    def lost_records(self) -> Iterator[str]:
        """Describe the records that damage has taken."""
        lost_updates = describe_missing_updates(self.metrics.updates(), {})
        if lost_updates:
            yield f"metrics.jsonl lacks {lost_updates}"
        every = self._config.evaluation.every
        iterations = self._config.iterations
        lost_evaluations = self.evaluations.count_missing(self.metrics.updates(), every, iterations)
        if lost_evaluations:
            yield f"eval.jsonl lacks {plural(lost_evaluations, 'evaluation')}"

    # ---- the end of a run

    @property
    def done(self) -> bool:
        """True once the run is finished."""
        return (self.path / DONE_FILE).exists()

    @distributed.main_process_only
    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, then the mark with the checksums of all results; then remove unwanted weights."""
        write_json(self.path / "summary.json", summary)
        self._progress = None
        self.save_state("done")
        mark_finished(self.path)
        self.remove_unwanted_models()

    def read_results(self) -> dict[str, Any]:
        """Return the summary of a run that finished before; warn of lost and changed results."""
        for line in self.lost_records():
            warn(f"{self.path}: {line}")
        self._warn_of_changes()
        return self.read("summary.json")

    @distributed.main_process_only
    def _warn_of_changes(self) -> None:
        for fault in changed_results(self.path) or ():
            warn(f"{self.path}: {fault}, so it has changed since the run finished")

    # ---- iterations and their models

    def iteration_folder(self, iteration: int) -> Path:
        """Return the folder of an iteration's training data."""
        return self.path / f"iteration-{iteration}"

    def model_of(self, iteration: int) -> Path:
        """Return the path of an iteration's model; the last one is the run's `model/`."""
        if iteration == self._config.iterations:
            return self.path / "model"
        return self.iteration_folder(iteration) / "model"

    def weights_of_update(self, iteration: int, step: int) -> Path:
        """Return the path of the weights of the policy in training, kept after an update."""
        return self.iteration_folder(iteration) / f"update-{step}"

    @distributed.main_process_only
    def remove_weights_of_end(self, iteration: int, last_step: int) -> None:
        """Remove weights kept after what turned out to be an iteration's last update: the model has the same."""
        self.refuse_if_taken_over()
        shutil.rmtree(self.weights_of_update(iteration, last_step), ignore_errors=True)

    def count_missing_weights(self) -> int:
        """Count the updates whose weights `checkpoint.weights_every` keeps and that have none."""
        updates = self.metrics.updates()
        last_steps = {key.iteration: key.step for key in updates}
        missing_count = 0
        for iteration, step in updates:
            is_kept = self._config.checkpoint.keeps_update(step, last_steps[iteration])
            missing_count += is_kept and not self.weights_of_update(iteration, step).exists()
        return missing_count

    def unfinished_iterations(self) -> range:
        """Return the iterations that are left, from the last one with a model, whose evaluation may be missing.

        Weights of those before it may be gone.
        """
        first = 1
        last = self._config.iterations
        for iteration in range(1, last + 1):
            if self.model_of(iteration).exists():
                first = iteration
        return range(first, last + 1)

    @distributed.main_process_only
    def remove_leftovers(self, finished_iteration: int) -> None:
        """Remove the checkpoints up to a finished iteration, and the weights before it unless they are kept."""
        self.refuse_if_taken_over()
        for iteration in range(1, finished_iteration + 1):  # a later iteration may resume from its checkpoints
            shutil.rmtree(self.path / "checkpoints" / str(iteration), ignore_errors=True)
        if self._config.checkpoint.weights == "all":
            return
        for iteration in range(1, finished_iteration):
            shutil.rmtree(self.model_of(iteration), ignore_errors=True)

    @distributed.main_process_only
    def remove_unwanted_models(self) -> None:
        """Remove the weights of a finished run with checkpoint.weights=none."""
        if keeps_no_model(self.path):
            for folder in model_folders_of(self.path):
                shutil.rmtree(folder, ignore_errors=True)

    # ---- progress

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block as a stage; a stop signal ends every stage at once but training, whose loops save first."""
        self.stop_flag.check()
        self.timer.begin(name)
        self._progress = None
        self._forecast.enter(name)
        self.save_state()
        signal_handling = contextlib.nullcontext() if name == "training" else self.stop_flag.immediate()
        try:
            with signal_handling:
                yield
        finally:
            self.timer.add_elapsed()
        self.save_state()

    def add_across_ranks(self, name: str, amount: int) -> None:
        """Add the amounts of all processes to a counter, such as tokens_sampled."""
        self.counts[name] = self.counts.get(name, 0) + sum(distributed.all_gather(amount))

    @distributed.main_process_only
    def save_state(self, status: str = "running") -> None:
        """Write state.json, for `python -m topr_exp.sweeps status` and for later attempts."""
        state = {
            "status": status,
            "stage": self.timer.stage,
            "progress": self._progress,
            "attempt": self._attempt,
            "seconds": self.timer.seconds,
            "counts": self.counts,
        }
        write_json(self.path / "state.json", state)

    def _save_progress(self, progress: dict[str, Any]) -> None:
        self._progress = progress
        self.save_state()

    def start_forecast(self, forecast: Forecast) -> None:
        """Estimate the time left of the run from here on."""
        self._forecast = forecast

    def note_progress(self, progress: Progress) -> None:
        """Write how far a stage is."""
        entry: dict[str, Any] = {"done": progress.done, "total": progress.total, "unit": progress.unit}
        seconds_left = progress.seconds_left()
        if seconds_left is not None:
            entry["seconds_left"] = round(seconds_left, 1)
        self._save_progress(entry)

    def end_progress(self, progress: Progress) -> None:
        """Pass the pace of complete work to the forecast."""
        self._forecast.complete(progress)

    def seconds_left(self, under_way: Sequence[Progress]) -> float | None:
        """Return the time that the whole run still takes; None if unknown."""
        return self._forecast.seconds_left(under_way)

    def log(self, record: dict[str, float]) -> None:
        """Record an update."""
        self.metrics.append(record)

    def before_checkpoint(self, step: int, steps: int) -> None:
        """Flush all records, which the checkpoint counts on, and write how far training is."""
        self.metrics.make_durable()
        self.timer.add_elapsed()
        self._save_progress({**(self._progress or {}), "done": step, "total": steps, "unit": "updates"})
