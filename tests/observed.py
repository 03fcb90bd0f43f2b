"""What a test sees of a run from outside: requests to a sampler of its own, and models as they are read."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from topr_exp.config.model import SamplerConfig
from topr_exp.sampling.hf import HFSampler

OBSERVED = ["sampler._target_=tests.observed.Observed", "sampler.name=observed"]


class Observer:
    """Lists what is asked of samplers, in order; a test's own does more."""

    def __init__(self, calls=None):
        self.calls = [] if calls is None else calls

    def before_sample(self, policy, n):
        self.calls.append("sample")

    def after_sample(self, prompts, n, seed, groups):
        pass

    def before_close(self):
        self.calls.append("close")


observers = [Observer()]


@contextmanager
def observed(observer):
    """Tell the observer of each request to samplers of `OBSERVED`."""
    observers.append(observer)
    try:
        yield observer
    finally:
        observers.pop()


@dataclass(frozen=True, kw_only=True)
class Observed(SamplerConfig):
    """The settings of transformers' sampler."""

    def build_sampler(self):
        return ObservedSampler(self)


class ObservedSampler(HFSampler):
    def sample(self, policy, prompts, n, seed, *arguments):
        observers[-1].before_sample(policy, n)
        groups = super().sample(policy, prompts, n, seed, *arguments)
        observers[-1].after_sample(prompts, n, seed, groups)
        return groups

    def close(self):
        observers[-1].before_close()
        super().close()


@contextmanager
def reading_models(read):
    """Have runs read each model's folder by `read(folder, read_model)`, which returns the model."""
    from_pretrained = AutoModelForCausalLM.from_pretrained

    def read_weights(folder, **options):
        if "output_loading_info" not in options:  # a test's own
            return from_pretrained(folder, **options)
        reports = []

        def read_model():
            model, report = from_pretrained(folder, **options)
            reports.append(report)
            return model

        return read(Path(folder), read_model), *reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoModelForCausalLM, "from_pretrained", read_weights)
        yield
