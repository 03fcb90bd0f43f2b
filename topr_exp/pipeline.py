"""READ THIS FIRST: one experiment, from problems to a summary.

    problems -> (sample -> grade -> score -> compose -> train -> evaluate) once an iteration -> summary

Completions of the starting model lie in the store that all runs share; completions of weights that only this run has
lie in its folder. A killed run resumes with the same command: each stage reads what an earlier attempt finished. With
several processes all of them run this code: they make different shards of the store's tables, train on different
examples of each batch, and process 0 writes the folder.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from topr_exp.composition.merging import merge_sources
from topr_exp.composition.selection import NothingKeptError, select
from topr_exp.composition.training_set import TrainingSet, build_training_set
from topr_exp.config.groups import ScheduleConfig, unit_of
from topr_exp.config.settings import Config
from topr_exp.data.prompts import TokenizedProblems, warn_of_hidden_stops, warn_of_open_answers
from topr_exp.evaluation.journal import EvaluatingJournal
from topr_exp.evaluation.showcase import show_completions
from topr_exp.evaluation.summary import summarise_evaluation
from topr_exp.grading.verdicts import grade_by_log, grade_completions, grader_timeouts
from topr_exp.imported.log_report import describe_logprob_gap, load_log
from topr_exp.models.policy import Policy
from topr_exp.runs.console import evaluation_command, format_header, format_results
from topr_exp.runs.first_prompt import write_prompt
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.forecast import Forecast
from topr_exp.runs.inputs import note_model_of_the_hub
from topr_exp.runs.model_card import write_card
from topr_exp.runs.policies import Policies
from topr_exp.runs.run_summary import summarize_run
from topr_exp.runs.tasks import ProblemCounts, Task, VerificationTask, count_training_problems, load_task
from topr_exp.runs.training_data import (
    SOURCES,
    save_empty_set,
    save_rounds,
    save_training_set,
    warn_of_other_sources,
)
from topr_exp.runs.training_report import TrainingReport
from topr_exp.runs.workload import check_supply, plan_work
from topr_exp.runtime import distributed
from topr_exp.runtime.checksums import find_damage
from topr_exp.runtime.terminal import plural, say, warn, warn_once
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.cut_off import warn_of_tested
from topr_exp.sampling.generation import sample_completions
from topr_exp.sampling.mismatch import describe_mismatch, measure_mismatch
from topr_exp.sampling.sampler import seed_of
from topr_exp.schema import plain
from topr_exp.session import Session, open_run_folder, open_session, report_finished
from topr_exp.store import Ragged, Store
from topr_exp.training.clocked import ClockedRounds
from topr_exp.training.collection import Collector
from topr_exp.training.lagged import LaggedRounds
from topr_exp.training.loop import BatchSource, FixedSet, NoUpdates, train
from topr_exp.training.parallel import check_layers, parallelize
from topr_exp.training.rounds import Rounds
from topr_exp.training.trainer import Trainer


def run(config: Config) -> dict[str, Any]:
    """One run; returns its summary. Raises TOPRError for what the user can mend."""
    with open_run_folder(config) as folder:
        if folder.done:
            return report_finished(config, folder)
        with open_session(config, folder) as session:
            return run_stages(session)


def run_stages(session: Session) -> dict[str, Any]:
    """The stages in their order; what an earlier attempt finished is left out."""
    folder = session.folder
    task = prepare_task(session)
    policies = load_policies(session)
    experiment = load_experiment(session, task, policies)

    base_figures = evaluate(experiment, iteration=0)
    final_figures = base_figures
    for iteration in folder.unfinished_iterations():
        if not folder.model_of(iteration).exists():  # else an earlier attempt trained it
            train_iteration(experiment, iteration)
        folder.remove_leftovers(iteration)
        policies.reload(folder.model_of(iteration))
        final_figures = evaluate(experiment, iteration=iteration)
    return summarize(experiment, base_figures, final_figures)


def train_iteration(experiment: "Experiment", iteration: int) -> None:
    """Train the policy and save it.

    The trainer and π_ref are freed on return, before the saved policy is loaded: there may be no memory for two.
    """
    config = experiment.config
    session = experiment.session
    experiment.policies.add_adapter(iteration)
    open_training = open_rounds if config.schedule.in_rounds else open_fixed_set
    with open_training(experiment, iteration) as (trainer, batches):
        journal = open_journal(experiment, trainer, batches.update_count, iteration)
        keep_update = partial(keep_weights, experiment, trainer, iteration)
        train(trainer, batches, journal, config.checkpoint, keep_update, iteration=iteration)
    del batches  # with π_ref: to gather the weights may take its memory
    session.check_unchanged()
    session.folder.remove_weights_of_end(iteration, trainer.step)
    trainer.save_policy(session.folder.model_of(iteration))


@dataclass(frozen=True)
class Experiment:
    """A run under way: what its stages share."""

    session: Session
    task: Task
    policies: Policies
    train: TokenizedProblems
    test: TokenizedProblems
    imported: Completions | None
    problem_counts: ProblemCounts  # of training
    header: str  # for the user: the settings that decide the result
    report: TrainingReport

    @property
    def config(self) -> Config:
        return self.session.config

    @property
    def folder(self) -> RunFolder:
        return self.session.folder


@dataclass(frozen=True)
class ScoredSources:
    """Sampled and imported completions with the log-probabilities that the loss compares."""

    completions: list[Completions]
    reference: Policy | None  # π_ref, where the loss needs its whole distribution
    mismatch: dict[str, Any] | None  # of the sampler's and training's log-probabilities; on the main process
    mu_is_start: bool  # all log μ is by the weights at the start, so that Δ must vanish there


# ---- before the first iteration


def prepare_task(session: Session) -> Task:
    """Load the problems; a verifier's are solutions, which its solver samples here."""
    session.sampler.warm_up()  # while the problems are read and the policy loads
    with session.folder.stage("problems"):
        task = load_task(session.config)
    if isinstance(task, VerificationTask):
        with session.folder.stage("sampling"):
            tokens = task.sample_solutions(session.sampler, session.shared_store)
            session.folder.add_across_ranks("tokens_of_solver", tokens)
            session.sampler.close()  # an engine would hold memory that the policy needs
            session.sampler.warm_up()
    return task


