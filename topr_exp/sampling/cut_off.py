"""Warnings of many completions that the token limit cut off."""

from topr_exp.runtime.terminal import warn
from topr_exp.sampling.completions import Flags

MOST_CUT_OFF = 0.05  # of the completions; above it is worth a warning
REMEDY = "compose.drop_truncated=true leaves them out"
TEACH_SHORTNESS = "as negatives they teach shortness"


def warn_of_imported(is_truncated: Flags) -> None:
    """Warn where many completions of a log were cut off; is_truncated: [rows]."""
    warn_of_many(is_truncated, f"completions were cut off: {TEACH_SHORTNESS} ({REMEDY})")


def warn_of_tested(is_truncated: Flags, limit: int) -> None:
    """Warn where many completions of test problems were cut off; is_truncated: [rows]."""
    warn_of_many(
        is_truncated,
        f"completions of test problems were cut off by sampler.max_new_tokens={limit}, and in most of these no answer "
        "can be read: raise it",
    )


def warn_of_sampled(is_truncated: Flags, limit: int, *, dropped: bool | None) -> bool:
    """Warn where many of the completions sampled to train on were cut off; returns whether it did.

    is_truncated: [rows]. limit: sampler.max_new_tokens. dropped: they are left out; None: they can't be (rounds).
    """
    consequence = f": {TEACH_SHORTNESS}; raise it"
    if dropped:
        consequence = " and are left out (compose.drop_truncated=true): raise it"
    elif dropped is False:
        consequence += f" ({REMEDY})"
    fault = f"completions to train on were cut off by sampler.max_new_tokens={limit}{consequence}"
    return warn_of_many(is_truncated, fault)


def warn_of_many(is_truncated: Flags, fault: str) -> bool:
    """Warn where more than MOST_CUT_OFF are cut off, with the share before `fault`; returns whether it did."""
    share = float(is_truncated.mean())
    if share > MOST_CUT_OFF:
        warn(f"{100 * share:.1f} % of the {fault}")
        return True
    return False
