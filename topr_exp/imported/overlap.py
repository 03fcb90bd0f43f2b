"""Test questions among the prompts of a log: what a run learns from them, its evaluation takes for ability."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from topr_exp.config.data import DataConfig
from topr_exp.data.problems import normalized, shown_texts
from topr_exp.models.policy import Policy
from topr_exp.runtime.terminal import plural, warn
from topr_exp.sampling.completions import Completions
from topr_exp.types import Problem

WORD = re.compile(r"\w+")


def warn_of_test_questions(
    completions: Completions, test_problems: Sequence[Problem], data: DataConfig, policy: Policy
) -> None:
    """Warn where prompts of a log ask what the run is tested on."""
    problem_indices = np.unique(completions.problem_index)  # of prompts that were not left out
    prompts = [policy.text_of(completions.prompts[index]) for index in problem_indices]
    count = count_asking(prompts, test_problems, data)
    if count:
        warn(
            f"data.completions={data.completions}: {count} of its {plural(len(prompts), 'prompt')} "
            f"{'asks' if count == 1 else 'ask'} a question that the run is tested on"
        )


def count_asking(prompts: Iterable[str], problems: Sequence[Problem], data: DataConfig) -> int:
    """Count the prompts that hold all texts of some problem, in any template, up to case and white space."""
    texts_and_words = []  # of each problem
    frequencies = Counter[str]()  # of words, in problems
    for problem in problems:
        texts = list(map(normalized, shown_texts(problem, data)))
        words = set(WORD.findall(" ".join(texts)))
        texts_and_words.append((texts, words))
        frequencies.update(words)
    texts_by_word: dict[str, list[list[str]]] = {}  # of each problem, by its rarest word
    for texts, words in texts_and_words:
        if words:
            rarest_word = min(words, key=frequencies.__getitem__)
            texts_by_word.setdefault(rarest_word, []).append(texts)
    count = 0
    for prompt in map(normalized, prompts):
        shared_words = texts_by_word.keys() & WORD.findall(prompt)
        candidates = chain.from_iterable(map(texts_by_word.__getitem__, shared_words))
        count += any(holds_all(prompt, texts) for texts in candidates)
    return count


def holds_all(prompt: str, texts: Iterable[str]) -> bool:
    """True where each of the texts stands in a prompt, not within a longer word or number."""
    return all(text in prompt and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", prompt) for text in texts)