def load_policies(session: Session) -> Policies:
    """Load the base model; TOPRError for one that can't be trained as the settings ask."""
    config = session.config
    with session.folder.stage("problems"):
        policies = Policies(config, session.folder)
        check_layers(policies.current.model, config.optim, config.cluster.parallel)
        note_model_of_the_hub(session.folder, config, policies.current.fingerprint)
    return policies


def load_experiment(session: Session, task: Task, policies: Policies) -> Experiment:
    """Tokenize prompts, load imported completions before anything is sampled, and print the header."""
    config = session.config
    folder = session.folder
    policy = policies.current
    with folder.stage("problems"):
        train = task.tokenize(task.sets.train, policy)
        test = task.tokenize(task.sets.test, policy)
        warn_of_open_answers(task.prompter, policy)
        warn_of_hidden_stops(task.prompter, policy)
        questions = train if config.needs_sampling else test
        write_prompt(folder.path, config, questions=questions, tokenizer=policy.tokenizer)
    imported = None
    imported_count = None
    log_report = dict[str, str]()
    if config.data.completions is not None:
        with folder.stage("sampling"):
            imported, log_report = load_log(config, task.sets, policy, session.shared_store)
            imported_count = len(imported)
    check_supply(config, questions=len(train.problems), imported=imported_count)
    if not config.needs_sampling:  # prompts that are too long to sample for are not left out
        train = replace(train, too_long=0)
    problem_counts = count_training_problems(config, task.sets.train, train.problems, imported)
    header = format_header(config, policy, task.sets, train, test, problem_counts.text, log_report)
    say(header + "\n")
    experiment = Experiment(
        session,
        task,
        policies,
        train=train,
        test=test,
        imported=imported,
        problem_counts=problem_counts,
        header=header,
        report=make_report(config),
    )
    folder.start_forecast(plan_forecast(experiment))
    return experiment


def plan_forecast(experiment: Experiment) -> Forecast:
    """Plan the work of this attempt, for the time left."""
    imported = experiment.imported
    work = plan_work(
        experiment.config,
        iterations=len(experiment.folder.unfinished_iterations()),
        train_questions=len(experiment.train.problems),
        test_questions=len(experiment.test.problems),
        imported=len(imported) if imported is not None else 0,
    )
    return Forecast(work)


def make_report(config: Config) -> TrainingReport:
    in_rounds = config.schedule.in_rounds
    can_solve_for_baseline = config.reward == "pm1" and not in_rounds
    return TrainingReport(
        algo=config.algo,
        in_rounds=in_rounds,
        weight_key="effective_positive" if can_solve_for_baseline else "baseline",
        token_limit=config.sampler.max_new_tokens if config.needs_sampling else None,
        drops_truncated=config.compose.drop_truncated,
    )


