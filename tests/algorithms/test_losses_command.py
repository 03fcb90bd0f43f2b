"""`python -m topr_exp.losses`: weights against their formulas, and every loss in the table and the picture."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from topr_exp.api import loss
from topr_exp.config.yamls import CONF
from topr_exp.losses import AXES, DELTAS, main, panels, paper, weights
from topr_exp.types import Batch, LossOutput


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
        assert weights(loss(name), verdict, tokens, DELTAS) == pytest.approx([formula(delta) for delta in DELTAS])


def test_token_ratios_depend_on_the_length() -> None:
    short, long = (weights(loss("cispo"), True, tokens, [3.0])[0] for tokens in (1, 10))
    assert short == pytest.approx(5.0)  # the cap
    assert long == pytest.approx(math.exp(0.3))


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "algo").glob("*.yaml")))
def test_the_paper_of_a_loss_is_that_of_the_documents(name: str) -> None:
    rows = (ROOT / "docs" / "algorithms.md").read_text().splitlines()
    mine = [row for row in rows if f"`algo={name}`" in row or f"`algo={name} " in row]
    assert any((paper(name).removeprefix("arXiv ") or "| |") in row for row in mine)


def test_the_table_and_the_picture_have_every_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    drop = {line.split()[0] for line in lines if "drops tokens" in line}
    assert {"m2po", "icepop", "dppo_tv", "trust_region_mask"} <= drop
    assert not drop & {"topr", "ppo", "dpo", "decoupled_ppo", "cispo"}
    for name in ("topr", "vespo", "kl_pg", "trust_region_mask", "dpo", "agro_on_policy"):
        assert sum(line.split()[:1] == [name] for line in lines) == 1 + 2 * 3
    assert [line for line in lines if line.startswith("topr") and "2503.14286" in line]
    assert main(["topr", "dpo", "--plot", str(tmp_path / "weights.png")]) == 0
    assert (tmp_path / "weights.png").stat().st_size > 10_000


@dataclass(frozen=True)
class OfBoth:
    """A loss whose weight goes by an answer's log-ratio and by its length."""

    name: str = "of_both"
    needs: frozenset[str] = frozenset()

    def __call__(self, batch: Batch) -> LossOutput:
        delta = (batch.logp - batch.mu_logp).sum(-1)
        return LossOutput(-batch.reward * (delta.exp() + delta * batch.mask.sum(-1)))


@pytest.mark.extended
def test_the_picture_shows_a_loss_by_what_its_weight_depends_on_and_equal_ones_together() -> None:
    names = ("topr", "is", "policy_gradient", "grpo", "decoupled_ppo", "rec")
    found = panels({name: loss(name) for name in names} | {"of_both": OfBoth()})
    by_answer, by_token, of_ten_tokens = AXES
    assert [panel.names for panel in found[by_answer]] == [["topr"], ["is", "policy_gradient"]]
    assert [panel.names for panel in found[by_token]] == [["grpo", "decoupled_ppo"], ["rec"]]
    assert [panel.names for panel in found[of_ten_tokens]] == [["of_both"]]
    topr = found[by_answer][0]
    x = by_answer.places(len(topr.right))
    assert topr.right == pytest.approx(np.ones(len(x)))
    assert topr.wrong == pytest.approx(np.minimum(np.exp(x), 1))
