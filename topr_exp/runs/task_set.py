"""What a run works with: its problems as a model is asked them, and the models that train, are compared and score."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import concat_rows
from topr_exp.composition.training_set import TrainingSet
from topr_exp.config.data import Grading
from topr_exp.config.groups import unit_of
from topr_exp.config.model import ModelConfig
from topr_exp.config.settings import Config
from topr_exp.data.problems import full_question, load_problems
from topr_exp.data.prompts import TokenizedProblems, build_prompter, tokenize_prompts
from topr_exp.evaluation.evaluation import Evaluation
from topr_exp.grading.verdicts import grade_rollouts
from topr_exp.models.loading import find_folder
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runs.folder import RunFolder
from topr_exp.runtime.checksums import CHECKSUMS
from topr_exp.sampling.rollouts import Completions, Rollouts, generate_rollouts
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Ragged, Store
from topr_exp.training.examples import Examples
from topr_exp.training.logprobs import score_rollouts
from topr_exp.types import Problem, TOPRError
from topr_exp.verifier.solutions import Solutions, Verification


@dataclass(frozen=True)
class TrainedOn:
    """The problems that a run trains on."""

    count: int
    of_data: int  # how many of them are training problems of the data set
    text: str  # how many are which


def trained_on(
    config: Config, train: Sequence[Problem], fitting: Sequence[Problem], imported: Completions | None
) -> TrainedOn:
    """Count the problems to sample for (of train, if prompts fit), those that imported completions answer, or both."""
    parts = train, fitting, imported.questions.problems if imported is not None else ()
    known, sampled, answered = ({full_question(problem, config.data) for problem in part} for part in parts)
    sampled = sampled if imported is None or config.compose.mix is not None else set()
    ours, brought = (sampled | answered) & known, answered - known
    told = [f"{len(ours)} {'solutions to ' * config.task.verifies}{config.data.described}"] if ours else []
    told += [f"{len(brought)} problems that {config.data.completions} brought"] if brought else []
    return TrainedOn(len(ours) + len(brought), len(ours), ", ".join(told))


class TaskSet:
    """The problems as a model is asked them: questions to answer, or solutions to verify; test_only: those alone."""

    def __init__(self, config: Config, *, test_only: bool = False) -> None:
        self.config = config
        self.sets, self.prompter = load_problems(config.data), build_prompter(config.data)
        if test_only:
            self.sets = replace(self.sets, train=[])
        self.verification: Verification | None = None

    def generate_solutions(self, sampler: Sampler, store: Store) -> int:
        """Put solutions by the solver, to be verified, in place of the problems; returns the tokens it sampled."""
        config = self.config
        policy = load_policy(config.solver, config.cluster.device)
        grading = Grading(config.data.grader_name, threshold=config.data.threshold)

        def solve(problems: Sequence[Problem], n: int, seed: int) -> Solutions:
            questions = self.tokenize(problems, policy)
            rollouts = generate_rollouts(sampler.without_mismatch(), policy, questions, n, seed, store, "solving")
            verdicts = grade_rollouts(rollouts, questions.problems, grading, store)
            codes, classes = (values.reshape(-1, n) for values in (verdicts.codes, verdicts.classes))
            return Solutions(questions.problems, rollouts.texts(0, rollouts.rows), codes, classes, rollouts.sampled)

        self.verification = Verification(
            config.task,
            solve,
            self.sets,
            seed=config.sampler.seed,
            test_seed=config.evaluation.seed,
            chat_options=config.data.chat_options,
        )
        self.sets, self.prompter = self.verification.sets, self.verification.prompter
        return self.verification.sampled

    def tokenize(self, problems: Sequence[Problem], policy: Policy) -> TokenizedProblems:
        """The prompts of some of the problems, as far as they leave room for an answer."""
        return tokenize_prompts(problems, self.prompter, policy, self.config.sampler.max_new_tokens)

    def evaluate(self, sampler: Sampler, policy: Policy, questions: TokenizedProblems, store: Store) -> Evaluation:
        """Sample and grade completions of test problems, or read from the store what an earlier call did.

        Problems and seeds are the same for every run of a sweep, so that differences between runs are paired.
        """
        config = self.config
        n, seed = config.data.eval_n, config.evaluation.seed
        rollouts = generate_rollouts(sampler.without_mismatch(), policy, questions, n, seed, store, "evaluation")
        verdicts = grade_rollouts(rollouts, questions.problems, config.grading, store)
        return Evaluation(questions, rollouts, verdicts, n, store)

    def figures(self, evaluation: Evaluation, folder: Path, iteration: int) -> dict[str, Any]:
        """The figures of an evaluation and where its completions lie; a verifier's go to a file in `folder` too."""
        found = {**evaluation.figures(), **evaluation.places()}
        if self.verification is not None:
            found |= self.verification.tested(folder, iteration, evaluation)
        return found


