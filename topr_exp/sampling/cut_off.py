"""Completions that the token limit cut off: their share, and the line that warns of many."""

import numpy as np
from numpy.typing import NDArray

from topr_exp.runtime.terminal import warn

MOST_CUT_OFF = 0.05  # of the completions; above it is worth a warning
REMEDY = "compose.drop_truncated=true leaves them out"


def warn_of_imported(truncated: NDArray[np.bool_]) -> None:
    """Warn where more than MOST_CUT_OFF of a log's completions were cut off; truncated: [rows]."""
    share = float(truncated.mean())
    if share > MOST_CUT_OFF:
        warn(f"{100 * share:.1f} % of the completions were cut off: as wrong answers they teach shortness ({REMEDY})")


def warn_of_tested(truncated: NDArray[np.bool_], limit: int) -> None:
    """Warn where more than MOST_CUT_OFF of the answers to test problems were cut off; truncated: [rows]."""
    share = float(truncated.mean())
    if share > MOST_CUT_OFF:
        warn(
            f"{100 * share:.1f} % of the answers to test problems were cut off by sampler.max_new_tokens={limit}, and "
            "most of these have no answer that can be read: raise it"
        )


def warn_of_sampled(truncated: NDArray[np.bool_], limit: int, *, dropped: bool | None) -> bool:
    """Warn where more than MOST_CUT_OFF of what was sampled to train on was cut off; returns whether it did.

    truncated: [rows]. limit: sampler.max_new_tokens. dropped: they are left out; None: they can't be (rounds).
    """
    share = float(truncated.mean())
    if share <= MOST_CUT_OFF:
        return False
    line = f"{100 * share:.1f} % of the completions to train on were cut off by sampler.max_new_tokens={limit}"
    if dropped:
        warn(f"{line} and are left out (compose.drop_truncated=true): raise it")
    elif dropped is None:
        warn(f"{line}: as wrong answers they teach shortness; raise it")
    else:
        warn(f"{line}: as wrong answers they teach shortness; raise it ({REMEDY})")
    return True
