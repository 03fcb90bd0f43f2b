"""One whole prompt as the model gets it, for people to read: in a dry run, and in a run's folder (`prompt.txt`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from topr_exp.config.settings import Config
from topr_exp.data.prompts import Prompter, build_prompter
from topr_exp.models.files import MARKS, PromptTokenizer, load_words, marked, with_bos
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.reading import problems
from topr_exp.types import TOPRError

FILE = "prompt.txt"
END = "◀"  # where the completion begins: a space before it would be the prompt's


def preview(config: Config) -> str:
    """The prompt of the first training problem, with as little loaded as it takes."""
    sets, folder = problems(config.data), tokenizer_folder(config)
    # TokenizedProblems that are elsewhere, as on the hub, are not fetched for this.
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
    try:
        words = load_words(folder, chat=prompter.chat, trust_remote_code=config.model.trust_remote_code)
        text = prompter.render(question, words.tokenizer, fields)
        return shown(with_bos(words.encode(text), words.bos), words, prompter.stop)
    except TOPRError:
        raise
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        raise TOPRError(
            f"model folder {folder}: its tokenizer can't be loaded: {' '.join(str(error).split())}"
        ) from error


def tokenizer_folder(config: Config) -> Path | None:
    """Find the model's tokenizer on this machine, from the hub or not; None where it is absent."""
    if folder := model_folders(config).get("model.path"):
        return folder
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(config.model.path, "tokenizer_config.json", revision=config.model.revision)
    return Path(found).parent if isinstance(found, str) else None


def shown(ids: Sequence[int], words: PromptTokenizer, stop: Sequence[str]) -> str:
    """A prompt with a line above it that says how to read it."""
    what = f"{len(ids)} tokens, special ones as {MARKS.format('token')}"
    return f"{heading(what, stop)}\n{marked(ids, words)}{END}"


def heading(what: str, stop: Sequence[str]) -> str:
    ends = f" and ends before {' or '.join(json.dumps(text, ensure_ascii=False) for text in stop)}" if stop else ""
    return f"prompt of the first training problem ({what}; the completion begins at {END}{ends}):"
