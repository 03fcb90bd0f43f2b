"""Completions made elsewhere (any model, any framework) in the place of sampled ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.data.prompts import Prompter, tokenize_prompts
from topr_exp.models.policy import Policy
from topr_exp.sampling.rollouts import Completions, Rollouts, fingerprint
from topr_exp.store import Ragged, Store
from topr_exp.store.completions import import_file, unknown_problem
from topr_exp.types import Problem, TOPRError

if TYPE_CHECKING:
    import pyarrow as pa


def load_imported(
    source: str, problems: list[Problem], prompter: Prompter, policy: Policy, store: Store
) -> Completions:
    """Load the completions of `source`, with their prompts and the log-probabilities that came with them.

    source: a file of JSON lines (imported on the way) or a table of the store, as kind/hash. A line answers one of
    `problems` by its `problem_id`, or brings its own by `question` and `gold`. Without `tokens` the text is tokenized
    by the model's tokenizer, with an end-of-sequence token unless `finish` says that there was none.
    Raises TOPRError (one line) for a table that is not there, a problem id that is unknown, a prompt that is too
    long, an empty completion, and token ids that the model does not have.
    """
    import pyarrow as pa

    if Path(source).is_file():
        table, _ = import_file(store, Path(source))
    elif (store.root / source / "key.json").is_file():
        table = store.open(store.root / source)
    else:
        raise TOPRError(f"data.completions={source}: neither a file nor a table of {store.root} (kind/hash)")
    columns = table.read()
    if missing := [name for name in ("problem_id", "question", "gold") if name not in columns.column_names]:
        raise TOPRError(
            f"data.completions={source}: a table without {missing[0]}; write it to a file (python -m topr_exp.store "
            "export) and give that"
        )
    answered, index = match_problems(columns, problems, source)
    questions = tokenize_prompts(answered, prompter, policy, max_new_tokens=1)
    if questions.too_long:
        raise TOPRError(f"data.completions={source}: {questions.too_long} prompts are longer than the model's context")
    if "tokens" not in columns.column_names:
        columns = columns.append_column("tokens", tokenize_completions(columns, policy))
    columns = columns.append_column("problem", pa.array(index, pa.int32()))
    columns = columns.append_column("sample", pa.array(index_in_group(index), pa.int32()))
    check_tokens(Ragged(columns["tokens"]), policy.vocabulary, source)
    bounds = table.bounds()
    given = Ragged(columns["sampler_logp"]) if "sampler_logp" in columns.column_names else None
    # What is scored depends on the prompts and the tokenizer too; both are in the name that keys other tables.
    name = f"{table.name} as read by {policy.fingerprint} after {fingerprint(questions.prompts)}"
    return Completions(Rollouts(name, columns, questions.prompts, bounds, 0), questions, given)


def match_problems(columns: pa.Table, problems: list[Problem], source: str) -> tuple[list[Problem], NDArray[np.int32]]:
    """The problems that a table's rows answer, in the order in which they occur, and each row's problem."""
    known = {problem.id: problem for problem in problems}
    answered: dict[tuple[str, ...], int] = {}
    found: list[Problem] = []
    index = np.zeros(len(columns), dtype=np.int32)
    row = 0
    for batch in columns.select(["problem_id", "question", "gold"]).to_batches():
        for name, question, gold in zip(*(batch[i].to_pylist() for i in range(3)), strict=True):
            own = question is not None and gold is not None
            key = (name or "", question, gold) if own else (name,)
            if key not in answered:
                if not own and name not in known:
                    raise unknown_problem(source, row + 1, name)
                answered[key] = len(found)
                found.append(Problem(name or f"imported/{len(found):06d}", question, gold) if own else known[name])
            index[row] = answered[key]
            row += 1
    return found, index


def index_in_group(index: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each row, how many rows before it have the same value."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    place = np.empty(len(index), dtype=np.int32)
    place[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
    return place


def tokenize_completions(columns: pa.Table, policy: Policy) -> Any:
    """The texts as token ids, ended by an end-of-sequence token where the completion ended by itself."""
    import pyarrow as pa

    eos = [policy.tokenizer.eos_token_id] if policy.tokenizer.eos_token_id is not None else []
    chunks = []
    for batch in columns.select(["text", "finish"]).to_batches(max_chunksize=1000):
        texts, finishes = batch["text"].to_pylist(), batch["finish"].to_pylist()
        ids = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
        rows = [[*row, *(eos if finish in (None, "stop") else [])] for row, finish in zip(ids, finishes, strict=True)]
        chunks.append(pa.array(rows, pa.list_(pa.int32())))
    return pa.chunked_array(chunks, pa.list_(pa.int32()))


def check_tokens(tokens: Ragged, vocabulary: int, source: str) -> None:
    """Refuse completions that can't be scored; the first bad one is named."""
    for number, row in enumerate(tokens, 1):
        if not len(row):
            raise TOPRError(f"data.completions={source}: completion {number} is empty")
        if (token := int(row.max())) >= vocabulary:
            raise TOPRError(
                f"data.completions={source}: completion {number} has token id {token}, the model has {vocabulary}; "
                "leave out `tokens` to have the text tokenized"
            )
