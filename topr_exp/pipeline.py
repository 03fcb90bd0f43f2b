"""READ THIS FIRST: one experiment, from problems to a summary.

    problems -> (sample -> grade -> score -> compose -> train -> evaluate) once an iteration -> summary

Completions of the starting model lie in the store that all runs share; completions of weights that only this run has
lie in its folder. A killed run resumes with the same command: each stage reads what an earlier attempt finished. With
several processes all of them run this code: they make different shards of the store's tables, train on different
examples of each batch, and process 0 writes the folder.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from topr_exp.runs.first_prompt import write_prompt
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.forecast import Forecast, Sizes, planned_steps
from topr_exp.runs.inputs import note_model_of_the_hub
from topr_exp.runs.model_card import write_card
from topr_exp.runs.policies import Policies
from topr_exp.runs.run_summary import summarize_run
from topr_exp.runs.tasks import Task, TrainedOn, VerificationTask, load_task, trained_on
from topr_exp.runs.training_data import save_rounds, save_training_set
from topr_exp.runs.training_report import TrainingReport
from topr_exp.runtime.terminal import say
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.cut_off import warn_of_tested
from topr_exp.sampling.generation import sample_completions
from topr_exp.sampling.mismatch import describe_mismatch, measure_mismatch
from topr_exp.sampling.sampler import seed_of
from topr_exp.schema import plain
from topr_exp.session import Session, open_session, report_finished
from topr_exp.store import Ragged, Store
from topr_exp.training.asynchronous import AsyncRounds
from topr_exp.training.collection import Collector
from topr_exp.training.parallel import parallelize
from topr_exp.training.rounds import Rounds
from topr_exp.training.trainer import Trainer, train_offline


def run(config: Config) -> dict[str, Any]:
    """One run; returns its summary. Raises TOPRError for what the user can mend."""
    with open_session(config) as session:
        if isinstance(session, RunFolder):
            return report_finished(config, session)
        return run_stages(session)


def run_stages(session: Session) -> dict[str, Any]:
    """The stages in their order; what an earlier attempt finished is left out."""
    folder = session.folder
    task = prepare_task(session)
    policies = load_policies(session)
    data = load_data(session, task, policies)
    report = open_report(session.config, data)

    base = final = evaluate(session, task, policies, data, iteration=0)
    for iteration in folder.unfinished_iterations():
        if not folder.model_of(iteration).exists():
            train_iteration(session, task, policies, data, report, iteration)
        folder.remove_leftovers(iteration)
        policies.reload(folder.model_of(iteration))
        final = evaluate(session, task, policies, data, iteration=iteration)
    return summarize(session, data, base, final)


def train_iteration(
    session: Session, task: Task, policies: Policies, data: "RunData", report: TrainingReport, iteration: int
) -> None:
    """Train the policy and save it; what holds its weights ends here, since there may be no memory for two models."""
    config = session.config
    policies.add_adapter(iteration)
    compose = partial(compose_training_set, config, report, iteration)
    if config.schedule.in_rounds:
        trainer = train_in_rounds(session, task, policies, data, compose, iteration)
    else:
        store = session.store_of(iteration - 1)
        sources = sample(session, policies, data, store, iteration)
        sources = grade(session, sources, store)
        scored = score(session, policies, data, sources, store)
        training_set = compose_offline(session, scored, compose, store, iteration)
        trainer = train(session, task, policies, data, scored, training_set, iteration)
    session.check_sources()
    trainer.save_policy(session.folder.model_of(iteration))


@dataclass(frozen=True)
class RunData:
    """Problems of a run and imported completions."""

    train: TokenizedProblems
    test: TokenizedProblems
    imported: Completions | None
    samples: bool  # False: imported completions alone are trained on
    trained_on: TrainedOn
    header: str  # for the user: the settings that decide the result


@dataclass(frozen=True)
class ScoredSources:
    """Sampled and imported completions with the log-probabilities that the loss compares."""

    completions: list[Completions]
    reference: Policy | None  # π_ref, where the loss needs its whole distribution
    mismatch: dict[str, Any] | None  # of the sampler's and training's log-probabilities
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
    """Load the base model."""
    with session.folder.stage("problems"):
        policies = Policies(session.config, session.folder)
        note_model_of_the_hub(session.folder, session.config, policies.trained.fingerprint)
    return policies


def load_data(session: Session, task: Task, policies: Policies) -> RunData:
    """Tokenize prompts, load imported completions before anything is sampled, and print the header."""
    config = session.config
    folder = session.folder
    policy = policies.trained
    with folder.stage("problems"):
        train = task.tokenize(task.sets.train, policy)
        test = task.tokenize(task.sets.test, policy)
        write_prompt(folder.path, train, policy.tokenizer)
    imported = None
    log_report = dict[str, str]()
    if config.data.completions is not None:
        with folder.stage("sampling"):
            imported, log_report = load_log(config, task.sets.train, task.prompter, policy, session.shared_store)
    samples = imported is None or config.compose.mix is not None
    if not samples:  # no prompt is too long to sample for
        train = replace(train, too_long=0)
    problems = trained_on(config, task.sets.train, train.problems, imported)
    text = header(config, policy, task.sets, train, test, problems, log_report)
    say(text + "\n")
    data = RunData(train, test, imported, samples, problems, text)
    folder.start_forecast(forecast(config, data, len(folder.unfinished_iterations())))
    return data


def forecast(config: Config, data: RunData, iterations: int) -> Forecast:
    """Plan the work of this attempt, for the time left."""
    problems = config.schedule.prompts or len(data.train.problems)
    sizes = Sizes(
        sampled=problems * config.data.n if data.samples else 0,
        imported=len(data.imported) if data.imported is not None else 0,
        examples=config.compose.n_examples,
        completions_per_example=2 if unit_of(config.algo.needs) == "pairs" else 1,
        scored=config.mu == "scored",
        test=len(data.test.problems),
        tested=config.data.eval_n,
    )
    return Forecast(planned_steps(sizes, config.schedule, config.optim, config.evaluation, iterations))


def open_report(config: Config, data: RunData) -> TrainingReport:
    in_rounds = config.schedule.in_rounds
    return TrainingReport(
        config.algo,
        in_rounds=in_rounds,
        can_solve_for_baseline=config.reward == "pm1" and not in_rounds,
        token_limit=config.sampler.max_new_tokens if data.samples else None,
        drops_truncated=config.compose.drop_truncated,
    )


# ---- an iteration offline: one round


def sample(session: Session, policies: Policies, data: RunData, store: Store, iteration: int) -> list[Completions]:
    """Sample completions to train on; imported ones replace them, or with `compose.mix` follow them."""
    config = session.config
    sources = list[Completions]()
    with session.folder.stage("sampling"):
        if data.samples:
            seed = config.sampler.seed
            if iteration > 1:  # the policy was trained on completions of the earlier seeds
                seed = seed_of(seed, iteration)
            n = config.data.n
            policy = policies.trained
            sampled = sample_completions(session.sampler, policy, data.train, n, seed=seed, store=store)
            session.folder.add_across_ranks("tokens_sampled", sampled.tokens_sampled)
            sources.append(sampled)
        if data.imported is not None:
            sources.append(data.imported)
        session.free_sampler()
    return sources


def grade(session: Session, sources: list[Completions], store: Store) -> list[Completions]:
    """Grade by the grader, or by the rewards that came with the completions."""
    config = session.config
    with session.folder.stage("grading"):
        if config.reward == "given":
            return [grade_by_log(completions, config.data.threshold, store) for completions in sources]
        return [grade_completions(completions, config.grading, store) for completions in sources]


def score(
    session: Session, policies: Policies, data: RunData, sources: list[Completions], store: Store
) -> ScoredSources:
    """Add log μ, log π_old and log π_ref, and compare the sampler's log-probabilities with training's."""
    config = session.config
    with session.folder.stage("scoring"):
        mu_is_start = policies.mu_is_start(sources)
        scored, reference = policies.score(sources, store)
        is_changed = data.samples and not config.sampler.unchanged
        mismatch = None
        if is_changed or (config.mu == "scored" and data.imported is None):
            if config.mu == "scored" and data.imported is None:
                logp = scored[0].table["mu_logp"]
            else:
                logp = policies.scored(policies.trained, scored[0], store, "scoring π_old")
            sampler_config = config.sampler if is_changed else None
            mismatch = measure_mismatch(Ragged(logp), scored[0].lists("sampler_logp"), sampler_config)
            say(describe_mismatch(mismatch))
        if config.mu == "sampler" and data.samples:  # of a log the header says it
            say(f"{'log μ':<11} {describe_logprob_gap(scored[0], policies.trained, config.optim.score_batch_size)}")
    return ScoredSources(scored, reference, mismatch, mu_is_start)


def compose_training_set(
    config: Config,
    report: TrainingReport,
    iteration: int,
    completions: Completions,
    round_number: int | None = None,
) -> TrainingSet:
    """Compose the training set of an iteration or round."""
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
    report.describe(training_set)
    return training_set


def compose_offline(
    session: Session, scored: ScoredSources, compose: "partial[TrainingSet]", store: Store, iteration: int
) -> TrainingSet:
    """Compose the training set of all sources, and save which completions it has."""
    with session.folder.stage("composition"):
        training_set = compose(merge_sources(scored.completions))
        save_training_set(
            session.folder.iteration_folder(iteration),
            training_set,
            scored.completions,
            store=store.root,
            mismatch=scored.mismatch,
        )
    return training_set


def train(
    session: Session,
    task: Task,
    policies: Policies,
    data: RunData,
    scored: ScoredSources,
    training_set: TrainingSet,
    iteration: int,
) -> Trainer:
    """Train on a fixed set."""
    config = session.config
    folder = session.folder
    with folder.stage("training"):
        trainer = open_trainer(session, policies, scored.reference, iteration)
        journal = open_journal(session, task, trainer, data, iteration)
        seconds = config.checkpoint.every_seconds
        train_offline(trainer, training_set, journal, config.seed, iteration, seconds, scored.mu_is_start)
        show_completions(folder.path, "train", iteration, training_set.completions, training_set.examples)
    return trainer


# ---- an iteration in rounds


def train_in_rounds(
    session: Session,
    task: Task,
    policies: Policies,
    data: RunData,
    compose: "partial[TrainingSet]",
    iteration: int,
) -> Trainer:
    """Train on completions that the policy in training samples every few updates."""
    config = session.config
    folder = session.folder
    session.sampler.close()  # the next engine takes what is free beside a reference and what training keeps
    with folder.stage("training"), open_grader(config.grading) as grader:
        reference = policies.reference()
        whole_reference = reference if "vocab_kl" in config.algo.needs else None
        trainer = open_trainer(session, policies, whole_reference, iteration)
        collector = Collector(
            trainer,
            data.train,
            session.sampler,
            grader,
            reference,
            n=config.data.n,
            iteration=iteration,
            stage_timer=folder.nested_stage,
        )
        kind = AsyncRounds if config.schedule.asynchronous else Rounds
        mu_is_samplers = config.mu == "sampler"
        rounds = kind(
            collector, compose, config.schedule, config.compose, seed=config.seed, mu_is_samplers=mu_is_samplers
        )
        rounds.run(open_journal(session, task, trainer, data, iteration), config.checkpoint.every_seconds)
    save_rounds(
        folder.iteration_folder(iteration),
        folder.metrics.of_iteration(iteration),
        trained=trainer.samples,
        tokens_sampled=trainer.sampled,
        baseline=config.baseline or 0.0,
        mismatch=plain(config.sampler.mismatch),
    )
    return trainer


# ---- training and evaluation, offline and in rounds


def open_trainer(session: Session, policies: Policies, reference: Policy | None, iteration: int) -> Trainer:
    """Make a trainer that resumes from the iteration's newest checkpoint, its metrics cut back to that."""
    config = session.config
    folder = session.folder
    policy = policies.trained
    policy.rename_weights(f"{folder.path.name}, iteration {iteration}, in training")
    checkpoints = folder.path / "checkpoints" / str(iteration)
    with session.stop.immediate():
        layout = parallelize(policy, config.cluster.parallel)
        trainer = Trainer(policy, config.algo, reference, config.optim, checkpoints, layout, session.stop)
    folder.metrics.rewind(iteration, trainer.step)
    return trainer