# ---- training offline: all completions are sampled, graded, scored and composed before


@contextlib.contextmanager
def open_fixed_set(experiment: Experiment, iteration: int) -> Iterator[tuple[Trainer, BatchSource]]:
    """Open training on one set, whose completions lie in the store."""
    optim = experiment.config.optim
    folder = experiment.folder
    store = experiment.session.store_of(iteration - 1)
    sources = sample(experiment, store, iteration)
    sources = grade(experiment, sources, store)
    scored = score(experiment, sources, store)
    earlier_sources = folder.read(f"iteration-{iteration}/{SOURCES}")
    training_set = compose_sources(experiment, scored, store, iteration)
    if training_set is None:
        with folder.stage("training"):
            yield open_trainer(experiment, scored.reference, iteration), NoUpdates()
        return
    fixed_set = FixedSet(
        training_set, optim, seed=experiment.config.seed, iteration=iteration, mu_is_start=scored.mu_is_start
    )
    with folder.stage("training"):
        trainer = open_trainer(experiment, scored.reference, iteration)
        warn_of_other_sources(folder.iteration_folder(iteration), earlier_sources, updates=trainer.step)
        yield trainer, fixed_set
        show_completions(folder.path, "train", iteration, training_set.completions, training_set.examples)


def sample(experiment: Experiment, store: Store, iteration: int) -> list[Completions]:
    """Sample completions to train on; imported ones replace them, or with `compose.mix` follow them."""
    config = experiment.config
    session = experiment.session
    sources = list[Completions]()
    with session.folder.stage("sampling"):
        if config.needs_sampling:
            seed = config.sampler.seed
            if iteration > 1:  # the policy was trained on completions of the earlier seeds
                seed = seed_of(seed, iteration)
            n = config.data.n
            policy = experiment.policies.current
            sampled = sample_completions(session.sampler, policy, experiment.train, n, seed=seed, store=store)
            session.folder.add_across_ranks("tokens_sampled", sampled.tokens_sampled)
            sources.append(sampled)
        if experiment.imported is not None:
            sources.append(experiment.imported)
        session.free_sampler()
    return sources


def grade(experiment: Experiment, sources: list[Completions], store: Store) -> list[Completions]:
    """Grade by the grader, or by the rewards that came with the completions."""
    config = experiment.config
    graded = []
    with experiment.folder.stage("grading"):
        for completions in sources:
            if config.reward == "given":
                graded.append(grade_by_log(completions, config.data.threshold, store))
            else:
                graded.append(grade_completions(completions, experiment.session.grader, store))
    return graded


def score(experiment: Experiment, sources: list[Completions], store: Store) -> ScoredSources:
    """Add log μ, log π_old and log π_ref, and compare the sampler's log-probabilities with training's."""
    config = experiment.config
    policies = experiment.policies
    with experiment.folder.stage("scoring"):
        mu_is_start = policies.mu_is_start(sources)
        scored, reference = policies.score(sources, store)
        mismatch = None
        if config.needs_sampling:
            sampled = scored[0]
            mismatch = report_mismatch(experiment, sampled, store)
            if config.mu == "sampler":  # the header has the gap of imported completions
                gap = describe_logprob_gap(sampled, policies.current, config.optim.score_batch_size)
                say(f"{'log μ':<11} {gap}")
    return ScoredSources(scored, reference, mismatch, mu_is_start)


def report_mismatch(experiment: Experiment, sampled: Completions, store: Store) -> dict[str, Any] | None:
    """Measure and print how far the sampler's log-probabilities are from training's, on the main process.

    None on other processes, and where neither training scored log μ nor the settings ask for a mismatch.
    """
    config = experiment.config
    policies = experiment.policies
    is_mu_by_training = config.mu == "scored" and experiment.imported is None
    if is_mu_by_training:
        logp = sampled.table["mu_logp"]
    elif config.sampler.has_mismatch:
        logp = policies.logp_under(policies.current, sampled, store, "scoring π_old")
    else:
        return None
    if not distributed.is_main_process():  # which alone prints and saves it: it takes 16 bytes a token
        return None
    mismatched_sampler = config.sampler if config.sampler.has_mismatch else None
    mismatch = measure_mismatch(Ragged(logp), sampled.lists("sampler_logp"), mismatched_sampler)
    say(describe_mismatch(mismatch))
    return mismatch


