"""A run's folder: what it is, how far it got, what it trained on. Every file is whole or absent, `DONE` comes last."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from topr_exp.config.settings import Config
from topr_exp.runs import attempt, provenance, run_lock
from topr_exp.runs.finished import MARK, changed_results, keeps_no_model, mark_finished, model_folders_of
from topr_exp.runs.forecast import Forecast
from topr_exp.runs.records import Evaluations, Metrics, samples_of
from topr_exp.runs.run_files import read_run_file
from topr_exp.runs.training_data import EXAMPLES, IMPORTED, write_rows
from topr_exp.runtime import distributed, progress
from topr_exp.runtime.bus_error import one_line_for_bus_errors
from topr_exp.runtime.files import disk_errors, guard_writes, write_text
from topr_exp.runtime.json_files import write_json
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.runtime.terminal import plural, warn
from topr_exp.schema import literal, plain
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.composition.training_set import TrainingSet
    from topr_exp.runtime.progress import Progress
    from topr_exp.sampling.completions import Completions

# Nested in sampling and evaluation, where an engine starts: "engine".
STAGES = ("problems", "sampling", "grading", "composition", "scoring", "training", "evaluation")
OF_TRAINING_SET = ("baseline", "effective_positive", "positive_share", "n_train")  # in the summary
IDLE = ("trainer_idle", "sampler_idle")  # units of virtual time


class RunFolder:
    """The folder of a run, this run's alone within a `with` block, which also notes how the attempt ended.

    All processes of a run call the same methods; only the main one writes. Opening raises TOPRError when another run is
    at work in the folder, or when it can't be written. Many may read what a finished run left.
    """

    def __init__(self, config: Config, stop: StopFlag | None = None) -> None:
        self.path, self._config, self.stop_flag = config.folder, config, stop or StopFlag()
        self.metrics, self.evaluations = Metrics(self.path), Evaluations(self.path)
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.counts: dict[str, int] = {}
        self.stage_name = ""
        self._began = time.monotonic()
        self._finished_before = False
        self._attempt: dict[str, Any] = {}
        self._progress: dict[str, Any] | None = None
        self.forecast: Forecast | None = None  # once the run knows its problems
        self._lock = contextlib.ExitStack()
        self._bus_errors = one_line_for_bus_errors(self._record_bus_error)

    # ---- an attempt, from opening to its end

    def __enter__(self) -> RunFolder:
        self._open()
        self._finished_before, self._attempt = distributed.broadcast((self.done, self._attempt))
        self._bus_errors.__enter__()
        return self

    @distributed.main_process_only
    def _open(self) -> None:
        if self.done:
            if "final" in read_run_file(self.path / "summary.json")[0]:
                return
            warn(f"{self.path / 'summary.json'} is missing or damaged and is made again")
            self._warn_of_changes()
        with contextlib.ExitStack() as held:
            held.enter_context(run_lock.lock_run_folder(self.path))
            attempt.keep_log(self.path)
            with disk_errors(f"write in {self.path}"):
                (self.path / MARK).unlink(missing_ok=True)  # of a run whose summary has to be made again
            self._describe()
            attempt.remove_partial_files(self.path)
            self.save_state()
            held.enter_context(guard_writes(self.path, self.refuse_if_taken_over))
            self.evaluations.drop_damaged()
            held.enter_context(progress.watched_by(self))
            self._lock = held.pop_all()

    def _describe(self) -> None:
        """Write down what will run and with what, where that is not there, and read how far earlier attempts got.

        The config is the last file, as a sign of the rest.
        """
        config = self._config
        if not self.read("environment.json"):
            write_json(self.path / "environment.json", provenance.environment(config.seed, config.sampler.seed))
        if not self.read("config.json"):
            write_text(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(literal(plain(config)))))
            write_json(self.path / "config.json", {"identity": config.identity, "resolved": plain(config)})
        state = self.read("state.json")
        self.seconds |= state.get("seconds", {})
        self.counts |= state.get("counts", {})
        self._attempt = attempt.describe_attempt(state.get("attempt", {}).get("number", 0) + 1)

    def refuse_if_taken_over(self) -> None:
        """Raise TOPRError when another attempt at the run began: this process was taken for dead."""
        now = read_run_file(self.path / "state.json")[0].get("attempt", {})
        if self._attempt and now and now != self._attempt:
            raise TOPRError(
                f"{self.path} was taken over by process {now.get('host')}:{now.get('pid')} (attempt {now.get('number')}"
                f", begun {now.get('began')}), since this one was silent; nothing more is written by this one"
            )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._bus_errors.__exit__(None, None, None)
        with self._lock:
            if error is not None and not self._is_marked_finished():
                self.refuse_if_taken_over()
                self._record_failure(error)

    def _is_marked_finished(self) -> bool:
        """True once the mark is there: what fails after that (a flush of the folder) is no failure of the run."""
        with contextlib.suppress(OSError):
            return self._finished_before or self.done
        return False

    def _record_bus_error(self, error: TOPRError) -> bool:
        """Write down a SIGBUS, which ends this process at once; False: who prints it is not said."""
        if not self._finished_before:
            self.refuse_if_taken_over()
            self._record_failure(error)
        return False

    def _record_failure(self, error: BaseException) -> None:
        """Write down why the attempt ended; any process of the run may be the one that knows."""
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        reason = distributed.root_cause(error)
        known = not distributed.is_main_process()
        with contextlib.suppress(OSError):  # the error on its way is what the user must see
            known = known or (self.path / attempt.ERROR).exists()
        if not stopped and not (isinstance(reason, distributed.PeerGone) and known):
            attempt.record_error(self.path, reason)
        with contextlib.suppress(TOPRError):  # a full disk: the error on its way says so
            self.save_state("stopped" if stopped else "failed")

    # ---- what it says, and what it ends with

    def read(self, name: str, *keys: str) -> dict[str, Any]:
        """A JSON object of the folder; {} where it is absent or, with a warning, damaged. keys: some that it has."""
        stored, fault = read_run_file(path := self.path / name)
        if missing_keys := sorted({*keys} - stored.keys()):
            stored, fault = {}, fault or f"lacks {missing_keys[0]}"
        if fault and path.exists():
            warn(f"{path} is damaged: it {fault}")
        return stored

    def finished(self) -> dict[str, Any]:
        """The summary of a run that finished before; warns of what its files lost, and of those that changed."""
        for lost in self.lost():
            warn(f"{self.path}: {lost}")
        self._warn_of_changes()
        return self.read("summary.json")

    @distributed.main_process_only
    def _warn_of_changes(self) -> None:
        """Name each result of a finished run that is not what it was."""
        for fault in changed_results(self.path) or ():
            warn(f"{self.path}: {fault}, so it has changed since the run finished")

    def lost(self) -> Iterator[str]:
        """Name what damage took from the records, in words."""
        if updates := self.metrics.missing():
            yield f"metrics.jsonl lacks {updates}"
        iterations, every = self._config.iterations, self._config.evaluation.every
        if points := self.evaluations.count_missing(self.metrics.updates(), every, iterations):
            yield f"eval.jsonl lacks {plural(points, 'evaluation')}"

    def summarize(self, base: dict[str, Any], final: dict[str, Any], problems: dict[str, Any]) -> dict[str, Any]:
        """The run in numbers, on every process; shares lie between 0 and 1, seconds are this run's own work."""
        config, name = self._config, f"iteration-{self._config.iterations}/training_set.json"
        if not distributed.is_main_process():
            return distributed.broadcast(dict[str, Any]())
        last = self.read(name, *OF_TRAINING_SET)
        if not last:
            raise TOPRError(f"{self.path / name} is missing or damaged; remove model/ to train it again")
        tokens = self.counts
        if config.schedule.in_rounds:
            sets = (self.read(f"iteration-{i}/training_set.json") for i in range(1, config.iterations + 1))
            tokens = tokens | {"tokens_sampled": sum(each.get("tokens_sampled", 0) for each in sets)}
        summary = {
            "base": base,
            "final": final,
            **({} if config.checkpoint.save_model else {"model_saved": False}),
            "algo": config.algo.name,
            "data": config.data.name,
            "source": config.data.place,
            "model": config.model.name,
            "task": config.task.name,
            "seed": config.seed,
            "sampler_seed": config.sampler.seed,
            **{key: last[key] for key in (*OF_TRAINING_SET, "mean_reward", "asynchrony") if key in last},
            **problems,
            "truncated_share": last.get("truncated_share"),
            "grader_timeouts": last.get("grader_timeouts", 0),
            "note": "; ".join(filter(None, [last.get("note"), *self.lost()])) or None,
            "sampler_mismatch": last.get("sampler_mismatch"),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "tokens": tokens,
        }
        return distributed.broadcast(summary)

    @property
    def done(self) -> bool:
        return (self.path / MARK).exists()

    @distributed.main_process_only
    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, then the mark that everything is there, with the checksums of all results.

        Weights that are not to be kept are removed after it.
        """
        write_json(self.path / "summary.json", summary)
        self._progress = None
        self.save_state("done")
        mark_finished(self.path)
        self.remove_unwanted_models()

    @distributed.main_process_only
    def remove_unwanted_models(self) -> None:
        """Remove the weights of a finished run whose summary says that none are kept."""
        if keeps_no_model(self.path):
            for folder in model_folders_of(self.path):
                shutil.rmtree(folder, ignore_errors=True)

    def model_of(self, iteration: int) -> Path:
        """Path of the model of an iteration; the last one is the run's `model/`."""
        return self.path / ("model" if iteration == self._config.iterations else f"iteration-{iteration}/model")

    def unfinished_iterations(self) -> range:
        """The iterations from the last one whose model is there: weights of those before it may be gone."""
        last = self._config.iterations
        return range(max((i for i in range(1, last + 1) if self.model_of(i).exists()), default=1), last + 1)

    @distributed.main_process_only
    def remove_leftovers(self, iteration: int) -> None:
        """Remove checkpoints up to a finished iteration, and the weights before it unless they are kept."""
        self.refuse_if_taken_over()
        for number in range(1, iteration + 1):  # a later iteration may go on from its own
            shutil.rmtree(self.path / "checkpoints" / str(number), ignore_errors=True)
        keep = self._config.checkpoint.keep_iterations if self._config.checkpoint.save_model else []
        for earlier in range(1, iteration):
            if keep is not None and earlier not in keep:
                shutil.rmtree(self.model_of(earlier), ignore_errors=True)

    # ---- how far it is

    def start_forecast(self, forecast: Forecast) -> None:
        """Estimate the time left of the run from here on."""
        self.forecast = forecast

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under `name`; a stop signal ends every stage at once but training, whose loops save first."""
        assert name in STAGES, name
        self.stop_flag.check()
        self.stage_name, self._began, self._progress = name, time.monotonic(), None
        if self.forecast is not None:
            self.forecast.enter(name)
        self.save_state()
        try:
            with self.stop_flag.immediate() if name != "training" else contextlib.nullcontext():
                yield
        finally:
            self._flush_timer()
        self.save_state()

    @contextlib.contextmanager
    def nested_stage(self, name: str) -> Iterator[None]:
        """Time a block within a stage under the name of another one."""
        self._flush_timer()
        stage, self.stage_name = self.stage_name, name
        try:
            yield
        finally:
            self._flush_timer()
            self.stage_name = stage

    def _flush_timer(self) -> None:
        now = time.monotonic()
        self.seconds[self.stage_name] = self.seconds.get(self.stage_name, 0.0) + now - self._began
        self._began = now

    def add_across_ranks(self, name: str, amount: int) -> None:
        """Add to a counter of what this run did (tokens sampled, tokens scored) what all its processes did."""
        self.counts[name] = self.counts.get(name, 0) + sum(distributed.all_gather(amount))

    @distributed.main_process_only
    def save_state(self, status: str = "running") -> None:
        """Write what `python -m topr_exp.sweeps status` shows, and what a later attempt needs of this one."""
        state = {"status": status, "stage": self.stage_name, "progress": self._progress, "attempt": self._attempt}
        write_json(self.path / "state.json", {**state, "seconds": self.seconds, "counts": self.counts})

    def _save_progress(self, done: dict[str, Any]) -> None:
        self._progress = done
        self.save_state()

    def note_progress(self, progress: Progress) -> None:
        """Write down how far a stage is."""
        left = progress.seconds_left()
        noted = {"done": progress.done, "total": progress.total, "unit": progress.unit}
        self._save_progress(noted if left is None else {**noted, "seconds_left": round(left, 1)})

    def end_progress(self, progress: Progress) -> None:
        """Have the forecast know the pace of work that is complete."""
        if self.forecast is not None:
            self.forecast.complete(progress)

    def seconds_left(self, under_way: Sequence[Progress]) -> float | None:
        """Return the time that the whole run still takes, None before anything tells."""
        return None if self.forecast is None else self.forecast.seconds_left(under_way)

    def log(self, record: dict[str, float]) -> None:
        """Keep the record of an update."""
        self.metrics.append(record)

    def before_checkpoint(self, step: int, steps: int) -> None:
        """Make every logged line durable, since the checkpoint counts on them, and note how far the run got."""
        self.metrics.make_durable()
        self._flush_timer()
        self._save_progress({**(self._progress or {}), "done": step, "total": steps, "unit": "updates"})

    @distributed.main_process_only
    def save_training_set(
        self,
        iteration: int,
        training_set: TrainingSet,
        completions: Sequence[Completions],
        store: Path,
        gap: dict[str, Any] | None,
    ) -> None:
        """Save what an iteration trains on: its rows of the completions, a summary, and where these lie in the store.

        gap: how far μ is from what the sampler drew with.
        """
        from topr_exp.grading.verdicts import grader_timeouts

        tables = [source.stored for source in completions]
        sources: dict[str, Any] = {"store": str(store)}
        for prefix, stored in zip(("", "imported_"), tables, strict=False):  # imported rows follow sampled ones
            assert stored is not None, "offline, completions lie in the store"
            sources |= {f"{prefix}rollouts": stored.rollouts, f"{prefix}verdicts": stored.verdicts}
        timeouts = sum(grader_timeouts(source) for source in completions)
        summary = {**training_set.summary(), "sampler": completions[0].made_by, "grader_timeouts": timeouts}
        target = self.path / f"iteration-{iteration}"
        with disk_errors(f"write in {target}"):
            target.mkdir(exist_ok=True)
            write_rows(target / EXAMPLES, training_set.examples)
            if completions[-1].has("row"):
                write_rows(target / IMPORTED, completions[-1].table["row"].to_numpy())
        write_json(target / "sources.json", sources)
        write_json(target / "training_set.json", summary if gap is None else {**summary, "sampler_mismatch": gap})

    @distributed.main_process_only
    def save_rounds(self, iteration: int, trained: int, sampled: int, baseline: float) -> None:
        """Summarize the training data of an iteration of rounds, from its metrics.

        trained: completions; sampled: tokens, by all attempts.
        """
        from topr_exp.composition.selection import no_positives

        records = self.metrics.of_iteration(iteration)
        sizes = np.diff([0, *(samples_of(record) for record in records)])  # of the updates
        means = {name: float(np.average([record[name] for record in records], weights=sizes))
                 for name in ("positive_share", "mean_reward") if name in records[0]}  # fmt: skip
        # Each record of a round says the same of its completions.
        totals = {name: int(sum({each["round"]: each[name] for each in records if each.get(name)}.values()))
                  for name in ("grader_timeouts", "problems_drawn", "problems_kept")
                  if name == "grader_timeouts" or any(name in each for each in records)}  # fmt: skip
        by_round = {record.get("round"): record.get("sampled_truncated") for record in records}
        truncated = [share for share in by_round.values() if share is not None and not np.isnan(share)]  # not replayed
        target = self.path / f"iteration-{iteration}"
        target.mkdir(exist_ok=True)
        note = no_positives(means["positive_share"], trained)
        more: dict[str, Any] = {"n_train": trained, "baseline": baseline, "effective_positive": None, "note": note}
        more["tokens_sampled"] = sampled
        more["truncated_share"] = float(np.mean(truncated)) if truncated else None
        if "age" in (last := records[-1]):
            shares = {name: last[name] for name in last if name.startswith(("virtual_time", "dropped_share"))}
            idle = {name: sum(record[name] for record in records) for name in IDLE if name in last}
            more["asynchrony"] = {"age": float(np.mean([record["age"] for record in records])), **idle, **shares}
        if "sampler_kl_token" in records[0]:
            drew = [each for each in records if each["sampler_kl_token"] is not None]
            kl = {name: float(np.mean([row[f"sampler_{name}"] for row in drew])) for name in ("kl_token", "kl_answer")}
            more["sampler_mismatch"] = {"put_in": plain(self._config.sampler.mismatch), **kl}
        write_json(target / "training_set.json", {**means, **totals, **more})