def open_journal(session: Session, task: Task, trainer: Trainer, data: RunData, iteration: int) -> EvaluatingJournal:
    """The run's journal, which also evaluates the policy in training every `evaluation.every` updates."""
    every = session.config.evaluation.every
    evaluate_now = partial(evaluate_update, session, task, trainer, data, iteration)
    journal = EvaluatingJournal(session.folder, every, evaluate_now, session.stop, session.check_sources)
    journal.resume(trainer.step, trainer.samples)
    return journal


def evaluate(session: Session, task: Task, policies: Policies, data: RunData, *, iteration: int) -> dict[str, Any]:
    """Evaluate and record; iteration 0 is the base, whose completions all runs share."""
    config = session.config
    folder = session.folder
    store = session.store_of(iteration)
    with folder.stage("evaluation"):
        answers = answer_tests(session, task, policies.trained, data.test, store)
        show_completions(folder.path, "test", iteration, answers)
        warn_of_tested(answers.is_truncated, config.sampler.max_new_tokens)
        if config.evaluation.every is not None:  # the curve of this iteration ends here
            subset = summarise_evaluation(answers, config.evaluation.problems)
            session.check_sources()
            folder.evaluations.add({"iteration": iteration, "subset": True, **subset})
        figures = task.figures(answers, store, folder.path, iteration)
        session.check_sources()
        folder.evaluations.add({"iteration": iteration, **figures})
    return figures


