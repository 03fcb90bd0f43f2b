"""The problems as a model is asked them, a prompt for people to read, and the evaluation of the answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.config.data import Grading
from topr_exp.config.settings import Config
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import Prompter, TokenizedProblems, build_prompter, tokenize_prompts
from topr_exp.evaluation.evaluation import Evaluation, evaluate
from topr_exp.models.loading import with_bos
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runs.preflight import model_folders, problems
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Store
from topr_exp.types import Problem, TOPRError
from topr_exp.verifier.solutions import Solver, Verification

PROMPT = "prompt.txt"
END = "◀"  # where the completion begins: a space before it would be the prompt's


@dataclass(frozen=True)
class TrainedOn:
    """The problems that a run trains on."""

    count: int
    of_data: int  # how many of them are training problems of the data set
    text: str  # how many are which


def trained_on(config: Config, train: Sequence[Problem], imported: Sequence[Problem] | None) -> TrainedOn:
    """Count the problems of the data set (train) to sample for, those that imported completions answer, or both."""
    known = {problem.question for problem in train}
    sampled = known if imported is None or config.compose.mix is not None else set[str]()
    answered = {problem.question for problem in imported or ()}
    ours, brought = (sampled | answered) & known, answered - known
    parts = [f"{len(ours)} {config.data.described}"] if ours else []
    parts += [f"{len(brought)} problems that {config.data.completions} brought"] if brought else []
    return TrainedOn(len(ours) + len(brought), len(ours), ", ".join(parts))


class TaskSet:
    """The problems as a model is asked them: questions to answer, or solutions to verify; test_only: those alone."""

    def __init__(self, config: Config, store: Store, *, test_only: bool = False) -> None:
        self.config = config
        self.sets, self.prompter = load_problems(config.data, store), build_prompter(config.data)
        if test_only:
            self.sets = dataclasses.replace(self.sets, train=[])
        self.verification: Verification | None = None

    def generate_solutions(self, sampler: Sampler, store: Store) -> int:
        """Put solutions by the solver, to be verified, in place of the problems; returns the tokens it sampled."""
        config = self.config
        policy = load_policy(config.solver, config.cluster.device.name)
        solver = Solver(policy, sampler, Grading(config.data.grader_name, threshold=config.data.threshold), store)
        seeds = {"seed": config.sampler.seed, "test_seed": config.evaluation.seed}
        self.verification = Verification(config.task, solver, self.sets, self.prompter, **seeds)
        self.sets, self.prompter = self.verification.sets, self.verification.prompter
        return self.verification.sampled

    def tokenize(self, problems: Sequence[Problem], policy: Policy) -> TokenizedProblems:
        """The prompts of some of the problems, as far as they leave room for an answer."""
        return tokenize_prompts(problems, self.prompter, policy, self.config.sampler.max_new_tokens)

    def evaluate(self, sampler: Sampler, policy: Policy, questions: TokenizedProblems, store: Store) -> Evaluation:
        """Graded completions of test problems, with the problems and seeds of all runs that are compared."""
        config = self.config
        n, seed = config.data.eval_n, config.evaluation.seed
        return evaluate(sampler, policy, questions, n, seed, config.grading, store)

    def figures(self, evaluation: Evaluation, folder: Path, iteration: int) -> dict[str, Any]:
        """The figures of an evaluation and where its completions lie; a verifier's go to a file in `folder` too."""
        found = {**evaluation.figures(), **evaluation.places()}
        if self.verification is not None:
            found |= self.verification.tested(folder, iteration, evaluation)
        return found


# ---- a prompt for people to read


def preview_prompt(config: Config) -> str:
    """The prompt of the first training problem as the model gets it, with the tokenizer alone loaded."""
    from transformers import AutoTokenizer

    sets, model = problems(config.data), config.model
    # Problems that are elsewhere, as on the hub, are not fetched for this.
    question = sets.train[0].question if sets is not None else "{question}"
    fields = sets.train[0].fields if sets is not None else {}
    prompter = build_prompter(config.data)
    if config.task.verifies:  # the solution is sampled
        assert config.task.template is not None
        question = config.task.template.replace("{question}", question)
        prompter = Prompter("{question}", (), bool(config.task.chat), ())
    folder = model_folders(config).get("model.path")
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if folder is None:
        options |= {"revision": model.revision or "main", "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder or model.path, **options)
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        if folder is not None:
            reason = " ".join(str(error).split())
            raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {reason}") from error
        if prompter.chat:
            return f"prompt: goes through the chat template of {model.path}, which is not on this machine yet"
        why = f"{model.path} is not on this machine yet, which would show its tokens"
        return shown_prompt(prompter.render(question, fields=fields), why, prompter.stop)
    ids = tokenizer(prompter.render(question, tokenizer, fields), add_special_tokens=False)["input_ids"]
    return shown_tokens(with_bos(ids, tokenizer.bos_token_id), tokenizer, prompter.stop)


@main_process_only
def write_prompt(folder: Path, questions: TokenizedProblems, tokenizer: Any) -> None:
    """Write the first prompt of a run into its folder."""
    write_text(folder / PROMPT, shown_tokens(questions.prompts[0].tolist(), tokenizer, questions.stop) + "\n")


def shown_tokens(ids: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return shown_prompt(text, f"{len(ids)} tokens", stop)


def shown_prompt(text: str, what: str, stop: Sequence[str]) -> str:
    ends = f" and ends before {' or '.join(json.dumps(each, ensure_ascii=False) for each in stop)}" if stop else ""
    return f"prompt of the first training problem ({what}; the completion begins at {END}{ends}):\n{text}{END}"
