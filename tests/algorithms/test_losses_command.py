"""`python -m topr_exp.losses`: what losses say of themselves, weights against formulas, every loss in both tables."""

import math
import re

import pytest

from tests.algorithms.tabular_policies import load, mask_of
from tests.conftest import ROOT, values_of
from tests.extending import list_items
from topr_exp.losses import DELTAS, arxiv, load_losses, main
from topr_exp.report.loss_figure import AXES, panels
from topr_exp.report.loss_weights import MovedCompletion, batch_with, weights
from topr_exp.training.loss_checks import checked_output

LOSSES = load_losses([])
OWN_LOSSES = {
    "centered": load("policy_gradient", a_pos=1, b_pos=1, a_neg=1, b_neg=1, ratio="token", center_scores=True),
    "ending_at_mu": load("policy_gradient", mask=[mask_of("ratio", "token", 2.0, None)]),  # no weight below ratio 2
}
METHODS = list_items((ROOT / "docs/losses.md").read_text())
WEIGHTS = {  # of a completion that is correct, or not
    "topr": {True: lambda delta: 1.0, False: lambda delta: min(math.exp(delta), 1.0)},
    "dpo": {
        True: lambda delta: 2 / (1 + math.exp(0.1 * delta)),
        False: lambda delta: 2 / (1 + math.exp(-0.1 * delta)),
    },
    "opmd": {True: lambda delta: 1 - 0.1 * delta, False: lambda delta: 1 + 0.1 * delta},
    "centered": {True: lambda delta: 1.0, False: lambda delta: 1.0},
    "ending_at_mu": {True: lambda delta: math.nan, False: lambda delta: math.nan},
}


@pytest.mark.parametrize("tokens", [1, 10])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_the_formulas(name, tokens):
    for is_correct, formula in WEIGHTS[name].items():
        values = weights((LOSSES | OWN_LOSSES)[name], is_correct=is_correct, length=tokens, deltas=DELTAS)

        assert values == pytest.approx(list(map(formula, DELTAS)), nan_ok=True)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_describes_itself(name):
    """Its paper is that of the documents and of its YAML, and it says so if it drops tokens."""
    loss = LOSSES[name]
    comment, *_ = (ROOT / f"conf/algo/{name}.yaml").read_text().splitlines()
    assert loss.paper.arxiv in comment
    settings = re.compile(rf": `algo={name}[` ]")
    methods = filter(settings.search, METHODS)
    assert loss.paper.arxiv in " ".join(methods)

    _, batch = batch_with(loss, MovedCompletion(is_correct=True, length=1, delta=0.0))
    metrics = checked_output(loss, batch).metrics
    assert loss.drops_tokens == bool({"masked", "kept"} & metrics.keys())


def test_the_table_has_every_loss(capsys):
    assert main([]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "incorrect completions of 1 token, by Δ" in lines
    for name, loss in LOSSES.items():
        description, *weight_rows = [line for line in lines if line.startswith(f"{name} ")]
        assert arxiv(loss) in description
        assert loss.needs <= {*re.split(r"\s{2,}|, ", description)}
        assert len(weight_rows) == 2 * 3


@pytest.mark.extended
def test_equal_losses_share_a_line_of_the_picture(tmp_path):
    losses = {name: LOSSES[name] for name in ("topr", "is", "policy_gradient")}
    curves = panels(losses)[AXES[0]]
    assert values_of(curves, "names") == [["topr"], ["is", "policy_gradient"]]

    picture = tmp_path / "weights.png"
    assert main(["topr", "dpo", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 10_000
