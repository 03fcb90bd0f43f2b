"""Surroundings of a run: folder, lock, inputs, stop signals, tracker, process group; then sampler, grader, stores."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from topr_exp.config.settings import Config
from topr_exp.grading.grader import Grader, open_grader
from topr_exp.runs.console import evaluation_command, format_results
from topr_exp.runs.finished import NOT_SAVED, keeps_no_model
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import compare_inputs, hash_inputs, keep_threads, refuse_damaged_model
from topr_exp.runtime import distributed
from topr_exp.runtime.machine import refuse_missing_gpu
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import plural, say, warn
from topr_exp.sampling.generation import open_sampler
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Store
from topr_exp.tracking.tracker import Tracker


@dataclass(frozen=True)
class Session:
    """One attempt at a run, with what its stages share."""

    config: Config
    folder: RunFolder
    sampler: Sampler
    grader: Grader
    shared_store: Store  # of all runs: completions of the starting model
    run_store: Store  # of this run: completions of weights that it trained

    def store_of(self, iteration: int) -> Store:
        """The store for completions of an iteration's weights; 0: the starting model."""
        if iteration == 0:
            return self.shared_store
        return self.run_store

    def check_unchanged(self) -> None:
        """Raise TOPRError where a shard that the run read has changed: nothing made of it may be saved."""
        self.shared_store.check_unchanged()
        self.run_store.check_unchanged()

    def free_sampler(self) -> None:
        """Free the sampler's memory for training; on-policy it stays up (but see `sampler.sleep`)."""
        if self.config.schedule.in_rounds:
            self.sampler.sleep()
        else:
            self.sampler.release()


@contextlib.contextmanager
def open_run_folder(config: Config) -> Iterator[RunFolder]:
    """Open a run's folder for one attempt, in all processes of the run.

    Raises TOPRError where another process is at work on the run, or its inputs changed since it was begun.
    """
    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    stop = StopFlag()
    with (
        stop.listening(),
        distributed.process_group(config.cluster.device),
        RunFolder(config, stop) as folder,
        Tracker(config.tracking, folder),
    ):
        compare_inputs(folder, hash_inputs(config), adds_kinds=not folder.done)
        yield folder


@contextlib.contextmanager
def open_session(config: Config, folder: RunFolder) -> Iterator[Session]:
    """Open sampler, grader and stores for a run that is to be finished."""
    if config.cluster.expects_gpu:
        refuse_missing_gpu()
    keep_threads(folder, config)
    opening = open_sampler(
        config.sampler,
        scratch=folder.path / "sampler",
        trust_remote_code=config.model.trust_remote_code,
        beside_training=config.schedule.in_rounds,
        keeps_drawable="kept" in config.algo.needs,
    )
    with opening as sampler, open_grader(config.grading) as grader:
        sampler.time_stages_with(folder.timer.nested)
        shared_store = Store(config.store, folder.stop_flag)
        run_store = Store(folder.path / "store", folder.stop_flag)
        yield Session(config, folder, sampler, grader, shared_store, run_store)


def report_finished(config: Config, folder: RunFolder) -> dict[str, Any]:
    """Tidy and check the folder of a finished run, print its results; returns its summary."""
    if keeps_no_model(folder.path):
        folder.remove_unwanted_models()
    else:
        refuse_damaged_model(folder.path / "model")
    folder.remove_leftovers(config.iterations)
    summary = folder.read_results()
    results = format_results(summary, folder.path, evaluation_command(config))
    say(f"finished before, nothing to do: {folder.path}\n\n{results}")
    if keeps_no_model(folder.path) and config.checkpoint.weights != "none":
        warn(f"{folder.path}: {NOT_SAVED}; overwrite=true trains it again")
    missing_count = folder.count_missing_weights()
    if missing_count:
        fault = f"no weights of {plural(missing_count, 'update')} that checkpoint.weights_every asks for"
        warn(f"{folder.path}: {fault}; overwrite=true trains it again")
    return summary
