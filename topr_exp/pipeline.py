"""READ THIS FIRST: one experiment, from problems to a summary, one call a line.

    problems -> sample -> grade -> compose -> score μ -> train -> evaluate      (`iterations` times from sample on)

What is sampled, graded or scored with the starting model lies in the store that all runs share; what depends on
weights that only this run has lies in its folder. A run that was killed goes on where it stopped when the same
command is given again. Where a run has several processes, all of them do what stands here: they sample, grade and
score different shards of the store's tables, train on different parts of each batch, and process 0 writes the folder.
"""

import dataclasses
from functools import partial
from typing import Any

import torch

from topr_exp.composition.merging import merge_sources
from topr_exp.composition.training_set import TrainingSet, build_training_set
from topr_exp.config.groups import unit_of
from topr_exp.config.settings import Config
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.evaluation.journal import EvaluatingJournal
from topr_exp.evaluation.showcase import show_completions
from topr_exp.evaluation.summary import summarise_evaluation
from topr_exp.grading.verdicts import grade_by_log, grade_completions, open_grader
from topr_exp.imported.log_report import describe_logprob_gap, load_log
from topr_exp.models.policy import Policy
from topr_exp.runs.console import header, results
from topr_exp.runs.finished import NOT_SAVED, keeps_no_model
from topr_exp.runs.first_prompt import write_prompt
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.forecast import Forecast, Sizes, planned_steps
from topr_exp.runs.inputs import compare_inputs, inputs_of, keep_threads, note_model_of_the_hub, refuse_damaged_model
from topr_exp.runs.model_card import write_card
from topr_exp.runs.reward_signs import report_reward_signs
from topr_exp.runs.task_set import Policies, TaskSet, TrainedOn, trained_on
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import say, warn
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.cut_off import warn_of_sampled, warn_of_tested
from topr_exp.sampling.generation import open_sampler, sample_completions
from topr_exp.sampling.mismatch import describe_mismatch, measure_mismatch
from topr_exp.sampling.sampler import Sampler, seed_of
from topr_exp.store import Ragged, Store
from topr_exp.tracking.tracker import Tracker
from topr_exp.training.asynchronous import AsyncRounds
from topr_exp.training.parallel import parallelize
from topr_exp.training.rounds import Rounds
from topr_exp.training.trainer import Trainer, train_offline


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
            if keeps_no_model(folder.path):
                folder.remove_unwanted_models()
            else:
                refuse_damaged_model(folder.path / "model")
            folder.remove_leftovers(config.iterations)
            summary = folder.finished()
            say(f"finished before, nothing to do: {folder.path}\n\n{results(summary, folder.path)}")
            if keeps_no_model(folder.path) and config.checkpoint.save_model:
                warn(f"{folder.path}: {NOT_SAVED}; overwrite=true trains it again")
            return summary
        keep_threads(folder, config)
        scratch, trust = folder.path / "sampler", config.model.trust_remote_code
        options = {"beside_training": config.schedule.in_rounds, "keeps_drawable": "kept" in config.algo.needs}
        with open_sampler(config.sampler, scratch, trust, **options) as sampler:
            sampler.time_stages_with(folder.nested_stage)
            return Experiment(config, folder, sampler, stop).run()


