"""READ THIS FIRST: one experiment, from problems to a summary, one call a line.

    problems -> sample -> grade -> compose -> score μ -> train -> evaluate      (`iterations` times from sample on)

What is sampled, graded or scored with the starting model lies in the store that all runs share; what depends on
weights that only this run has lies in its folder. A run that was killed goes on where it stopped when the same
command is given again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from topr_exp import interrupts
from topr_exp.composition.config import unit_of
from topr_exp.composition.training_set import TrainingSet, candidates, compose
from topr_exp.config import Config
from topr_exp.console import header, results, say, warn
from topr_exp.data.config import Reward
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.data.questions import Questions, ask
from topr_exp.evaluation.evaluate import evaluate
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import Verdicts, judge
from topr_exp.models.policy import Policy, load_policy, save_policy
from topr_exp.run_folder import RunFolder
from topr_exp.sampling.rollouts import Rollouts, collect
from topr_exp.store import Store
from topr_exp.tracking.tracker import Tracker
from topr_exp.training.examples import Examples
from topr_exp.training.offline import train_offline
from topr_exp.training.on_policy import Rounds
from topr_exp.training.scoring import score
from topr_exp.training.trainer import Trainer
from topr_exp.types import Problem

REWARD_OF_WRONG = {Reward.pm1: -1.0, Reward.zero_one: 0.0}


def run(config: Config) -> dict[str, Any]:
    """One run; returns its summary. Raises TOPRError for what the user can mend."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    with interrupts.listening(), RunFolder(config) as folder, Tracker(config, folder.path):
        return experiment(config, folder)


def experiment(config: Config, folder: RunFolder) -> dict[str, Any]:
    """The stages in order, each left out where an earlier attempt finished it."""
    if folder.done:
        summary: dict[str, Any] = folder.read("summary.json")
        say(f"finished before, nothing to do: {folder.path}\n\n{results(summary, folder.path)}")
        return summary
    with folder.stage("problems"):
        sets = load_problems(config.data)
        prompter = build_prompter(config.data)
        policy = load_policy(config.model, config.cluster.device.name)
        train = ask(sets.train, prompter, policy, config.sampler.max_new_tokens)
        test = ask(sets.test, prompter, policy, config.sampler.max_new_tokens)
    say(header(config, policy, sets, train, test) + "\n")
    store = Store(Path(config.output_dir) / "store")
    base = measure(policy, test, config, store, folder, iteration=0)
    finished = [i for i in range(1, config.iterations + 1) if model_folder(folder, config, i).exists()]
    for iteration in range(max(finished, default=1), config.iterations + 1):
        trained = model_folder(folder, config, iteration)
        if iteration not in finished:
            if config.schedule.prompts is None:
                improve(policy, train, config, store, folder, iteration)
            else:
                improve_in_rounds(policy, train, config, folder, iteration)
            save_policy(policy, trained)
            tidy(folder, config, iteration)
        policy = load_policy(config.model, config.cluster.device.name, trained)
        store = Store(folder.path / "store")  # from here on everything depends on weights that only this run has
        final = measure(policy, test, config, store, folder, iteration)
    summary = summarise(config, folder, train, test, base, final)
    folder.finish(summary)
    say("\n" + results(summary, folder.path))
    return summary


def improve(policy: Policy, train: Questions, config: Config, store: Store, folder: RunFolder, iteration: int) -> None:
    """One iteration: train `policy` in place on completions of its own, all sampled first."""
    data, algo = config.data, config.algo
    with folder.stage("sampling"):
        rollouts = collect(policy, train, data.n, config.sampler, config.sampler.seed, store)
        folder.count("tokens_sampled", rollouts.sampled)
    with folder.stage("grading"):
        verdicts = judge(rollouts, train.problems, data.grader_name, store)
    with folder.stage("composition"):
        training_set = choose(rollouts, verdicts, train.problems, config, iteration)
        folder.save_training_set(iteration, training_set.examples, training_set.summary())
        if training_set.description.note:
            warn(training_set.description.note)
    with folder.stage("scoring"):
        mu, scored = score(policy, rollouts, store, config.optim.score_batch_size, "scoring μ")
        folder.count("tokens_scored", scored)
        reference, ref_logp = None, None
        if {"ref_logp", "vocab_kl"} & algo.needs:
            reference = load_policy(config.reference, config.cluster.device.name)
        if reference is not None and "ref_logp" in algo.needs:
            ref_logp, scored = score(reference, rollouts, store, config.optim.score_batch_size, "scoring ref")
            folder.count("tokens_scored", scored)
    with folder.stage("training"):
        in_memory = reference if "vocab_kl" in algo.needs else None
        trainer = Trainer(policy, algo, in_memory, config.optim, checkpoints(folder, iteration))
        folder.rewind(iteration, trainer.step)
        examples = Examples(training_set, rollouts, mu, ref_logp)
        train_offline(
            trainer,
            examples,
            config.seed,
            iteration,
            folder.log,
            config.checkpoint.every_seconds,
            folder.before_checkpoint,
        )


