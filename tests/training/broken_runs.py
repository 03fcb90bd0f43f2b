"""Runs that break off and are given again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topr_exp.config.settings import Config
from topr_exp.pipeline import run
from topr_exp.sampling.sampler import HFSampler
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError


def run_twice(config: Config, breaks_off: Callable[[Trainer], bool]) -> dict[str, Any]:
    """The summary of a run that breaks off before the first update of which that holds, and then goes on."""
    break_off(config, breaks_off)
    return run(config)


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


def records(folder: Path) -> list[dict[str, Any]]:
    """What a run logged of its updates, but for their speed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


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