class Experiment:
    """The stages of a run, each left out where an earlier attempt finished it."""

    def __init__(self, config: Config, folder: RunFolder, sampler: Sampler, stop: StopFlag) -> None:
        self.config, self.folder, self.sampler, self.stop = config, folder, sampler, stop
        self.shared, self.own = Store(config.store, stop), Store(folder.path / "store", stop)
        self.told_signs = self.warned_of_cut_off = False
        self.log_report: dict[str, str] = {}  # rows of the header on imported completions

    def run(self) -> dict[str, Any]:
        """All of it; returns the summary."""
        self.sampler.warm_up()  # while the problems are read and the policy loads
        self.load_problems()
        self.load_policy()
        self.imported = self.load_imported()
        self.trained_on = self.describe_training_problems()
        base = final = self.evaluate_iteration(0)
        for iteration in self.folder.unfinished_iterations():
            self.train_iteration(iteration)
            self.folder.remove_leftovers(iteration)
            self.policies.reload(self.folder.model_of(iteration))
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
                self.sampler.warm_up()

    def load_policy(self) -> None:
        """Load the base model, and tokenize the prompts, one of which is written down for people to read."""
        with self.folder.stage("problems"):
            self.policies = Policies(self.config, self.folder)
            policy, sets = self.policies.trained, self.tasks.sets
            note_model_of_the_hub(self.folder, self.config, policy.fingerprint)
            self.train, self.test = (self.tasks.tokenize(part, policy) for part in (sets.train, sets.test))
            write_prompt(self.folder.path, self.train, policy.tokenizer)

    def load_imported(self) -> Completions | None:
        """Load completions made elsewhere; now, so that what can't be trained on is refused before sampling."""
        if self.config.data.completions is None:
            return None
        with self.folder.stage("sampling"):
            asked = self.tasks.sets.train, self.tasks.prompter
            found, self.log_report = load_log(self.config, *asked, self.policies.trained, self.shared)
        if self.config.compose.mix is None:  # nothing is sampled, for which a prompt may be too long
            self.train = dataclasses.replace(self.train, too_long=0)
        return found

    def describe_training_problems(self) -> TrainedOn:
        """Count the problems to train on, and print the header."""
        found = trained_on(self.config, self.tasks.sets.train, self.train.problems, self.imported)
        self.header = header(
            self.config, self.policies.trained, self.tasks.sets, self.train, self.test, found, self.log_report
        )
        say(self.header + "\n")
        self.folder.forecast = self.forecast()
        return found

    def forecast(self) -> Forecast:
        """Foresee the work of this attempt, for the time left."""
        config, imported = self.config, self.imported
        problems = config.schedule.prompts or len(self.train.problems)
        samples = imported is None or config.compose.mix is not None
        sizes = Sizes(
            sampled=problems * config.data.n if samples else 0,
            imported=len(imported) if imported is not None else 0,
            examples=config.compose.n_examples,
            completions_per_example=2 if unit_of(config.algo.needs) == "pairs" else 1,
            scored=config.mu == "scored",
            test=len(self.test.problems),
            tested=config.data.eval_n,
        )
        iterations = len(self.folder.unfinished_iterations())
        return Forecast(planned_steps(sizes, config.schedule, config.optim, config.evaluation, iterations))

    def finish(self, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
        """Write the model's card and the summary, then the mark that the run is finished."""
        problems = {
            "problems": {"train": self.trained_on.count, "test": len(self.test.problems)},
            "trained_on": self.trained_on.text,
            "too_long": {"train": self.train.too_long, "test": self.test.too_long},
        }
        summary = self.folder.summarize(base, final, problems)
        if self.config.checkpoint.save_model:
            model, environment = self.folder.model_of(self.config.iterations), self.folder.read("environment.json")
            write_card(model, self.config, summary, environment, self.trained_on, self.header)
        self.folder.finish(summary)
        say("\n" + results(summary, self.folder.path))
        return summary

    # ---- an iteration

    def check_sources(self) -> None:
        """Raise TOPRError where a shard that the run reads is not what it was: nothing made of it is saved."""
        self.shared.check_unchanged()
        self.own.check_unchanged()

    def store(self, iteration: int) -> Store:
        """Choose the store for an iteration's weights: all runs share the base's (0), the others are this run's."""
        return self.shared if iteration == 0 else self.own

    def evaluate_iteration(self, iteration: int) -> dict[str, Any]:
        """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
        with self.folder.stage("evaluation"):
            store = self.store(iteration)
            answers = self.evaluate(self.policies.trained, self.test, store)
            show_completions(self.folder.path, "test", iteration, answers)
            warn_of_tested(answers.is_truncated, self.config.sampler.max_new_tokens)
            if self.config.evaluation.every is not None:  # where the curve of this iteration ends
                subset = summarise_evaluation(answers, self.config.evaluation.problems)
                self.check_sources()
                self.folder.evaluations.add({"iteration": iteration, "subset": True, **subset})
            figures = self.tasks.figures(answers, store, self.folder.path, iteration)
            self.check_sources()
            self.folder.evaluations.add({"iteration": iteration, **figures})
        return figures

    def evaluate(self, policy: Policy, questions: TokenizedProblems, store: Store) -> Completions:
        """Sample and grade answers to test problems."""
        answers = self.tasks.evaluate(self.sampler, policy, questions, store)
        assert answers.stored is not None
        self.folder.add_across_ranks("tokens_sampled_to_evaluate", answers.stored.tokens_sampled)
        return answers

    def evaluate_update(self, iteration: int, trainer: Trainer, step: int, samples: int) -> None:
        """Evaluate the policy in training on some test problems: a point of the run's curve."""
        trainer.zero_grad()  # their memory is the sampler's now
        count, whole = self.config.evaluation.problems, self.test
        questions = dataclasses.replace(whole, problems=whole.problems[:count], prompts=whole.prompts[:count])
        with self.folder.nested_stage("evaluation"), trainer.layout.gathered_weights():
            now = f"{self.folder.path.name}, iteration {iteration}, update {step}"
            answers = self.evaluate(dataclasses.replace(trainer.policy, fingerprint=now), questions, self.own)
            self.release_sampler()
            point = {"iteration": iteration, "step": step, "samples_seen": samples, "subset": True}
            figures = summarise_evaluation(answers)
            self.check_sources()
            self.folder.evaluations.add({**point, **figures})

    def journal(self, iteration: int, trainer: Trainer) -> EvaluatingJournal:
        """The run's journal, which also evaluates the policy in training every `evaluation.every` updates."""
        evaluate = partial(self.evaluate_update, iteration, trainer)
        check = self.check_sources
        journal = EvaluatingJournal(self.folder, self.config.evaluation.every, evaluate, self.stop, check)
        journal.resume(trainer.step, trainer.samples)
        return journal

    def train_iteration(self, iteration: int) -> None:
        if self.folder.model_of(iteration).exists():
            return
        self.policies.add_adapter(iteration)
        train = self.train_in_rounds if self.config.schedule.in_rounds else self.train_offline
        trainer = train(iteration)
        self.check_sources()
        trainer.save_policy(self.folder.model_of(iteration))

    def train_offline(self, iteration: int) -> Trainer:
        """Train on completions that the policy drew before its first update, on ones made elsewhere, or on both."""
        store = self.store(iteration - 1)
        with self.folder.stage("sampling"):
            sources = self.sample_sources(store, iteration)
            self.release_sampler()
        with self.folder.stage("grading"):
            sources = [self.grade(source, store) for source in sources]
        with self.folder.stage("scoring"):
            mu_is_start = self.policies.mu_is_start(sources)
            scored, reference = self.policies.score(sources, store)
            gap = self.measure_mismatch(scored[0], store)
            if gap is not None:
                say(describe_mismatch(gap))
            if self.config.mu == "sampler" and self.samples:  # of a log the header says it
                gap_text = describe_logprob_gap(scored[0], self.policies.trained, self.config.optim.score_batch_size)
                say(f"{'log μ':<11} {gap_text}")
        with self.folder.stage("composition"):
            training_set = self.training_set_of(merge_sources(scored), iteration)
            if note := training_set.description["note"]:
                warn(note)
            self.folder.save_training_set(iteration, training_set, scored, store.root, gap)
        with self.folder.stage("training"):
            trainer = self.trainer(reference, iteration)
            journal, every = self.journal(iteration, trainer), self.config.checkpoint.every_seconds
            train_offline(trainer, training_set, journal, self.config.seed, iteration, every, mu_is_start)
            completions = training_set.completions
            show_completions(self.folder.path, "train", iteration, completions, training_set.examples)
        return trainer

    @property
    def samples(self) -> bool:
        """True unless all completions that are trained on are imported."""
        return self.imported is None or self.config.compose.mix is not None

    def sample_sources(self, store: Store, iteration: int) -> list[Completions]:
        """Completions to train on; imported ones replace sampled ones, or follow them where `compose.mix` has both."""
        sources = []
        if self.samples:
            seed = self.config.sampler.seed
            if iteration > 1:  # the policy was trained on completions of the earlier seeds
                seed = seed_of(seed, iteration)
            policy, n = self.policies.trained, self.config.data.n
            sampled = sample_completions(self.sampler, policy, self.train, n, seed=seed, store=store)
            assert sampled.stored is not None
            self.folder.add_across_ranks("tokens_sampled", sampled.stored.tokens_sampled)
            sources.append(sampled)
        if self.imported is not None:
            sources.append(self.imported)
        return sources

    def measure_mismatch(self, completions: Completions, store: Store) -> dict[str, Any] | None:
        """Compare the sampler's and training's log-probabilities, where these are known or the sampler was changed."""
        is_changed = not self.config.sampler.unchanged and self.samples
        if self.config.mu == "scored" and self.imported is None:
            scored = completions.table["mu_logp"]
        elif is_changed:
            scored = self.policies.scored(self.policies.trained, completions, store, "scoring π_old")
        else:
            return None
        sampler_config = self.config.sampler if is_changed else None
        return measure_mismatch(Ragged(scored), completions.lists("sampler_logp"), sampler_config)

    def grade(self, completions: Completions, store: Store) -> Completions:
        """Grade by the grader, or by the rewards that came with the completions."""
        if self.config.reward == "given":
            return grade_by_log(completions, self.config.data.threshold, store)
        return grade_completions(completions, self.config.grading, store)

    def train_in_rounds(self, iteration: int) -> Trainer:
        """Train the policy in place on completions that it samples anew every few updates."""
        config = self.config
        self.sampler.close()  # the next engine takes what is free beside a reference and what training keeps
        with self.folder.stage("training"), open_grader(config.grading) as grader:
            reference = self.policies.reference()
            trainer = self.trainer(reference, iteration)
            compose = partial(self.training_set_of, iteration=iteration)
            settings = config.schedule, config.compose, config.data.n, config.seed, iteration, self.folder.nested_stage
            kind = AsyncRounds if config.schedule.asynchronous else Rounds
            parts = trainer, self.train, self.sampler, grader, reference, compose
            rounds = kind(*parts, *settings, from_sampler=config.mu == "sampler")
            rounds.run(self.journal(iteration, trainer), config.checkpoint.every_seconds)
        self.folder.save_rounds(iteration, trainer.samples, trainer.sampled, config.baseline or 0.0)
        return trainer

    def release_sampler(self) -> None:
        """Have the sampler give its memory back; on-policy it stays up (but see `sampler.sleep`)."""
        (self.sampler.sleep if self.config.schedule.in_rounds else self.sampler.release)()

    def training_set_of(self, completions: Completions, iteration: int, round_number: int | None = None) -> TrainingSet:
        """Compose a training set, or that of a round; the sign of R and p̃ are said of sets and of the first round."""
        config = self.config
        training_set = build_training_set(
            completions,
            config.reward,
            config.compose,
            unit_of(config.algo.needs),
            seed=config.seed,
            iteration=iteration,
            baseline=config.baseline,
            effective=config.effective_positive,
            round_number=round_number,
        )
        if round_number is None or not self.told_signs:
            solves_for_c = config.reward == "pm1" and not config.schedule.in_rounds  # else only c can be set
            report_reward_signs(training_set, config.algo, "effective_positive" if solves_for_c else "baseline")
        self.told_signs = True
        if not self.warned_of_cut_off and self.samples:
            is_truncated = completions.is_truncated
            if completions.is_imported is not None:  # of which `load_log` warned
                is_truncated = is_truncated[~completions.is_imported]
            dropped = None if config.schedule.in_rounds else config.compose.drop_truncated
            self.warned_of_cut_off = warn_of_sampled(is_truncated, config.sampler.max_new_tokens, dropped=dropped)
        return training_set

    def trainer(self, reference: Policy | None, iteration: int) -> Trainer:
        """A trainer that goes on from the iteration's newest checkpoint, its metrics cut back to that."""
        config, policy = self.config, self.policies.trained
        # From here on the weights change: no folder holds them, and what they compute has a name of its own.
        policy.rename_weights(f"{self.folder.path.name}, iteration {iteration}, in training")
        whole = reference if "vocab_kl" in config.algo.needs else None
        folder, parallel = self.folder.path / "checkpoints" / str(iteration), config.cluster.parallel
        with self.stop.immediate():
            layout = parallelize(policy, parallel)
            trainer = Trainer(policy, config.algo, whole, config.optim, folder, layout, self.stop)
        self.folder.metrics.rewind(iteration, trainer.step)
        return trainer