def compose_training_set(
    experiment: Experiment, iteration: int, completions: Completions, round_number: int | None = None
) -> TrainingSet:
    """Compose the training set of an iteration or round."""
    config = experiment.config
    unit = unit_of(config.algo.needs)
    selection = select(
        completions, config.compose, unit, seed=config.seed, iteration=iteration, round_number=round_number
    )
    training_set = build_training_set(
        completions,
        selection,
        config.reward,
        baseline=config.baseline,
        effective=config.effective_positive,
        in_rounds=round_number is not None,
    )
    experiment.report.describe(training_set)
    return training_set


def compose_sources(experiment: Experiment, scored: ScoredSources, store: Store, iteration: int) -> TrainingSet | None:
    """Compose the training set of all sources, and save which completions it has.

    None, with a warning, where a later iteration's completions leave nothing: the policy has learnt it, or lost it.
    """
    folder = experiment.folder
    with folder.stage("composition"):
        try:
            training_set = compose_training_set(experiment, iteration, merge_sources(scored.completions))
        except NothingKeptError as error:
            if iteration == 1:
                raise
            warn(f"iteration {iteration} makes no update: {error}")
            timeouts = sum(map(grader_timeouts, scored.completions))
            save_empty_set(folder.iteration_folder(iteration), f"no update: {error}", grader_timeouts=timeouts)
            return None
        save_training_set(
            folder.iteration_folder(iteration),
            training_set,
            scored.completions,
            store=store.root,
            mismatch=scored.mismatch,
        )
    return training_set


# ---- training in rounds: the policy in training samples between updates


@contextlib.contextmanager
def open_rounds(experiment: Experiment, iteration: int) -> Iterator[tuple[Trainer, BatchSource]]:
    """Open training on completions that the policy samples every few updates, or that wait for a later update."""
    config = experiment.config
    session = experiment.session
    folder = session.folder
    session.sampler.close()  # the next engine has to fit into the memory that a reference and training leave free
    with folder.stage("training"):
        reference = experiment.policies.reference()
        kl_reference = reference if "vocab_kl" in config.algo.needs else None  # other losses need log π_ref alone
        trainer = open_trainer(experiment, kl_reference, iteration)
        collector = Collector(
            trainer,
            experiment.train,
            session.sampler,
            session.grader,
            reference,
            n=config.data.n,
            iteration=iteration,
            stage_timer=folder.timer.nested,
        )
        rounds_class = kind_of_rounds(config.schedule)
        rounds = rounds_class(
            collector,
            partial(compose_training_set, experiment, iteration),
            config.schedule,
            config.compose,
            seed=config.seed,
            mu_is_samplers=config.mu == "sampler",
        )
        yield trainer, rounds
    if trainer.step == 0:
        assert rounds.early_end is not None
        save_empty_set(folder.iteration_folder(iteration), rounds.early_end, tokens_sampled=trainer.sampled_tokens)
        return
    save_rounds(
        folder.iteration_folder(iteration),
        folder.metrics.of_iteration(iteration),
        n_train=trainer.samples,
        tokens_sampled=trainer.sampled_tokens,
        baseline=config.baseline or 0.0,
        mismatch=plain(config.sampler.mismatch),
        note=rounds.early_end,
    )


def kind_of_rounds(schedule: ScheduleConfig) -> type[Rounds]:
    if schedule.concurrency is not None:
        return ClockedRounds
    if schedule.lag is not None:
        return LaggedRounds
    return Rounds


# ---- training and evaluation, offline and in rounds


def open_trainer(experiment: Experiment, reference: Policy | None, iteration: int) -> Trainer:
    """Make a trainer that resumes from the iteration's newest checkpoint, its metrics cut back to that."""
    config = experiment.config
    folder = experiment.folder
    stop = folder.stop_flag
    policy = experiment.policies.current
    policy.rename_weights(f"{folder.path.name}, iteration {iteration}, in training")
    checkpoints = folder.path / "checkpoints" / str(iteration)
    with stop.immediate():  # in training a stop signal waits for the loop, which has not begun
        layout = parallelize(policy, config.cluster.parallel)
        trainer = Trainer(policy, config.algo, reference, config.optim, checkpoints, layout, stop)
    folder.metrics.rewind(iteration, trainer.step)
    return trainer


