"""Log-probabilities of a log that no sampler can have drawn the completions with."""

import numpy as np
import pyarrow as pa

from topr_exp.sampling.completions import ProblemIndex
from topr_exp.store import Ragged
from topr_exp.types import TOPRError

MOST_ZERO = 0.99  # of the log-probabilities; a sampler that cuts the distribution (top_p=0.8) gives 0 for most tokens
MOST_CONTRADICTIONS = 0.01  # of the completions: those of probability 1 beside a different one to the same prompt
FEW = 8  # tokens of a log that may all have one value by chance


def check_given_logprobs(columns: pa.Table, problem_index: ProblemIndex, source: str) -> None:
    """Raise TOPRError for log-probabilities that are fill values: one value for all, or 0 where that can't be."""
    fault = logprobs_fault(Ragged(columns["sampler_logp"]), Ragged(columns["tokens"]), problem_index)
    if fault is not None:
        raise TOPRError(
            f"data.completions={source}: {fault}, which no sampler gives; mu=NAME scores the completions by the "
            "model that drew them, data.columns={logprobs: NAME} names another column"
        )


def logprobs_fault(logprobs: Ragged, tokens: Ragged, problem_index: ProblemIndex) -> str | None:
    """Say why log-probabilities must be fill values; None for sound ones."""
    value_count = zero_count = 0
    lowest = np.inf
    highest = -np.inf
    for values in logprobs:  # one completion's at a time: of 10^9 tokens they are 4 GB
        value_count += len(values)
        zero_count += int((values == 0).sum())
        lowest = values.min(initial=lowest)
        highest = values.max(initial=highest)
    if value_count >= FEW and lowest == highest:
        return f"all {value_count:,} log-probabilities are {lowest:g}"
    zero_share = zero_count / max(value_count, 1)
    if zero_share > MOST_ZERO:
        return f"{100 * zero_share:.1f} % of the log-probabilities are exactly 0"
    # Where two different completions of a prompt have probability 1 each, neither has.
    contradictions = count_contradictions(logprobs, tokens, problem_index)
    if contradictions > MOST_CONTRADICTIONS * len(tokens):
        return (
            f"the log-probabilities of {contradictions:,} of {len(tokens):,} completions are all exactly 0, and so "
            "are those of another completion to the same prompt"
        )
    return None


def count_contradictions(logprobs: Ragged, tokens: Ragged, problem_index: ProblemIndex) -> int:
    """Count the completions of probability 1 whose prompt has a different one of probability 1."""
    certain_completions: dict[int, list[bytes]] = {}
    for row, problem in enumerate(problem_index.tolist()):
        is_certain = not np.any(logprobs[row])
        if is_certain:
            completion = np.asarray(tokens[row], np.int64).tobytes()
            certain_completions.setdefault(problem, []).append(completion)
    count = 0
    for completions in certain_completions.values():
        if len(set(completions)) > 1:
            count += len(completions)
    return count
