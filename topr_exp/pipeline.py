"""READ THIS FIRST: one experiment, from problems to a summary, one call a line.

    problems -> sample -> grade -> compose -> score μ -> train -> evaluate      (`iterations` times from sample on)

What is sampled, graded or scored with the starting model lies in the store that all runs share; what depends on
weights that only this run has lies in its folder. A run that was killed goes on where it stopped when the same
command is given again. Where a run has several processes, all of them do what stands here: they sample, grade and
score different shards of the store's tables, train on different parts of each batch, and process 0 writes the folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from topr_exp.composition.candidates import CompletionPool, concat_rows, merge_sources
from topr_exp.composition.training_set import TrainingSet, build_candidates, build_training_set
from topr_exp.config.groups import unit_of
from topr_exp.config.settings import Config
from topr_exp.evaluation.evaluation import EvaluatingJournal, first
from topr_exp.evaluation.showcase import Showcase
from topr_exp.grading.verdicts import Verdicts, given_verdicts, grade_rollouts, open_grader
from topr_exp.models.loading import find_folder
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runs.console import header, never_rarer, results, signs, write_card, write_prompt
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.imported_log import report
from topr_exp.runs.preflight import compare_inputs, inputs_of, keep_threads, note_model_of_the_hub, refuse_damaged_model
from topr_exp.runs.task_set import TaskSet, TrainedOn, trained_on
from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import say, warn
from topr_exp.runtime.files import CHECKSUMS
from topr_exp.runtime.stop import StopFlag
from topr_exp.sampling.imported import load_imported, open_log
from topr_exp.sampling.rollouts import Completions, describe_mismatch, generate_rollouts, mismatch, open_sampler
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Ragged, Store
from topr_exp.tracking.tracker import Tracker
from topr_exp.training.examples import Examples
from topr_exp.training.logprobs import score_rollouts
from topr_exp.training.on_policy import Rounds, train_offline
from topr_exp.training.parallel import parallelize
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError

OF_TRAINING_SET = ("baseline", "effective_positive", "positive_share", "n_train")  # in the summary
INCORRECT_REWARD = {"pm1": -1.0, "zero_one": 0.0, "graded": None, "given": None}


def run(config: Config) -> dict[str, Any]:
    """One run; returns its summary. Raises TOPRError for what the user can mend."""
    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    device, stop = config.cluster.device, StopFlag()
    with (
        stop.listening(),
        distributed.process_group(device),
        RunFolder(config, stop) as folder,
        Tracker(config.tracking, folder),
    ):
        compare_inputs(folder, inputs_of(config), note=not folder.done)
        if folder.done:
            refuse_damaged_model(folder.path / "model")
            folder.remove_leftovers(config.iterations)
            summary = folder.finished()
            say(f"finished before, nothing to do: {folder.path}\n\n{results(summary, folder.path)}")
            return summary
        keep_threads(folder, config)
        scratch, trust = folder.path / "sampler", config.model.trust_remote_code
        with open_sampler(config.sampler, scratch, trust, beside_training=in_rounds(config)) as sampler:
            return Experiment(config, folder, sampler, stop).run()


def in_rounds(config: Config) -> bool:
    """True where the policy in training samples anew every few updates."""
    return config.schedule.prompts is not None


class Experiment:
    """The stages of a run, each left out where an earlier attempt finished it."""

    def __init__(self, config: Config, folder: RunFolder, sampler: Sampler, stop: StopFlag) -> None:
        self.config, self.folder, self.sampler, self.stop = config, folder, sampler, stop
        self.shared, self.own = Store(config.store, stop), Store(folder.path / "store", stop)
        self.showcase, self.told_signs = Showcase(folder.path), False
        self.log_report: dict[str, str] = {}  # rows of the header on imported completions

    def run(self) -> dict[str, Any]:
        """All of it; returns the summary."""
        self.load_problems()
        self.load_policy()
        self.imported = self.load_imported()
        self.trained_on = self.describe_training_problems()
        base = final = self.evaluate_iteration(0)
        for iteration in self.unfinished_iterations():
            self.train_iteration(iteration)
            self.folder.remove_leftovers(iteration)
            self.reload(self.folder.model_of(iteration))
            final = self.evaluate_iteration(iteration)
        return self.finish(base, final)

    # ---- before the first iteration

    def load_problems(self) -> None:
        """Load the problems; a verifier's are solutions to them, which its solver samples here."""
        with self.folder.stage("problems"):
            self.tasks = TaskSet(self.config)
        if self.config.task.verifies:
            with self.folder.stage("sampling"):
                sampled = self.tasks.generate_solutions(self.sampler, self.shared)
                self.folder.add_across_ranks("tokens_of_solver", sampled)
                self.sampler.close()  # an engine would have what the policy needs

    def load_policy(self) -> None:
        """Load the base model, and tokenize the prompts, one of which is written down for people to read."""
        with self.folder.stage("problems"):
            self.policy = load_policy(self.config.model, self.config.cluster.device)
            note_model_of_the_hub(self.folder, self.config, self.policy.fingerprint)
            sets = self.tasks.sets
            self.train, self.test = (self.tasks.tokenize(part, self.policy) for part in (sets.train, sets.test))
            write_prompt(self.folder.path, self.train, self.policy.tokenizer)

    def load_imported(self) -> Completions | None:
        """Load completions made elsewhere; now, so that what can't be trained on is refused before sampling."""
        if self.config.data.completions is None:
            return None
        with self.folder.stage("sampling"):
            config, log = self.config, open_log(self.config.data, self.shared)
            whole = config.data.n if unit_of(config.algo.needs) == "groups" else None
            found = load_imported(config.data, log, self.train.problems, self.tasks.prompter, self.policy, whole)
            if config.mu == "sampler" and found.log_mu is None:
                raise TOPRError(f"mu=sampler: {config.data.completions} has no log-probabilities of its tokens")
            self.log_report = report(config, log, found, self.policy)
            return found

    def describe_training_problems(self) -> TrainedOn:
        """Count the problems to train on, and print the header."""
        found = trained_on(self.config, self.train.problems, self.imported)
        self.header = header(self.config, self.policy, self.tasks.sets, self.train, self.test, found, self.log_report)
        say(self.header + "\n")
        return found

    def unfinished_iterations(self) -> range:
        """The iterations from the last one whose model is there: weights of those before it may be gone."""
        last = self.config.iterations
        there = [iteration for iteration in range(1, last + 1) if self.folder.model_of(iteration).exists()]
        return range(max(there, default=1), last + 1)

    def finish(self, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
        """Write the model's card and the summary, then the mark that the run is finished."""
        summary = distributed.broadcast(self.summary(base, final) if distributed.is_main_process() else {})
        model, environment = self.folder.model_of(self.config.iterations), self.folder.read("environment.json")
        write_card(model, self.config, summary, environment, self.trained_on, self.header)
        self.folder.finish(summary)
        say("\n" + results(summary, self.folder.path))
        return summary

    # ---- an iteration

    def reload(self, folder: Path | None = None) -> None:
        """The policy with the weights of a folder of this run, or (None) with the base's."""
        if folder is not None and not (folder / CHECKSUMS).exists():
            raise TOPRError(f"{folder} is damaged: {CHECKSUMS} is gone; remove it, and the same command makes it again")
        del self.policy  # with its gradients: there may be no memory for two
        self.policy = load_policy(self.config.model, self.config.cluster.device, folder)

    def add_adapter(self, iteration: int) -> None:
        """With LoRA, train an adapter on the base in this iteration, from where the last one left it.

        What was just evaluated is the model with that adapter merged into its weights.
        """
        if (lora := self.config.model.lora) is None:
            return
        if iteration > 1:
            self.reload()
        before = self.folder.model_of(iteration - 1) if iteration > 1 else None
        base = find_folder(self.config.model.path)
        name = str(base.resolve()) if base is not None else self.config.model.path
        self.policy.add_adapter(lora, self.config.seed, name, before)

    def store(self, iteration: int) -> Store:
        """Choose the store for an iteration's weights: all runs share the base's (0), the others are this run's."""
        return self.shared if iteration == 0 else self.own

    def evaluate_iteration(self, iteration: int) -> dict[str, Any]:
        """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
        with self.folder.stage("evaluation"):
            evaluation = self.tasks.evaluate(self.sampler, self.policy, self.test, self.store(iteration))
            self.folder.add_across_ranks("tokens_sampled_to_evaluate", evaluation.rollouts.sampled)
            self.showcase.tested(iteration, self.policy, evaluation)
            if self.config.evaluation.every is not None:  # where the curve of this iteration ends
                part = evaluation.figures(self.config.evaluation.problems)
                self.folder.evaluations.add({"iteration": iteration, "subset": True, **part})
            figures = self.tasks.figures(evaluation, self.folder.path, iteration)
            self.folder.evaluations.add({"iteration": iteration, **figures})
        return figures

    def curve(self, iteration: int, trainer: Trainer) -> EvaluatingJournal:
        """The run's journal, which also evaluates the policy in training every `evaluation.every` updates."""
        questions = first(self.test, self.config.evaluation.problems)

        def evaluate_now(step: int, samples: int) -> None:
            trainer.zero_grad()  # their memory is the sampler's now
            with self.folder.nested_stage("evaluation"), trainer.layout.gathered_weights():
                now = f"{self.folder.path.name}, iteration {iteration}, update {step}"
                policy = dataclasses.replace(self.policy, fingerprint=now)
                evaluation = self.tasks.evaluate(self.sampler, policy, questions, self.own)
                self.release_sampler()
                self.folder.add_across_ranks("tokens_sampled_to_evaluate", evaluation.rollouts.sampled)
                place = {"iteration": iteration, "step": step, "samples_seen": samples, "subset": True}
                self.folder.evaluations.add({**place, **evaluation.figures()})

        curve = EvaluatingJournal(self.folder, self.config.evaluation.every, evaluate_now, self.stop)
        curve.reach(trainer.step, trainer.samples)
        if self.stop.share():  # after one more update this point of the curve would never be measured
            self.stop.check()
        return curve

    def train_iteration(self, iteration: int) -> None:
        if self.folder.model_of(iteration).exists():
            return
        self.add_adapter(iteration)
        train = self.train_in_rounds if in_rounds(self.config) else self.train_offline
        train(iteration).save_policy(self.folder.model_of(iteration))

    def train_offline(self, iteration: int) -> Trainer:
        """Train on completions that the policy drew before its first update, on ones made elsewhere, or on both."""
        store = self.store(iteration - 1)
        with self.folder.stage("sampling"):
            parts = self.completions(store)
            self.release_sampler()
        with self.folder.stage("grading"):
            verdicts = [self.verdicts(part, store) for part in parts]
        with self.folder.stage("composition"):
            pool = merge_sources(parts, verdicts)
            training_set = self.training_set_of(pool, iteration)
            if training_set.description.note:
                warn(training_set.description.note)
        with self.folder.stage("scoring"):
            log_mu = [log_mu for part in parts if (log_mu := self.log_mu(part, store)) is not None]
            mu = concat_rows(log_mu) if log_mu else None
            old = None
            if "old_logp" in self.config.algo.needs:
                old = concat_rows([self.scored(self.policy, part, store, "scoring π_old") for part in parts])
            reference, ref_logp = self.reference(), None
            if reference is not None:
                ref_logp = concat_rows([self.scored(reference, part, store, "scoring ref") for part in parts])
            if "vocab_kl" not in self.config.algo.needs:
                reference = None  # what it was needed for is computed
            self.record(iteration, training_set, parts, verdicts, mu)
        with self.folder.stage("training"):
            trainer = self.trainer(reference, iteration)
            examples = Examples(training_set, pool.rollouts, mu, ref_logp, old)
            every, journal = self.config.checkpoint.every_seconds, self.curve(iteration, trainer)
            # Where all μ is ours the first update can be checked.
            ours = self.config.mu == "scored" and all(part.log_mu is None for part in parts)
            ours &= self.config.mu_model is None
            train_offline(trainer, examples, journal, self.config.seed, iteration, every, mu_is_start=ours)
            trainer.zero_grad()
            with trainer.layout.gathered_weights():
                self.showcase.trained(iteration, self.policy, pool, mu, training_set.examples)
        return trainer

    def completions(self, store: Store) -> list[Completions]:
        """Completions to train on; imported ones replace sampled ones, or follow them where `compose.mix` has both."""
        if self.imported is not None and self.config.compose.mix is None:
            return [self.imported]
        n, seed = self.config.data.n, self.config.sampler.seed
        rollouts = generate_rollouts(self.sampler, self.policy, self.train, n, seed, store)
        self.folder.add_across_ranks("tokens_sampled", rollouts.sampled)
        sampled = Completions(rollouts, self.train)
        return [sampled] if self.imported is None else [sampled, self.imported]

    def verdicts(self, part: Completions, store: Store) -> Verdicts:
        """Verdicts by the grader, or by the rewards that came with the completions."""
        if self.config.reward == "given":
            assert part.rewards is not None, "open_log refuses a log without rewards"
            return given_verdicts(part.rollouts, part.rewards, self.config.data.threshold, store)
        return grade_rollouts(part.rollouts, part.questions.problems, self.config.grading, store)

    def log_mu(self, part: Completions, store: Store) -> Ragged | None:
        """log μ: as it came with the completions, what the sampler drew with, or by a forward pass of training.

        With mu=none there is none, but for pairs, whose reference it is.
        """
        if self.config.mu == "none" and unit_of(self.config.algo.needs) != "pairs":
            return None
        if self.config.mu == "sampler":
            return Ragged(part.rollouts.columns["sampler_logp"])
        if self.config.mu_model is not None and part is self.imported:
            named = dataclasses.replace(self.config.model, path=self.config.mu_model, revision=None, lora=None)
            return self.scored(load_policy(named, self.config.cluster.device), part, store, "scoring μ")
        given = part.log_mu if self.config.mu == "scored" else None
        return given if given is not None else self.scored(self.policy, part, store, "scoring μ")

    def record(
        self,
        iteration: int,
        training_set: TrainingSet,
        parts: Sequence[Completions],
        verdicts: Sequence[Verdicts],
        mu: Sequence[NDArray[np.float32]] | None,
    ) -> None:
        """Write down what an iteration trains on, and how far μ is from what the sampler drew with."""
        store, rollouts = str(self.store(iteration - 1).root), parts[0].rollouts
        sources = {"store": store, "rollouts": rollouts.name, "verdicts": verdicts[0].name}
        if len(parts) > 1:  # whose rows follow those of the sampled ones
            sources |= {"imported_rollouts": parts[1].rollouts.name, "imported_verdicts": verdicts[1].name}
        cut_off = sum(part.cut_off for part in verdicts)
        summary = {**training_set.summary(), "sampler": rollouts.made_by, "cut_off": cut_off}
        if mu is not None and self.config.mu == "scored" and self.config.data.completions is None:
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
                config.mu == "sampler",
            )
            rounds.run(self.curve(iteration, trainer), config.checkpoint.every_seconds)
            self.folder.add_across_ranks("tokens_sampled", rounds.sampled)
        self.folder.save_rounds(iteration, trainer.samples, config.baseline or 0.0)
        return trainer

    def release_sampler(self) -> None:
        """Have the sampler give its memory back; on-policy it stays up (but see `sampler.sleep`)."""
        (self.sampler.rest if in_rounds(self.config) else self.sampler.close)()

    def training_set_of(self, pool: CompletionPool, iteration: int) -> TrainingSet:
        """Compose a training set; the first one of a run says of which sign R is."""
        found = build_training_set(
            build_candidates(pool, self.config.compose),
            INCORRECT_REWARD[self.config.reward],
            self.config.compose,
            unit_of(self.config.algo.needs),
            seed=self.config.seed,
            iteration=iteration,
            baseline=self.config.baseline,
            effective=self.config.effective_positive,
            in_rounds=in_rounds(self.config),
        )
        if found.unit == "examples" and "group_rewards" not in self.config.algo.needs and not self.told_signs:
            shares, self.told_signs = found.signs(), True
            say(signs(shares))
            if getattr(self.config.algo, "by_sign", False) and (text := never_rarer(shares, self.config.algo.name)):
                warn(text)
        return found

    def scored(self, policy: Policy, part: Completions, store: Store, label: str) -> Ragged:
        """log-probabilities of all completions under a policy, from the store as far as they are there."""
        logp, scored = score_rollouts(policy, part.rollouts, store, self.config.optim.score_batch_size, label)
        self.folder.add_across_ranks("tokens_scored", scored)
        return logp

    def reference(self) -> Policy | None:
        """π_ref, where the loss has one."""
        if not {"ref_logp", "vocab_kl"} & self.config.algo.needs:
            return None
        if self.policy.base is not None and self.config.model.reference is None:
            return self.policy.without_adapter()
        return load_policy(self.config.reference, self.config.cluster.device)

    def trainer(self, reference: Policy | None, iteration: int) -> Trainer:
        """A trainer that goes on from the iteration's newest checkpoint, its metrics cut back to that."""
        self.policy.begin_training(f"{self.folder.path.name}, iteration {iteration}, in training")
        whole = reference if "vocab_kl" in self.config.algo.needs else None
        folder = self.folder.path / "checkpoints" / str(iteration)
        parallel = self.config.cluster.parallel
        with self.stop.immediate():
            layout = parallelize(self.policy, parallel)
            trainer = Trainer(self.policy, self.config.algo, whole, self.config.optim, folder, layout, self.stop)
        self.folder.metrics.rewind(iteration, trainer.step)
        return trainer

    def summary(self, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
        """The run in numbers; shares lie between 0 and 1, seconds are this run's own work."""
        config, name = self.config, f"iteration-{self.config.iterations}/training_set.json"
        last = self.folder.read(name, *OF_TRAINING_SET)
        if not last:
            raise TOPRError(f"{self.folder.path / name} is missing or damaged; remove model/ to train it again")
        return {
            "base": base,
            "final": final,
            "algo": config.algo.name,
            "data": config.data.name,
            "source": config.data.place,
            "model": config.model.name,
            "task": config.task.name,
            "seed": config.seed,
            "sampler_seed": config.sampler.seed,
            **{key: last[key] for key in (*OF_TRAINING_SET, "mean_reward") if key in last},
            "problems": {"train": self.trained_on.count, "test": len(self.test.problems)},
            "trained_on": self.trained_on.text,
            "too_long": {"train": self.train.too_long, "test": self.test.too_long},
            "cut_off": last.get("cut_off", 0),
            "note": "; ".join(filter(None, [last.get("note"), *self.folder.lost()])) or None,
            "sampler_mismatch": last.get("sampler_mismatch"),
            "seconds": {name: round(value, 3) for name, value in self.folder.seconds.items()},
            "tokens": self.folder.counts,
        }
