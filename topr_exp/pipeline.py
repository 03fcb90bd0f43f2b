"""READ THIS FIRST: one experiment, from problems to a summary, one call a line.

    problems -> sample -> grade -> compose -> score μ -> train -> evaluate      (`iterations` times from sample on)

What is sampled, graded or scored with the starting model lies in the store that all runs share; what depends on
weights that only this run has lies in its folder. A run that was killed goes on where it stopped when the same
command is given again. Where a run has several processes, all of them do what stands here: they sample, grade and
score different shards of the store's tables, train on different parts of each batch, and process 0 writes the folder.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from topr_exp import interrupts, world
from topr_exp.composition.config import unit_of
from topr_exp.composition.training_set import TrainingSet, candidates, compose
from topr_exp.config import Config, Mu
from topr_exp.console import header, results, say, warn
from topr_exp.data.config import Reward
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.data.questions import Questions, ask
from topr_exp.evaluation.curve import Curve
from topr_exp.evaluation.evaluate import evaluate, first
from topr_exp.evaluation.showcase import Showcase
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import Verdicts, judge
from topr_exp.inputs import fingerprints
from topr_exp.models.policy import Policy, load_policy
from topr_exp.run_folder import RunFolder, open_run
from topr_exp.sampling.imported import load_imported
from topr_exp.sampling.mismatch import describe, mismatch
from topr_exp.sampling.rollouts import Rollouts, collect
from topr_exp.sampling.sampler import Sampler, open_sampler
from topr_exp.store import Ragged, Store
from topr_exp.tracking.tracker import Tracker
from topr_exp.training.examples import Examples
from topr_exp.training.offline import train_offline
from topr_exp.training.on_policy import Rounds
from topr_exp.training.scoring import score
from topr_exp.training.trainer import Trainer
from topr_exp.types import Problem
from topr_exp.verifier.solutions import Verification

REWARD_OF_WRONG = {Reward.pm1: -1.0, Reward.zero_one: 0.0}


def run(config: Config) -> dict[str, Any]:
    """One run; returns its summary. Raises TOPRError for what the user can mend."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    device = config.cluster.device.name
    with interrupts.listening(), world.joined(device), open_run(config) as folder, Tracker(config, folder.path):
        folder.refuse_changed("files", fingerprints(config))
        if folder.done:
            summary: dict[str, Any] = folder.read("summary.json")
            say(f"finished before, nothing to do: {folder.path}\n\n{results(summary, folder.path)}")
            return summary
        scratch = folder.path / "sampler" / str(world.rank())
        with open_sampler(config.sampler, scratch, config.model.trust_remote_code) as sampler:
            return Experiment(config, folder, sampler).run()


