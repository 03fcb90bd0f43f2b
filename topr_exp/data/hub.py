"""Problems from the Hugging Face hub, each data set at one fixed revision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topr_exp.types import TOPRError

MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


@dataclass(frozen=True)
class Source:
    """One split of a data set on the hub."""

    path: str
    configs: tuple[str | None, ...]
    split: str
    revision: str


# MATH's 7,500 training problems; MATH-500 is a part of MATH's test problems, so the two have none in common.
GSM8K_REVISION = "740312add88f781978c0658806c59bc2815b9866"
SOURCES = {
    ("gsm8k", "train"): Source("openai/gsm8k", ("main",), "train", GSM8K_REVISION),
    ("gsm8k", "test"): Source("openai/gsm8k", ("main",), "test", GSM8K_REVISION),
    ("math", "train"): Source(
        "EleutherAI/hendrycks_math", MATH_SUBJECTS, "train", "21a5633873b6a120296cce3e2df9d5550074f4a3"
    ),
    ("math", "test"): Source("HuggingFaceH4/MATH-500", (None,), "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
}


def origin(name: str, split: str) -> str:
    """The data set of a split of gsm8k or math, and its revision."""
    source = SOURCES[name, split]
    return f"{source.path}@{source.revision[:8]}"


def rows(name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A split's rows, each named by data set and number.

    Raises TOPRError, which says how to give a folder, when the hub can't be reached.
    """
    source = SOURCES[name, split]
    index = 0
    for config in source.configs:
        for row in load(source, config):
            yield f"{source.path} row {index}", row
            index += 1


def load(source: Source, config: str | None) -> Any:
    import logging

    from datasets import load_dataset

    # The client announces each of its retries; the one line below says it all.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return load_dataset(source.path, config, split=source.split, revision=source.revision)
    except Exception as error:
        # The client raises many types (connection, time-out, offline mode, missing); the way out is the same.
        reason = (str(error).strip().splitlines() or [""])[0]
        raise TOPRError(
            f"data.source=hub: {source.path} can't be read ({type(error).__name__}: {reason}); without the hub, "
            f"give a folder with the same fields: data.source=FOLDER"
        ) from error