def improve_in_rounds(policy: Policy, train: Questions, config: Config, folder: RunFolder, iteration: int) -> None:
    """One iteration: train `policy` in place on completions that it samples anew every few updates."""
    needs = config.algo.needs
    with folder.stage("training"), Grader(config.data.grader_name) as grader:
        reference = None
        if {"ref_logp", "vocab_kl"} & needs:
            reference = load_policy(config.reference, config.cluster.device.name)
        trainer = Trainer(
            policy,
            config.algo,
            reference if "vocab_kl" in needs else None,
            config.optim,
            checkpoints(folder, iteration),
        )
        folder.rewind(iteration, trainer.step)
        rounds = Rounds(
            trainer,
            train,
            config.schedule,
            config.sampler,
            config.data.n,
            grader,
            reference if "ref_logp" in needs else None,
            lambda rollouts, verdicts, problems: choose(rollouts, verdicts, problems, config, iteration),
            config.seed,
            iteration,
        )
        rounds.run(folder.log, config.checkpoint.every_seconds, folder.before_checkpoint)
        folder.count("tokens_sampled", rounds.sampled)
    folder.save_rounds(iteration, trainer.samples, config.baseline or 0.0)


def choose(
    rollouts: Rollouts, verdicts: Verdicts, problems: Sequence[Problem], config: Config, iteration: int
) -> TrainingSet:
    """The training set that the settings ask for, out of graded completions."""
    return compose(
        candidates(rollouts, verdicts, problems),
        REWARD_OF_WRONG[config.data.reward],
        config.compose,
        unit_of(config.algo.needs),
        seed=config.seed,
        iteration=iteration,
        baseline=config.baseline,
        effective=config.effective_positive,
    )


def measure(
    policy: Policy, test: Questions, config: Config, store: Store, folder: RunFolder, iteration: int
) -> dict[str, Any]:
    """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
    with folder.stage("evaluation"):
        figures, sampled = evaluate(policy, test, config, store)
        folder.count("tokens_sampled_to_evaluate", sampled)
        folder.add_evaluation({"iteration": iteration, **figures})
    return figures


def model_folder(folder: RunFolder, config: Config, iteration: int) -> Path:
    """Where the model of an iteration is kept; the last one is the run's `model/`."""
    return folder.path / ("model" if iteration == config.iterations else f"iteration-{iteration}/model")


def checkpoints(folder: RunFolder, iteration: int) -> Path:
    """Where an iteration in training saves what it needs to go on."""
    return folder.path / "checkpoints" / str(iteration)


def tidy(folder: RunFolder, config: Config, iteration: int) -> None:
    """Remove what a finished iteration no longer needs: checkpoints, and the weights before it unless they are kept."""
    shutil.rmtree(folder.path / "checkpoints", ignore_errors=True)
    keep = config.checkpoint.keep_iterations
    if keep is not None and iteration > 1 and iteration - 1 not in keep:
        shutil.rmtree(model_folder(folder, config, iteration - 1), ignore_errors=True)


def summarise(
    config: Config, folder: RunFolder, train: Questions, test: Questions, base: dict[str, Any], final: dict[str, Any]
) -> dict[str, Any]:
    """The run in numbers; shares lie between 0 and 1, seconds are this run's own work."""
    last = folder.read(f"iteration-{config.iterations}/training_set.json")
    return {
        "algo": config.algo.name,
        "data": config.data.name,
        "source": config.data.source,
        "model": config.model.name,
        "seed": config.seed,
        "sampler_seed": config.sampler.seed,
        "baseline": last["baseline"],
        "effective_positive": last["effective_positive"],
        "positive_share": last["positive_share"],
        "n_train": last["n_train"],
        "problems": {"train": len(train.problems), "test": len(test.problems)},
        "too_long": {"train": train.too_long, "test": test.too_long},
        "iterations": folder.evaluations(),
        "base": base,
        "final": final,
        "seconds": {name: round(value, 3) for name, value in folder.seconds.items()},
        "tokens": folder.counts,
    }
