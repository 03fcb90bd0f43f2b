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
Texts = Sequence[str]  # normalized, of a problem


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
    texts_of_problems = []
    for problem in problems:
        texts = shown_texts(problem, data)
        texts_of_problems.append(list(map(normalized, texts)))
    texts_by_word = texts_by_rarest_word(texts_of_problems)
    count = 0
    for prompt in map(normalized, prompts):
        words = words_of([prompt])
        # A prompt that holds all texts of a problem holds its rarest word.
        candidates = chain.from_iterable(texts_by_word[word] for word in words & texts_by_word.keys())
        if any(holds_all(prompt, texts) for texts in candidates):
            count += 1
    return count


def texts_by_rarest_word(texts_of_problems: Sequence[Texts]) -> dict[str, list[Texts]]:
    """Map each word to the texts of the problems whose rarest word it is; texts without words are left out."""
    problem_counts = Counter[str]()  # by word
    for texts in texts_of_problems:
        problem_counts.update(words_of(texts))
    texts_by_word: dict[str, list[Texts]] = {}
    for texts in texts_of_problems:
        words = words_of(texts)
        if words:
            rarest_word = min(words, key=problem_counts.__getitem__)
            texts_by_word.setdefault(rarest_word, []).append(texts)
    return texts_by_word


def words_of(texts: Texts) -> set[str]:
    return set(WORD.findall(" ".join(texts)))


def holds_all(prompt: str, texts: Texts) -> bool:
    """True where each of the texts stands in a prompt, not within a longer word or number."""
    return all(text in prompt and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", prompt) for text in texts)