def evaluate_update(
    session: Session, task: Task, trainer: Trainer, data: RunData, iteration: int, step: int, samples: int
) -> None:
    """Evaluate the policy in training on the first test problems: a point of the run's curve."""
    folder = session.folder
    trainer.zero_grad()  # the sampler needs the memory of the gradients
    count = session.config.evaluation.problems
    questions = replace(data.test, problems=data.test.problems[:count], prompts=data.test.prompts[:count])
    with folder.nested_stage("evaluation"), trainer.layout.gathered_weights():
        name = f"{folder.path.name}, iteration {iteration}, update {step}"
        policy = replace(trainer.policy, fingerprint=name)
        answers = answer_tests(session, task, policy, questions, session.run_store)
        session.free_sampler()
        figures = summarise_evaluation(answers)
        session.check_sources()
        point = {"iteration": iteration, "step": step, "samples_seen": samples, "subset": True}
        folder.evaluations.add({**point, **figures})


def answer_tests(
    session: Session, task: Task, policy: Policy, questions: TokenizedProblems, store: Store
) -> Completions:
    """Sample and grade answers to test problems."""
    answers = task.evaluate(session.sampler, policy, questions, store)
    session.folder.add_across_ranks("tokens_sampled_to_evaluate", answers.tokens_sampled)
    return answers


def summarize(session: Session, data: RunData, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
    """Write the model's card and the summary, then the mark that the run is finished."""
    config = session.config
    folder = session.folder
    problems = {
        "problems": {"train": data.trained_on.count, "test": len(data.test.problems)},
        "trained_on": data.trained_on.text,
        "too_long": {"train": data.train.too_long, "test": data.test.too_long},
    }
    summary = summarize_run(folder, config, base, final, problems)
    if config.checkpoint.save_model:
        environment = folder.read("environment.json")
        write_card(folder.model_of(config.iterations), config, summary, environment, data.trained_on, data.header)
    folder.finish(summary)
    say("\n" + results(summary, folder.path))
    return summary
