"""Problems with their prompts as token ids: what a sampler gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topr_exp.data.prompts import Prompter
from topr_exp.types import Problem, TOPRError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenizedProblems:
    """Problems whose prompt leaves room for a whole completion in the model's context."""

    problems: list[Problem]
    prompts: list[NDArray[np.int32]]
    stop: tuple[str, ...]
    too_long: int  # problems left out: the prompt is longer than the context admits


def tokenize_prompts(
    problems: Sequence[Problem], prompter: Prompter, policy: Any, max_new_tokens: int
) -> TokenizedProblems:
    """Render and encode the prompts; what doesn't fit into the context with `max_new_tokens` is left out and counted.

    Raises TOPRError when nothing fits.
    """
    if not problems:
        raise TOPRError("no problem is left: every training question is also a test question")
    room = policy.context - max_new_tokens
    prompts = [
        policy.encode(prompter.render(problem.question, policy.tokenizer, problem.fields)) for problem in problems
    ]
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt) <= room]
    if not fitting:
        raise TOPRError(
            f"no prompt fits: the shortest of {len(prompts)} has {min(map(len, prompts))} tokens, the model's context "
            f"of {policy.context} less sampler.max_new_tokens={max_new_tokens} leaves {room}"
        )
    return TokenizedProblems(
        [problems[i] for i in fitting], [prompts[i] for i in fitting], prompter.stop, len(prompts) - len(fitting)
    )
