"""One whole prompt as the model gets it, for people to read: in a dry run, and in a run's folder (`prompt.txt`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topr_exp.config.settings import Config
from topr_exp.data.prompts import Prompter, TokenizedProblems, build_prompter
from topr_exp.models.files import with_bos
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.preflight import problems
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.types import TOPRError

FILE = "prompt.txt"
END = "◀"  # where the completion begins: a space before it would be the prompt's


def preview(config: Config) -> str:
    """The prompt of the first training problem, with the tokenizer alone loaded."""
    sets, folder = problems(config.data), tokenizer_folder(config)
    # Problems that are elsewhere, as on the hub, are not fetched for this.
    question = sets.train[0].question if sets is not None else "{question}"
    fields = sets.train[0].fields if sets is not None else {}
    prompter = build_prompter(config.data)
    if config.task.verifies:  # the solution is sampled
        assert config.task.template is not None
        question = config.task.template.replace("{question}", question)
        prompter = Prompter("{question}", (), bool(config.task.chat), ())
    if folder is None:
        if prompter.chat:
            return f"prompt: goes through the chat template of {config.model.path}, which is not on this machine yet"
        why = f"{config.model.path} is not on this machine yet, which would show its tokens"
        return f"{heading(why, prompter.stop)}\n{prompter.render(question, fields=fields)}{END}"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=config.model.trust_remote_code)
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        reason = " ".join(str(error).split())
        raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {reason}") from error
    ids = tokenizer(prompter.render(question, tokenizer, fields), add_special_tokens=False)["input_ids"]
    return shown(with_bos(ids, tokenizer.bos_token_id), tokenizer, prompter.stop)


@main_process_only
def write(folder: Path, questions: TokenizedProblems, tokenizer: Any) -> None:
    """Write the first prompt of a run into its folder."""
    write_text(folder / FILE, shown(questions.prompts[0].tolist(), tokenizer, questions.stop) + "\n")


def tokenizer_folder(config: Config) -> Path | None:
    """Find the model's tokenizer on this machine, from the hub or not; None where it is absent."""
    if folder := model_folders(config).get("model.path"):
        return folder
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(config.model.path, "tokenizer_config.json", revision=config.model.revision)
    return Path(found).parent if isinstance(found, str) else None


def shown(ids: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> str:
    """A prompt, special tokens as text, with a line above it that says how to read it."""
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return f"{heading(f'{len(ids)} tokens', stop)}\n{text}{END}"


def heading(what: str, stop: Sequence[str]) -> str:
    ends = f" and ends before {' or '.join(json.dumps(text, ensure_ascii=False) for text in stop)}" if stop else ""
    return f"prompt of the first training problem ({what}; the completion begins at {END}{ends}):"
