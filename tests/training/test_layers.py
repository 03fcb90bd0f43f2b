"""Compiled layers: the same numbers within rounding, and passes with a cache as before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_model
from tests.training.test_packing import CASES, assert_same, scored, use_layout
from tests.training.test_trainer import TOPR, make_examples, new_trainer, optim, weights
from topr_exp.runtime.machine import cxx_compiler
from topr_exp.training.layers import compile_layers, layers_of

needs_compiler = pytest.mark.skipif(cxx_compiler() is None, reason="there is no C++ compiler")
OTHER_CASES = [("both", False), ("padded", False), ("padded", True)]
SEVERAL_LENGTHS = [np.arange(0, 4), np.arange(4, 8), np.arange(2, 7)]


@pytest.mark.extended
@needs_compiler
@pytest.mark.parametrize(
    ("layout", "recompute"), [("both", True), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_CASES)]
)
def test_compiled_layers_give_the_same_scores_and_gradients(monkeypatch: Any, layout: str, recompute: bool) -> None:
    model = make_model(11, initializer_range=0.2)
    use_layout(monkeypatch, layout)
    expected = scored(model, CASES["both"])
    compile_layers(model)
    compiled = scored(model, CASES["both"], recompute=recompute)
    assert_same(compiled, expected, 1e-5)


def test_passes_with_a_cache_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(11)
    calls = []

    def counting_compile(forward: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def compiled(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            return forward(*arguments, **options)

        return compiled

    monkeypatch.setattr(torch, "compile", counting_compile)
    compile_layers(model)
    ids = torch.tensor([[1, 2, 3]])
    model(input_ids=ids, use_cache=True)
    assert calls == []
    model(input_ids=ids, use_cache=False)
    assert len(calls) == len(layers_of(model))


@pytest.mark.extended
@needs_compiler
def test_updates_with_compiled_layers_stay_within_rounding_and_resume_to_the_same_bits(
    tmp_path: Path, make_policy: Any
) -> None:
    def train(name: str, *, resumes: bool = False, **changes: Any) -> torch.Tensor:
        policy = make_policy(make_model(11))
        examples = make_examples(policy, TOPR)
        trainer = new_trainer(policy, TOPR, optim(**changes), tmp_path / name)
        for step, batch in enumerate(SEVERAL_LENGTHS):
            if resumes and step == 2:
                trainer.save({})
                trainer = new_trainer(make_policy(make_model(11)), TOPR, optim(**changes), tmp_path / name)
            trainer.update(examples, batch, len(SEVERAL_LENGTHS), expect_unit_ratio=step == 0)
        return weights(trainer)

    eager = train("eager")
    compiled = train("compiled", compile=True)
    resumed = train("resumed", resumes=True, compile=True)
    assert (compiled - eager).abs().max() < 1e-5
    assert torch.equal(compiled, resumed)