def open_journal(experiment: Experiment, trainer: Trainer, update_count: int, iteration: int) -> EvaluatingJournal:
    """The run's journal, which also evaluates the policy in training every `evaluation.every` updates."""
    folder = experiment.folder
    every = experiment.config.evaluation.every
    if every is not None and every > update_count:
        warn_once(f"evaluation.every={every} evaluates nothing within {plural(update_count, 'update')}")
    evaluate_now = partial(evaluate_update, experiment, trainer, iteration)
    journal = EvaluatingJournal(folder, every, evaluate_now, folder.stop_flag, experiment.session.check_unchanged)
    journal.resume(trainer.step, trainer.samples)
    return journal


def keep_weights(experiment: Experiment, trainer: Trainer, iteration: int) -> None:
    """Keep the weights of the policy in training, unless an earlier attempt has."""
    folder = experiment.folder.weights_of_update(iteration, trainer.step)
    is_kept = distributed.is_main_process() and find_damage(folder) is None
    if not distributed.broadcast(is_kept):
        experiment.session.check_unchanged()
        trainer.zero_grad()  # to gather the weights may take the memory of the gradients
        trainer.save_policy(folder)


def evaluate(experiment: Experiment, *, iteration: int) -> dict[str, Any]:
    """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
    config = experiment.config
    session = experiment.session
    folder = session.folder
    store = session.store_of(iteration)
    with folder.stage("evaluation"):
        completions = complete_tests(experiment, experiment.policies.current, experiment.test, store)
        show_completions(folder.path, "test", iteration, completions)
        warn_of_tested(completions.is_truncated, config.sampler.max_new_tokens)
        if config.evaluation.every is not None:  # the curve of this iteration ends here
            subset = summarise_evaluation(completions, config.evaluation.problems)
            session.check_unchanged()
            folder.evaluations.add({"iteration": iteration, "subset": True, **subset})
        figures = experiment.task.figures(completions, store, folder.path, iteration)
        session.check_unchanged()
        folder.evaluations.add({"iteration": iteration, **figures})
    return figures


def evaluate_update(experiment: Experiment, trainer: Trainer, iteration: int, step: int, samples_seen: int) -> None:
    """Evaluate the policy in training on the first `evaluation.problems` (null: all): a point of the run's curve."""
    session = experiment.session
    folder = session.folder
    trainer.zero_grad()  # the sampler needs the memory of the gradients
    indices = range(len(experiment.test.problems))[: experiment.config.evaluation.problems]
    questions = experiment.test.select(indices)
    store = Store(session.run_store.root, folder.stop_flag)  # of its own: no later check looks at the files of this one
    with folder.timer.nested("evaluation"), trainer.layout.gathered_weights():
        name = f"{folder.path.name}, iteration {iteration}, update {step}"
        policy = replace(trainer.policy, fingerprint=name)
        completions = complete_tests(experiment, policy, questions, store)
        session.free_sampler()
        figures = summarise_evaluation(completions)
        session.check_unchanged()
        store.check_unchanged()
        position = {"iteration": iteration, "step": step, "samples_seen": samples_seen}
        folder.evaluations.add({**position, "subset": True, **figures})


def complete_tests(experiment: Experiment, policy: Policy, questions: TokenizedProblems, store: Store) -> Completions:
    """Sample and grade completions of test problems."""
    session = experiment.session
    completions = experiment.task.evaluate(
        session.sampler, session.grader, policy=policy, questions=questions, store=store
    )
    experiment.folder.add_across_ranks("tokens_sampled_to_evaluate", completions.tokens_sampled)
    return completions


def summarize(experiment: Experiment, base_figures: dict[str, Any], final_figures: dict[str, Any]) -> dict[str, Any]:
    """Write the model's card and the summary, then the mark that the run is finished."""
    config = experiment.config
    folder = experiment.folder
    problem_counts = experiment.problem_counts
    problem_figures = {
        "problems": {"train": problem_counts.count, "test": len(experiment.test.problems)},
        "trained_on": problem_counts.text,
        "too_long": {"train": experiment.train.too_long, "test": experiment.test.too_long},
    }
    summary = summarize_run(folder, config, base_figures, final_figures, problem_figures)
    if config.checkpoint.weights != "none":
        environment = folder.read("environment.json")
        write_card(folder.model_of(config.iterations), config, summary, environment, problem_counts, experiment.header)
    folder.finish(summary)
    say("\n" + format_results(summary, folder.path, evaluation_command(config)))
    return summary