class Policies:
    """The models of a run: the policy that it trains, and those that score its completions for the loss."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config, self.folder, self.needs = config, folder, config.algo.needs
        self.trained = self.load(config.model)

    def load(self, model: ModelConfig, *folder: Path | None) -> Policy:
        return load_policy(model, self.config.cluster.device, *folder)

    def reload(self, folder: Path | None = None) -> None:
        """Load the policy with the weights of a folder of this run, or (None) with the base's."""
        if folder is not None and not (folder / CHECKSUMS).exists():
            raise TOPRError(f"{folder} is damaged: {CHECKSUMS} is gone; remove it, and the same command makes it again")
        del self.trained  # with its gradients: there may be no memory for two
        self.trained = self.load(self.config.model, folder)

    def add_adapter(self, iteration: int) -> None:
        """With LoRA, train an adapter on the base in this iteration, from where the last one left it.

        What was just evaluated is the model with that adapter merged into its weights.
        """
        model = self.config.model
        if model.lora is None:
            return
        if iteration > 1:
            self.reload()
        before = self.folder.model_of(iteration - 1) if iteration > 1 else None
        base = find_folder(model.path)
        name = str(base.resolve()) if base is not None else model.path
        self.trained.add_adapter(model.lora, self.config.seed, name, before)

    def reference(self) -> Policy | None:
        """π_ref, where the loss has one."""
        if not {"ref_logp", "vocab_kl"} & self.needs:
            return None
        if self.trained.base is not None and self.config.model.reference is None:
            return self.trained.without_adapter()
        return self.load(self.config.reference)

    def score(
        self, training_set: TrainingSet, rollouts: Rollouts, parts: Sequence[Completions], store: Store
    ) -> tuple[Examples, Policy | None]:
        """Score the parts of some rollouts under the policies that the loss compares; π_ref where all of it is needed.

        What is in the store already is read from there.
        """

        def scored(policy: Policy, label: str) -> Sequence[NDArray[np.float32]]:
            return concat_rows([self.scored(policy, part, store, label) for part in parts])

        given = [log_mu for part in parts if (log_mu := self.log_mu(part, store, part is parts[-1])) is not None]
        old = scored(self.trained, "scoring π_old") if "old_logp" in self.needs else None
        reference = self.reference()
        ref = scored(reference, "scoring ref") if reference is not None else None
        examples = Examples(training_set, rollouts, concat_rows(given) if given else None, ref, old)
        return examples, reference if "vocab_kl" in self.needs else None

    def mu_is_start(self, parts: Sequence[Completions]) -> bool:
        """True where all log μ is by the weights that training begins with, so that Δ must vanish there."""
        config = self.config
        return config.mu == "scored" and config.mu_model is None and all(part.log_mu is None for part in parts)

    def log_mu(self, part: Completions, store: Store, last: bool) -> Ragged | None:
        """log μ: as it came with the completions, what the sampler drew with, or by a forward pass of training.

        With mu=none there is none, but for pairs, whose reference it is. last: the completions of a log are.
        """
        config = self.config
        if config.mu == "none" and unit_of(self.needs) != "pairs":
            return None
        if config.mu == "sampler":
            return Ragged(part.rollouts.columns["sampler_logp"])
        if config.mu_model is not None and last:
            named = replace(config.model, path=config.mu_model, revision=None, lora=None)
            return self.scored(self.load(named), part, store, "scoring μ")
        given = part.log_mu if config.mu == "scored" else None
        return given if given is not None else self.scored(self.trained, part, store, "scoring μ")

    def scored(self, policy: Policy, part: Completions, store: Store, label: str) -> Ragged:
        """log-probabilities of all completions under a policy."""
        logp, count = score_rollouts(policy, part.rollouts, store, self.config.optim.score_batch_size, label)
        self.folder.add_across_ranks("tokens_scored", count)
        return logp
