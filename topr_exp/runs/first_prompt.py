"""First prompt of a run as the model gets it, shown by `dry_run=true` and kept in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.data.prompts import Prompter, TokenizedProblems, build_prompter
from topr_exp.models.tokenization import encode_prompt
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.problem_checks import problems_at_hand
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.types import Problem, TOPRError

if TYPE_CHECKING:
    from topr_exp.config.data import DataConfig
    from topr_exp.config.settings import Config

PROMPT = "prompt.txt"
END = "◀"  # shows where the completion begins: a space before it belongs to the prompt


@main_process_only
def write_prompt(folder: Path, config: Config, *, questions: TokenizedProblems, tokenizer: Any) -> None:
    """Write the first prompt of a run into its folder."""
    prompt_ids = questions.prompts[0].tolist()
    prompt = format_prompt(prompt_ids, tokenizer, stop=questions.stop, split=prompted_split(config))
    write_text(folder / PROMPT, prompt + "\n")


def prompted_split(config: Config) -> str:
    """Name the problems that the model is asked first: the test's, where a log brings the prompts of training."""
    return "training" if config.needs_sampling else "test"


def preview_prompt(config: Config) -> str:
    """Return the first prompt of a run, for which the tokenizer alone is loaded."""
    split = prompted_split(config)
    problem = first_problem(config.data, split)
    question = problem.question
    prompter = build_prompter(config.data)
    if config.task.verifies:
        assert config.task.template is not None
        fields = {**problem.fields, "solution": "{solution}"}  # which is not sampled yet
        question = Prompter(config.task.template).render(question, fields=fields)
        prompter = replace(prompter, template="{question}", shots=(), chat=bool(config.task.chat), stop=())
    tokenizer = load_tokenizer(config)
    if tokenizer is None:
        return f"prompt: made with the tokenizer of {config.model.path}, which is not on this machine yet"
    prompt = prompter.render(question, tokenizer, problem.fields)
    prompt_ids = encode_prompt(tokenizer, prompt, chat=prompter.chat)
    return format_prompt(prompt_ids, tokenizer, stop=prompter.stop, split=split)


def first_problem(data: DataConfig, split: str) -> Problem:
    """Return the first problem of a split; a blank in place of one that would have to be fetched."""
    sets = problems_at_hand(data)
    if sets is None:
        return Problem(id="", question="{question}", answer="")
    problems = sets.train if split == "training" else sets.test
    return problems[0]


def load_tokenizer(config: Config) -> Any:
    """Load the model's tokenizer; None for one that is not on this machine. TOPRError for a folder's broken one."""
    folder = model_folders(config).get("model.path")
    tokenizer_class, options = tokenizer_source(config, folder)
    try:
        return tokenizer_class.from_pretrained(folder or config.model.path, **options)
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        if folder is None:
            return None
        reason = " ".join(str(error).split())
        raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {reason}") from error


def tokenizer_source(config: Config, folder: Path | None) -> tuple[Any, dict[str, Any]]:
    """Return transformers' class and options for a folder's tokenizer, or (None) for the hub's local copy."""
    model = config.model
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if folder is None:
        options |= {"revision": model.revision or "main", "local_files_only": True}
    elif (folder / "tokenizer.json").exists() and not model.trust_remote_code:
        from transformers import PreTrainedTokenizerFast  # unlike AutoTokenizer it imports no torch

        return PreTrainedTokenizerFast, options
    from transformers import AutoTokenizer

    return AutoTokenizer, options


def format_prompt(token_ids: Sequence[int], tokenizer: Any, *, stop: Sequence[str], split: str) -> str:
    """Format a prompt's text with where the completion begins and ends. split: of its problem."""
    text = tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    completion = f"the completion begins at {END}"
    if stop:
        ends = [json.dumps(stop_text, ensure_ascii=False) for stop_text in stop]
        completion += f" and ends before {' or '.join(ends)}"
    return f"prompt of the first {split} problem ({len(token_ids)} tokens; {completion}):\n{text}{END}"
