"""READ THIS FIRST: one experiment, from problems to a summary, one call a line.

    problems -> sample -> grade -> compose -> score μ -> train -> evaluate      (`iterations` times from sample on)

What is sampled, graded or scored with the starting model lies in the store that all runs share; what depends on
weights that only this run has lies in its folder. A run that was killed goes on where it stopped when the same
command is given again. Where a run has several processes, all of them do what stands here: they sample, grade and
score different shards of the store's tables, train on different parts of each batch, and process 0 writes the folder.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from topr_exp.composition.pool import Pool, joined, pooled
from topr_exp.composition.training_set import TrainingSet, build_candidates, build_training_set
from topr_exp.config.compose import unit_of
from topr_exp.config.data import Reward
from topr_exp.config.settings import Config, Mu
from topr_exp.evaluation.curve import Curve
from topr_exp.evaluation.evaluation import first
from topr_exp.evaluation.showcase import Showcase
from topr_exp.grading.verdicts import Verdicts, grade_rollouts, open_grader
from topr_exp.models.adapter import FOLDER as ADAPTER
from topr_exp.models.adapter import check_layers
from topr_exp.models.loading import check_folder, find_folder, refuse_damage
from topr_exp.models.policy import Policy, load_policy
from topr_exp.models.words import words_of
from topr_exp.runs import card, prompt
from topr_exp.runs.benchmark import Benchmark, trained_on
from topr_exp.runs.console import header, results, say, warn
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import fingerprints, note_models, refuse_changed_inputs
from topr_exp.runs.threads import keep_threads
from topr_exp.runtime import distributed, interrupts
from topr_exp.runtime.exit_status import show_log
from topr_exp.runtime.files import write_text
from topr_exp.sampling.imported import Imported, load_imported
from topr_exp.sampling.mismatch import describe_mismatch, mismatch
from topr_exp.sampling.rollouts import Rollouts, generate_rollouts
from topr_exp.sampling.sampler import Sampler, open_sampler
from topr_exp.store import Ragged, Store
from topr_exp.tracking.tracker import Tracker
from topr_exp.training.examples import Examples
from topr_exp.training.learnable import refuse_nothing_to_learn
from topr_exp.training.offline import train_offline
from topr_exp.training.on_policy import Rounds
from topr_exp.training.parallel import parallelize
from topr_exp.training.scoring import score_rollouts
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError

REWARD_OF_WRONG = {Reward.pm1: -1.0, Reward.zero_one: 0.0, Reward.graded: None}


def run(config: Config) -> dict[str, Any]:
    """One run; returns its summary. Raises TOPRError for what the user can mend."""
    show_log(logging.WARNING)
    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    device = config.cluster.device.name
    with (
        interrupts.listening(),
        distributed.process_group(device),
        RunFolder(config) as folder,
        Tracker(config, folder),
    ):
        refuse_changed_inputs(folder, config)
        if folder.done:
            refuse_damaged_model(folder.path / "model")
            remove_leftovers(config, folder, config.iterations)
            if lost := folder.metrics.missing(config.iterations):
                warn(f"{folder.metrics.path} lacks {lost}")
            say(f"finished before, nothing to do: {folder.path}\n\n{folder.results()}")
            return folder.read("summary.json") or {}
        keep_threads(config, folder)
        folder.note("files", fingerprints(config))
        scratch = folder.path / "sampler"
        rounds = config.schedule.prompts is not None
        trust = config.model.trust_remote_code
        with open_sampler(config.sampler, scratch, trust, beside_training=rounds) as sampler:
            return Experiment(config, folder, sampler).run()


@distributed.main_process_only
def refuse_damaged_model(folder: Path) -> None:
    """Raise TOPRError when the model of a finished run is not what it was."""
    try:
        check_folder(folder, str(folder))
    except TOPRError as error:
        raise TOPRError(
            f"{error}; restore it, or remove DONE beside it, and the same command trains it again"
        ) from None
    for part in (folder, folder / ADAPTER):
        refuse_damage(part)


@distributed.main_process_only
def remove_leftovers(config: Config, folder: RunFolder, iteration: int) -> None:
    """Remove what a finished iteration leaves: its checkpoints, and the weights before it unless they are kept.

    What a file system refuses to remove stays until the next call: NFS keeps files that are open.
    """
    folder.refuse_if_taken_over()
    shutil.rmtree(folder.path / "checkpoints", ignore_errors=True)
    keep = config.checkpoint.keep_iterations
    for earlier in range(1, iteration):
        if keep is not None and earlier not in keep:
            shutil.rmtree(folder.path / f"iteration-{earlier}/model", ignore_errors=True)


class Experiment:
    """The stages of a run, each left out where an earlier attempt finished it."""

    def __init__(self, config: Config, folder: RunFolder, sampler: Sampler) -> None:
        self.config, self.folder, self.sampler = config, folder, sampler
        self.shared, self.own = Store(config.store), Store(folder.path / "store")
        self.showcase = Showcase(folder.path)
        with folder.stage("problems"):
            self.benchmark = Benchmark(config, self.shared)
        if config.task.verifies:  # the problems are now solutions to them, the answer is whether one is correct
            with folder.stage("sampling"):
                folder.count("tokens_of_solver", self.benchmark.generate_solutions(sampler, self.shared))
                sampler.close()  # an engine would have what the policy needs
        with folder.stage("problems"):
            self.policy = load_policy(config.model, config.cluster.device.name)
            if config.model.lora is not None:
                check_layers(self.policy.model, config.model.lora)
            note_models(folder, config, self.policy.fingerprint)
            sets = self.benchmark.sets
            self.train = self.benchmark.tokenize(sets.train, self.policy)
            self.test = self.benchmark.tokenize(sets.test, self.policy)
            self.show_prompt()
        self.imported: Imported | None = None
        if config.data.completions is not None:  # now, since what can't be trained on is to be told before sampling
            with folder.stage("sampling"):
                self.imported = load_imported(
                    config.data.completions, self.train.problems, self.benchmark.prompter, self.policy, self.shared
                )
        answered = self.imported[1].problems if self.imported is not None else None
        self.trained_on = trained_on(config, self.train.problems, answered)
        named = self.trained_on.text if answered is not None else ""
        say(header(config, self.policy, sets, self.train, self.test, named) + "\n")

    def run(self) -> dict[str, Any]:
        base = final = self.evaluate_iteration(0)
        iterations = range(1, self.config.iterations + 1)
        finished = [iteration for iteration in iterations if self.model_folder(iteration).exists()]
        for iteration in iterations[max(finished, default=1) - 1 :]:  # the weights of those before may be gone
            if iteration not in finished:
                self.train_iteration(iteration).save_policy(self.model_folder(iteration))
            remove_leftovers(self.config, self.folder, iteration)
            self.reload(self.model_folder(iteration))
            final = self.evaluate_iteration(iteration)
        summary = distributed.broadcast(self.summary(base, final) if distributed.is_main_process() else {})
        environment = self.folder.read("environment.json") or {}
        model = self.model_folder(self.config.iterations)
        card.write(model, self.config, summary, environment, self.trained_on)
        self.folder.finish(summary)
        say("\n" + results(summary, self.folder.path))
        return summary

    def reload(self, folder: Path | None = None) -> None:
        """The policy with the weights of a folder of this run, or (None) with the base's."""
        del self.policy  # with its gradients: there may be no memory for two
        self.policy = load_policy(self.config.model, self.config.cluster.device.name, folder)

    def add_adapter(self, iteration: int) -> None:
        """Where LoRA is asked for, have this iteration train an adapter on the base, from where the last one left it.

        What was just evaluated is the model with that adapter merged into its weights.
        """
        if (lora := self.config.model.lora) is None:
            return
        if iteration > 1:
            self.reload()
        before = self.model_folder(iteration - 1) if iteration > 1 else None
        folder, name = find_folder(self.config.model.path), self.config.model.path
        self.policy.add_adapter(lora, self.config.seed, str(folder.resolve()) if folder is not None else name, before)

    def show_prompt(self) -> None:
        """Write one whole prompt as the model gets it, for people to read."""
        if distributed.is_main_process():
            ids = self.train.prompts[0].tolist()
            text = prompt.shown(ids, words_of(self.policy.tokenizer), self.train.stop)
            write_text(self.folder.path / prompt.FILE, text + "\n")

    def store(self, iteration: int) -> Store:
        """Where what depends on an iteration's weights lies: all runs have the base's (0), only this run the others."""
        return self.shared if iteration == 0 else self.own

    def evaluate_iteration(self, iteration: int) -> dict[str, Any]:
        """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
        with self.folder.stage("evaluation"):
            evaluation = self.benchmark.evaluate(self.sampler, self.policy, self.test, self.store(iteration))
            self.folder.count("tokens_sampled_to_evaluate", evaluation.rollouts.sampled)
            self.showcase.tested(iteration, self.policy, evaluation)
            if self.config.evaluation.every is not None:  # where the curve of this iteration ends
                part = evaluation.figures(self.config.evaluation.problems)
                self.folder.evaluations.add({"iteration": iteration, "subset": True, **part})
            figures = self.benchmark.figures(evaluation, self.folder.path, iteration)
            self.folder.evaluations.add({"iteration": iteration, **figures})
        return figures

    def curve(self, iteration: int, trainer: Trainer) -> Curve:
        """The run's journal, which also evaluates the policy in training every `evaluation.every` updates."""
        questions = first(self.test, self.config.evaluation.problems)

        def evaluate_now(step: int, samples: int) -> None:
            trainer.zero_grad()  # their memory is the sampler's now
            with self.folder.aside("evaluation"), trainer.layout.gathered_weights():
                now = f"{self.folder.path.name}, iteration {iteration}, update {step}"
                policy = dataclasses.replace(self.policy, fingerprint=now)
                evaluation = self.benchmark.evaluate(self.sampler, policy, questions, self.own)
                self.before_training()
                self.folder.count("tokens_sampled_to_evaluate", evaluation.rollouts.sampled)
                place = {"iteration": iteration, "step": step, "samples_seen": samples, "subset": True}
                self.folder.evaluations.add({**place, **evaluation.figures()})

        curve = Curve(self.folder, self.config.evaluation.every, evaluate_now)
        curve.reach(trainer.step, trainer.samples)
        return curve

    def train_iteration(self, iteration: int) -> Trainer:
        """Train the policy in place: on completions of its own, on ones made elsewhere, or in rounds."""
        self.add_adapter(iteration)
        if self.config.schedule.prompts is not None:
            return self.train_in_rounds(iteration)
        store = self.store(iteration - 1)
        with self.folder.stage("sampling"):
            parts = self.completions(store)
            self.before_training()
        with self.folder.stage("grading"):
            verdicts = [grade_rollouts(part[0], part[1].problems, self.config.grading, store) for part in parts]
        with self.folder.stage("composition"):
            pool = pooled(parts, verdicts)
            training_set = self.training_set_of(pool, iteration)
            refuse_nothing_to_learn(self.config.algo, training_set)
            if training_set.description.note:
                warn(training_set.description.note)
        with self.folder.stage("scoring"):
            mu = joined([self.log_mu(rollouts, given, store) for rollouts, _, given in parts])
            reference = self.reference()
            ref_logp = None
            if reference is not None:
                ref_logp = joined([self.scored(reference, part[0], store, "scoring ref") for part in parts])
            if "vocab_kl" not in self.config.algo.needs:
                reference = None  # what it was needed for is computed
            self.record(iteration, training_set, parts, verdicts, mu)
        with self.folder.stage("training"):
            trainer = self.trainer(reference, iteration)
            examples = Examples(training_set, pool.rollouts, mu, ref_logp)
            every = self.config.checkpoint.every_seconds
            # Where all μ is ours the first update can be checked.
            ours = self.config.mu is Mu.scored and all(given is None for _, _, given in parts)
            train_offline(
                trainer, examples, self.curve(iteration, trainer), self.config.seed, iteration, every, mu_is_start=ours
            )
            trainer.zero_grad()
            with trainer.layout.gathered_weights():
                chosen = training_set.examples
                given = pool.rollouts, pool.verdicts, pool.problems
                self.showcase.trained(iteration, self.policy, *given, mu, chosen)
        return trainer

    def completions(self, store: Store) -> list[Imported]:
        """What is trained on: completions, what they answer, and log μ where it came with them; the sampled ones first.

        Imported ones take the place of sampled ones unless `compose.mix` has both.
        """
        if self.imported is not None and self.config.compose.mix is None:
            return [self.imported]
        n, seed = self.config.data.n, self.config.sampler.seed
        rollouts = generate_rollouts(self.sampler, self.policy, self.train, n, seed, store)
        self.folder.count("tokens_sampled", rollouts.sampled)
        sampled: Imported = (rollouts, self.train, None)
        return [sampled] if self.imported is None else [sampled, self.imported]

    def log_mu(self, rollouts: Rollouts, imported: Ragged | None, store: Store) -> Ragged:
        """log μ: as it came with the completions, what the sampler drew with, or by a forward pass of training."""
        if self.config.mu is Mu.sampler:
            return Ragged(rollouts.columns["sampler_logp"])
        return imported if imported is not None else self.scored(self.policy, rollouts, store, "scoring μ")

    def record(
        self,
        iteration: int,
        training_set: TrainingSet,
        parts: Sequence[Imported],
        verdicts: Sequence[Verdicts],
        mu: Sequence[NDArray[np.float32]],
    ) -> None:
        """Write down what an iteration trains on, and how far μ is from what the sampler drew with."""
        store, rollouts = str(self.store(iteration - 1).root), parts[0][0]
        sources = {"store": store, "rollouts": rollouts.name, "verdicts": verdicts[0].name}
        if len(parts) > 1:  # whose rows follow those of the sampled ones
            sources |= {"imported_rollouts": parts[1][0].name, "imported_verdicts": verdicts[1].name}
        cut_off = sum(part.cut_off for part in verdicts)
        summary = {**training_set.summary(), "sampler": rollouts.made_by, "cut_off": cut_off}
        if self.config.mu is Mu.scored and self.config.data.completions is None:
            summary["sampler_mismatch"] = mismatch(mu, Ragged(rollouts.columns["sampler_logp"]))
            say(describe_mismatch(summary["sampler_mismatch"]))
        self.folder.save_training_set(iteration, training_set.examples, summary, sources)

    def train_in_rounds(self, iteration: int) -> Trainer:
        """Train the policy in place on completions that it samples anew every few updates."""
        config = self.config
        self.sampler.close()  # the next engine takes what is free beside a reference and what training keeps
        with self.folder.stage("training"), open_grader(config.grading) as grader:
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
                lambda pool: self.training_set_of(pool, iteration),
                config.compose,
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

    def training_set_of(self, pool: Pool, iteration: int) -> TrainingSet:
        """The training set that the settings ask for, out of graded completions."""
        return build_training_set(
            build_candidates(pool, self.config.compose),
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
        logp, scored = score_rollouts(policy, rollouts, store, self.config.optim.score_batch_size, label)
        self.folder.count("tokens_scored", scored)
        return logp

    def reference(self) -> Policy | None:
        """π_ref, where the loss has one."""
        if not {"ref_logp", "vocab_kl"} & self.config.algo.needs:
            return None
        if self.policy.base is not None and self.config.model.reference is None:
            return self.policy.without_adapter()
        return load_policy(self.config.reference, self.config.cluster.device.name)

    def trainer(self, reference: Policy | None, iteration: int) -> Trainer:
        """A trainer that goes on from the iteration's newest checkpoint, its metrics cut back to that."""
        self.policy.begin_training(f"{self.folder.path.name}, iteration {iteration}, in training")
        whole = reference if "vocab_kl" in self.config.algo.needs else None
        folder = self.folder.path / "checkpoints" / str(iteration)
        parallel = self.config.cluster.parallel
        layout = parallelize(self.policy, parallel.name if parallel is not None else None)
        trainer = Trainer(self.policy, self.config.algo, whole, self.config.optim, folder, layout)
        self.folder.metrics.rewind(iteration, trainer.step)
        return trainer

    def model_folder(self, iteration: int) -> Path:
        """Where the model of an iteration is kept; the last one is the run's `model/`."""
        last = iteration == self.config.iterations
        return self.folder.path / ("model" if last else f"iteration-{iteration}/model")

    def summary(self, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
        """The run in numbers; shares lie between 0 and 1, seconds are this run's own work."""
        config, name = self.config, f"iteration-{self.config.iterations}/training_set.json"
        last = self.folder.read(name)
        if last is None:
            raise TOPRError(f"{self.folder.path / name} is missing or damaged; remove model/ to train it again")
        lost = self.folder.metrics.missing(config.iterations)
        return {
            "algo": config.algo.name,
            "data": config.data.name,
            "source": config.data.place,
            "model": config.model.name,
            "task": config.task.name.name,
            "seed": config.seed,
            "sampler_seed": config.sampler.seed,
            **{key: last[key] for key in ("baseline", "effective_positive", "positive_share", "n_train")},
            **({"mean_reward": last["mean_reward"]} if "mean_reward" in last else {}),
            "problems": {"train": self.trained_on.count, "test": len(self.test.problems)},
            "trained_on": self.trained_on.text,
            "too_long": {"train": self.train.too_long, "test": self.test.too_long},
            "cut_off": last.get("cut_off", 0),
            "note": "; ".join(filter(None, [last.get("note"), lost and f"metrics.jsonl lacks {lost}"])) or None,
            "sampler_mismatch": last.get("sampler_mismatch"),
            "iterations": self.folder.evaluations.on_all_problems(),
            "base": base,
            "final": final,
            "seconds": {name: round(value, 3) for name, value in self.folder.seconds.items()},
            "tokens": self.folder.counts,
        }
