"""`python -m topr_exp.losses`: what losses say of themselves, weights against formulas, every loss in both tables."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.extending import list_items
from topr_exp.algorithms.base import Loss
from topr_exp.losses import DELTAS, arxiv, load_losses, main
from topr_exp.report.loss_figure import AXES, panels
from topr_exp.report.loss_weights import answer_batch, weights
from topr_exp.training.contract import checked_output
from topr_exp.types import Batch, LossOutput

LOSSES = load_losses([])


@pytest.mark.parametrize("tokens", [1, 10])
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("topr", lambda delta: 1.0, lambda delta: min(math.exp(delta), 1.0)),
        ("tis", lambda delta: min(math.exp(delta), 1.0), lambda delta: min(math.exp(delta), 1.0)),
        ("sft", lambda delta: 1.0, lambda delta: 0.0),
        ("dpo", lambda delta: 2 / (1 + math.exp(0.1 * delta)), lambda delta: 2 / (1 + math.exp(-0.1 * delta))),
        ("opmd", lambda delta: 1 - 0.1 * delta, lambda delta: 1 + 0.1 * delta),
    ],
)
def test_weights_are_the_formulas(name: str, right, wrong, tokens: int) -> None:
    for verdict, formula in ((True, right), (False, wrong)):
        assert weights(LOSSES[name], verdict, tokens, DELTAS) == pytest.approx([formula(delta) for delta in DELTAS])


def test_token_ratios_depend_on_the_length() -> None:
    short, long = (weights(LOSSES["cispo"], True, tokens, [3.0])[0] for tokens in (1, 10))
    assert short == pytest.approx(5.0)  # the cap
    assert long == pytest.approx(math.exp(0.3))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_describes_itself(name: str) -> None:
    """Its paper is that of the documents and of its YAML, and it says so if it drops tokens."""
    described = LOSSES[name]
    assert described.paper is not None
    methods = list_items((ROOT / "docs" / "losses.md").read_text())
    methods_of_loss = [method for method in methods if re.search(rf": `algo={name}[` ]", method)]
    assert any(described.paper.arxiv in method for method in methods_of_loss)
    (comment, *_) = (ROOT / "conf" / "algo" / f"{name}.yaml").read_text().splitlines()
    assert described.paper.arxiv in comment
    _, batch = answer_batch(described, is_right=True, length=1, delta=0.0)
    assert described.drops_tokens == bool({"masked", "kept"} & checked_output(described, batch).metrics.keys())


def test_the_table_and_the_picture_have_every_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, described in LOSSES.items():
        first, *weight_rows = [line for line in lines if line.split()[:1] == [name]]
        assert arxiv(described) in first
        assert described.needs <= {*re.split(r"\s{2,}|, ", first)}
        assert len(weight_rows) == 2 * 3
    assert main(["topr", "dpo", "--plot", str(tmp_path / "weights.png")]) == 0
    assert (tmp_path / "weights.png").stat().st_size > 10_000


@dataclass(frozen=True)
class OfBoth(Loss):
    """A loss whose weight goes by an answer's log-ratio and by its length."""

    def __call__(self, batch: Batch) -> LossOutput:
        delta = (batch.logp - batch.mu_logp).sum(-1)
        return LossOutput(-batch.reward * (delta.exp() + delta * batch.mask.sum(-1)))


@pytest.mark.extended
def test_the_picture_shows_a_loss_by_what_its_weight_depends_on_and_equal_ones_together() -> None:
    names = ("topr", "is", "policy_gradient", "grpo", "decoupled_ppo", "rec")
    panels_by_axis = panels({name: LOSSES[name] for name in names} | {"of_both": OfBoth("of_both")})
    by_answer, by_token, of_ten_tokens = AXES
    assert [panel.names for panel in panels_by_axis[by_answer]] == [["topr"], ["is", "policy_gradient"]]
    assert [panel.names for panel in panels_by_axis[by_token]] == [["grpo", "decoupled_ppo"], ["rec"]]
    assert [panel.names for panel in panels_by_axis[of_ten_tokens]] == [["of_both"]]
    topr = panels_by_axis[by_answer][0]
    x = by_answer.ticks(len(topr.right))
    assert topr.right == pytest.approx(np.ones(len(x)))
    assert topr.wrong == pytest.approx(np.minimum(np.exp(x), 1))
