"""Errors of imported completions that can't be trained on, before a run starts and when it reads them."""

from __future__ import annotations

from topr_exp.types import TOPRError


def unknown_problem(source: str, number: int, name: str | None) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: completion {number} answers problem_id {name!r}, which is not among the training "
        "problems (data.train_problems=null takes all); or give question and gold"
    )


def empty(source: str, number: int) -> TOPRError:
    return TOPRError(f"data.completions={source}: completion {number} is empty")


def unknown_token(source: str, number: int, token: int, vocabulary: int) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: completion {number} has token id {token}, the model has {vocabulary}; leave out "
        "`tokens` to have the text tokenized"
    )


def missing_column(source: str, name: str) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: a table without {name}; write it to a file (python -m topr_exp.store export) and "
        "give that"
    )
