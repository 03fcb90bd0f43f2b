"""Runs that break off and are given again."""

from collections.abc import Callable
from typing import Any

import pytest

from topr_exp.config.settings import Config
from topr_exp.pipeline import run
from topr_exp.sampling.hf import HFSampler
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError


def break_off(config: Config, breaks_off: Callable[[Trainer], bool]) -> None:
    """Run until before the first update of which that holds."""
    update = Trainer.update

    def fails(self: Trainer, *arguments: Any, **more: Any) -> dict[str, float]:
        if breaks_off(self):
            raise TOPRError("on the way")
        return update(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "update", fails)
        with pytest.raises(TOPRError, match="on the way"):
            run(config)


def record_engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the sampler from now on, in order: "sample" and "close"."""
    order: list[str] = []

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(HFSampler, name)

        def called(*arguments: Any, **more: Any) -> Any:
            order.append(name)
            return method(*arguments, **more)

        return called

    for name in ("sample", "close"):
        monkeypatch.setattr(HFSampler, name, recorded(name))
    return order