class Experiment:
    """The stages of a run, each left out where an earlier attempt finished it."""

    def __init__(self, config: Config, folder: RunFolder, sampler: Sampler) -> None:
        self.config, self.folder, self.sampler = config, folder, sampler
        self.shared, self.own = Store(config.store), Store(folder.path / "store")
        self.showcase = Showcase(folder.path, config.optim.score_batch_size)
        with folder.stage("problems"):
            sets = load_problems(config.data)
            self.prompter = build_prompter(config.data)
        self.verification: Verification | None = None
        if config.task.verifies:  # the problems are now solutions to them, the answer is whether one is correct
            with folder.stage("sampling"):
                self.verification = Verification(config, sets, self.prompter, self.shared, sampler)
                sets, self.prompter = self.verification.sets, self.verification.prompter
                self.folder.count("tokens_of_solver", self.verification.sampled)
        with folder.stage("problems"):
            self.policy = load_policy(config.model, config.cluster.device.name)
            folder.refuse_changed("models", {"model.path": self.policy.fingerprint})
            self.train = ask(sets.train, self.prompter, self.policy, config.sampler.max_new_tokens)
            self.test = ask(sets.test, self.prompter, self.policy, config.sampler.max_new_tokens)
        say(header(config, self.policy, sets, self.train, self.test) + "\n")

    def run(self) -> dict[str, Any]:
        base = final = self.measure(0)
        iterations = range(1, self.config.iterations + 1)
        finished = [iteration for iteration in iterations if self.model_folder(iteration).exists()]
        for iteration in iterations[max(finished, default=1) - 1 :]:  # the weights of those before may be gone
            if iteration not in finished:
                self.improve(iteration).save_policy(self.model_folder(iteration))
            self.tidy(iteration)
            del self.policy  # with its gradients: there may be no memory for two
            gc.collect()
            self.policy = load_policy(self.config.model, self.config.cluster.device.name, self.model_folder(iteration))
            final = self.measure(iteration)
        summary = world.from_leader(self.summary(base, final) if world.leads() else {})
        self.folder.finish(summary)
        say("\n" + results(summary, self.folder.path))
        return summary

    def store(self, iteration: int) -> Store:
        """Where what depends on an iteration's weights lies: all runs have the base's (0), only this run the others."""
        return self.shared if iteration == 0 else self.own

    def measure(self, iteration: int) -> dict[str, Any]:
        """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
        with self.folder.stage("evaluation"):
            evaluation = evaluate(self.sampler, self.policy, self.test, self.config, self.store(iteration))
            self.folder.count("tokens_sampled_to_evaluate", evaluation.rollouts.sampled)
            self.showcase.tested(iteration, self.policy, evaluation)
            if self.config.evaluation.every is not None:  # where the curve of this iteration ends
                part = evaluation.figures(self.config.evaluation.problems)
                self.folder.add_evaluation({"iteration": iteration, "subset": True, **part})
            figures = {**evaluation.figures(), **evaluation.places()}
            if self.verification is not None:
                figures |= self.verification.tested(self.folder.path, iteration, evaluation)
            self.folder.add_evaluation({"iteration": iteration, **figures})
        return figures

    def curve(self, iteration: int, trainer: Trainer) -> Curve:
        """The run's journal, which also evaluates the policy in training every `evaluation.every` updates."""
        questions = first(self.test, self.config.evaluation.problems)

        def look(step: int, samples: int) -> None:
            trainer.drop_gradients()  # their memory is the sampler's now
            with self.folder.aside("evaluation"), trainer.layout.whole():
                now = f"{self.folder.path.name}, iteration {iteration}, update {step}"
                policy = dataclasses.replace(self.policy, fingerprint=now)
                evaluation = evaluate(self.sampler, policy, questions, self.config, self.own)
                self.before_training()
                self.folder.count("tokens_sampled_to_evaluate", evaluation.rollouts.sampled)
                place = {"iteration": iteration, "step": step, "samples_seen": samples, "subset": True}
                self.folder.add_evaluation({**place, **evaluation.figures()})

        curve = Curve(self.folder, self.config.evaluation.every, look)
        curve.reach(trainer.step, trainer.samples)
        return curve

    def improve(self, iteration: int) -> Trainer:
        """Train the policy in place: on completions of its own, on ones made elsewhere, or in rounds."""
        if self.config.schedule.prompts is not None:
            return self.train_in_rounds(iteration)
        store = self.store(iteration - 1)
        with self.folder.stage("sampling"):
            rollouts, train, imported = self.completions(store)
            self.before_training()
        with self.folder.stage("grading"):
            verdicts = judge(rollouts, train.problems, self.config.grader_name, store)
        with self.folder.stage("composition"):
            training_set = self.composed(rollouts, verdicts, train.problems, iteration)
        with self.folder.stage("scoring"):
            mu = self.log_mu(rollouts, imported, store)
            reference = self.reference()
            ref_logp = self.scored(reference, rollouts, store, "scoring ref") if reference is not None else None
            if "vocab_kl" not in self.config.algo.needs:
                reference = None  # what it was needed for is computed
            self.record(iteration, training_set, rollouts, verdicts, mu)
        with self.folder.stage("training"):
            trainer = self.trainer(reference, iteration)
            examples = Examples(training_set, rollouts, mu, ref_logp)
            every = self.config.checkpoint.every_seconds
            ours = self.config.mu is Mu.scored and imported is None  # so that the first update can be checked
            train_offline(
                trainer, examples, self.curve(iteration, trainer), self.config.seed, iteration, every, mu_is_start=ours
            )
            trainer.drop_gradients()
            with trainer.layout.whole():
                chosen = training_set.examples
                self.showcase.trained(iteration, self.policy, rollouts, verdicts, train.problems, mu, chosen)
        return trainer

    def completions(self, store: Store) -> tuple[Rollouts, Questions, Ragged | None]:
        """What is trained on: completions, what they answer, and log μ where it came with them."""
        data = self.config.data
        if data.completions is not None:
            return load_imported(data.completions, self.train.problems, self.prompter, self.policy, store)
        rollouts = collect(self.sampler, self.policy, self.train, data.n, self.config.sampler.seed, store)
        self.folder.count("tokens_sampled", rollouts.sampled)
        return rollouts, self.train, None

    def log_mu(self, rollouts: Rollouts, imported: Ragged | None, store: Store) -> Ragged:
        """log μ: as it came with the completions, what the sampler drew with, or by a forward pass of training."""
        if self.config.mu is Mu.sampler:
            return Ragged(rollouts.columns["sampler_logp"])
        return imported if imported is not None else self.scored(self.policy, rollouts, store, "scoring μ")

    def record(
        self, iteration: int, training_set: TrainingSet, rollouts: Rollouts, verdicts: Verdicts, mu: Ragged
    ) -> None:
        """Write down what an iteration trains on, and how far μ is from what the sampler drew with."""
        if training_set.description.note:
            warn(training_set.description.note)
        store = str(self.store(iteration - 1).root)
        sources = {"store": store, "rollouts": rollouts.name, "verdicts": verdicts.name}
        summary = {**training_set.summary(), "sampler": rollouts.made_by}
        if self.config.mu is Mu.scored and self.config.data.completions is None:
            summary["sampler_mismatch"] = mismatch(mu, Ragged(rollouts.columns["sampler_logp"]))
            say(describe(summary["sampler_mismatch"]))
        self.folder.save_training_set(iteration, training_set.examples, summary, sources)

    def train_in_rounds(self, iteration: int) -> Trainer:
        """Train the policy in place on completions that it samples anew every few updates."""
        config = self.config
        with self.folder.stage("training"), Grader(config.grader_name) as grader:
            reference = self.reference()
            trainer = self.trainer(reference, iteration)
            rounds = Rounds(
                trainer,
                self.train,
                config.schedule,
                self.sampler,
                config.data.n,
                grader,
                reference,
                lambda rollouts, verdicts, problems: self.composed(rollouts, verdicts, problems, iteration),
                config.seed,
                iteration,
            )
            rounds.run(self.curve(iteration, trainer), config.checkpoint.every_seconds)
            self.folder.count("tokens_sampled", rounds.sampled)
        self.folder.save_rounds(iteration, trainer.samples, config.baseline or 0.0)
        return trainer

    def before_training(self) -> None:
        """Have the sampler give its memory back; on-policy it stays up (but see `sampler.sleep`)."""
        if self.config.schedule.prompts is None:
            self.sampler.close()
        else:
            self.sampler.rest()

    def composed(
        self, rollouts: Rollouts, verdicts: Verdicts, problems: Sequence[Problem], iteration: int
    ) -> TrainingSet:
        """The training set that the settings ask for, out of graded completions."""
        return compose(
            candidates(rollouts, verdicts, problems),
            REWARD_OF_WRONG[self.config.reward],
            self.config.compose,
            unit_of(self.config.algo.needs),
            seed=self.config.seed,
            iteration=iteration,
            baseline=self.config.baseline,
            effective=self.config.effective_positive,
            in_rounds=self.config.schedule.prompts is not None,
        )

    def scored(self, policy: Policy, rollouts: Rollouts, store: Store, label: str) -> Ragged:
        """log-probabilities of all completions under a policy, from the store as far as they are there."""
        logp, scored = score(policy, rollouts, store, self.config.optim.score_batch_size, label)
        self.folder.count("tokens_scored", scored)
        return logp

    def reference(self) -> Policy | None:
        """π_ref, where the loss has one."""
        if not {"ref_logp", "vocab_kl"} & self.config.algo.needs:
            return None
        return load_policy(self.config.reference, self.config.cluster.device.name)

    def trainer(self, reference: Policy | None, iteration: int) -> Trainer:
        """A trainer that goes on from the iteration's newest checkpoint, its metrics cut back to that."""
        self.policy.begin_training(f"{self.folder.path.name}, iteration {iteration}, in training")
        whole = reference if "vocab_kl" in self.config.algo.needs else None
        folder = self.folder.path / "checkpoints" / str(iteration)
        parallel = self.config.cluster.parallel
        trainer = Trainer(self.policy, self.config.algo, whole, self.config.optim, folder, parallel)
        self.folder.rewind(iteration, trainer.step)
        return trainer

    def model_folder(self, iteration: int) -> Path:
        """Where the model of an iteration is kept; the last one is the run's `model/`."""
        last = iteration == self.config.iterations
        return self.folder.path / ("model" if last else f"iteration-{iteration}/model")

    def tidy(self, iteration: int) -> None:
        """Remove what a finished iteration leaves: its checkpoints, and the weights before it unless they are kept."""
        if not world.leads():
            return
        shutil.rmtree(self.folder.path / "checkpoints", ignore_errors=True)
        keep = self.config.checkpoint.keep_iterations
        if keep is not None and iteration > 1 and iteration - 1 not in keep:
            shutil.rmtree(self.model_folder(iteration - 1), ignore_errors=True)

    def summary(self, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
        """The run in numbers; shares lie between 0 and 1, seconds are this run's own work."""
        config, last = self.config, self.folder.read(f"iteration-{self.config.iterations}/training_set.json")
        return {
            "algo": config.algo.name,
            "data": config.data.name,
            "source": config.data.source,
            "model": config.model.name,
            "task": config.task.name.name,
            "seed": config.seed,
            "sampler_seed": config.sampler.seed,
            **{key: last[key] for key in ("baseline", "effective_positive", "positive_share", "n_train")},
            "problems": {"train": len(self.train.problems), "test": len(self.test.problems)},
            "too_long": {"train": self.train.too_long, "test": self.test.too_long},
            "sampler_mismatch": last.get("sampler_mismatch"),
            "iterations": self.folder.evaluations(),
            "base": base,
            "final": final,
            "seconds": {name: round(value, 3) for name, value in self.folder.seconds.items()},
            "tokens": self.folder.counts,
        }
