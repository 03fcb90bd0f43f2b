"""First prompt of a run as the model gets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.settings import Config
from topr_exp.data.prompts import TokenizedProblems, build_prompter
from topr_exp.models.tokenization import encode_chat, encode_text
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.preflight import problems
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    pass
PROMPT = "prompt.txt"
END = "◀"  # where the completion begins: a space before it would be the prompt's


# ---- the first prompt, by `dry_run=true` and in a run's folder


def preview_prompt(config: Config) -> str:
    """The prompt of the first training problem as the model gets it, with the tokenizer alone loaded."""
    from transformers import PreTrainedTokenizerFast  # unlike AutoTokenizer it imports no torch

    sets, model = problems(config.data), config.model
    # Problems that are elsewhere, as on the hub, are not fetched for this.
    question = sets.train[0].question if sets is not None else "{question}"
    fields = sets.train[0].fields if sets is not None else {}
    prompter = build_prompter(config.data)
    if config.task.verifies:  # the solution is sampled
        assert config.task.template is not None
        question = config.task.template.replace("{question}", question)
        prompter = replace(prompter, template="{question}", shots=(), chat=bool(config.task.chat), stop=())
    folder = model_folders(config).get("model.path")
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if folder is None:
        options |= {"revision": model.revision or "main", "local_files_only": True}
    loader: Any = PreTrainedTokenizerFast
    if folder is None or model.trust_remote_code or not (folder / "tokenizer.json").exists():
        from transformers import AutoTokenizer

        loader = AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(folder or model.path, **options)
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        if folder is not None:
            reason = " ".join(str(error).split())
            raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {reason}") from error
        return f"prompt: made with the tokenizer of {model.path}, which is not on this machine yet"
    encoded = encode_chat if prompter.chat else encode_text
    ids = encoded(tokenizer, prompter.render(question, tokenizer, fields))
    return shown_tokens(ids, tokenizer, prompter.stop)


@main_process_only
def write_prompt(folder: Path, questions: TokenizedProblems, tokenizer: Any) -> None:
    """Write the first prompt of a run into its folder."""
    write_text(folder / PROMPT, shown_tokens(questions.prompts[0].tolist(), tokenizer, questions.stop) + "\n")


def shown_tokens(ids: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    ends = f" and ends before {' or '.join(json.dumps(each, ensure_ascii=False) for each in stop)}" if stop else ""
    return (
        f"prompt of the first training problem ({len(ids)} tokens; the completion begins at {END}{ends}):\n{text}{END}"
    )
