"""Runs that break off and are given again."""

import pytest

from topr_exp.pipeline import run
from topr_exp.sampling.hf import HFSampler
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError


def break_off(config, breaks_off):
    """Run until before the first update for whose trainer `breaks_off` holds."""
    update = Trainer.update

    def fail(self, *arguments, **options):
        if breaks_off(self):
            raise TOPRError("on the way")
        return update(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "update", fail)
        with pytest.raises(TOPRError, match="on the way"):
            run(config)


def record_engine(monkeypatch):
    """What is asked of the sampler from now on, in order: "sample" and "close"."""
    calls = []

    def recorded(name, method):
        def call(*arguments, **options):
            calls.append(name)
            return method(*arguments, **options)

        return call

    for name in ("sample", "close"):
        monkeypatch.setattr(HFSampler, name, recorded(name, getattr(HFSampler, name)))
    return calls
