"""Runs that break off and are given again."""

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from topr_exp.pipeline import run
from topr_exp.types import TOPRError


def break_off(config, updates):
    """Run until an optimizer's step fails, after this many updates."""
    steps = []

    def fail_late(*_):
        steps.append(1)
        if len(steps) > updates:
            raise TOPRError("on the way")

    hook = register_optimizer_step_pre_hook(fail_late)
    try:
        with pytest.raises(TOPRError, match="on the way"):
            run(config)
    finally:
        hook.remove()
