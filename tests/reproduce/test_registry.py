"""Every claim of every figure has a world in which it is true and one in which it is not."""

from __future__ import annotations

import pytest

from reproduce.figure import Figure
from reproduce.records import known
from reproduce.registry import FIGURES
from tests.reproduce import (
    test_agro,
    test_beyond,
    test_iterations,
    test_learning_rates,
    test_length,
    test_limits,
    test_proportions,
    test_staleness_long,
    test_tabular,
    test_training,
    test_verifier,
)
from tests.reproduce.worlds import Worlds, paired, recorded
from topr_exp.report.selection import Runs

WORLDS: dict[str, Worlds] = {
    "fig1": test_training.figure_1,
    "fig2": test_tabular.figure_2,
    "fig3": test_training.figure_3,
    "fig4": test_training.figure_4,
    "fig5": test_proportions.figure_5,
    "fig6": test_proportions.figure_6,
    "fig7": test_training.figure_7,
    "fig8": test_iterations.figure_8,
    "fig9": test_iterations.figure_9,
    "table1": test_limits.table_1_worlds,
    "table2": test_verifier.table_2,
    "agro_fig1": test_tabular.agro_figure_1,
    "agro_kl": test_agro.kl_worlds,
    "agro_replay": test_agro.replay_worlds,
    "related": test_training.related,
    "learning_rates": test_learning_rates.worlds,
    "ratio": test_beyond.ratio_worlds,
    "mu": test_beyond.mu_worlds,
    "staleness": test_beyond.staleness_worlds,
    "length_rates": test_length.rates_worlds,
    "length": test_length.length_worlds,
    "length_bias": test_length.bias_worlds,
    "staleness_long": test_staleness_long.worlds,
    "map": test_proportions.the_map,
}
# Said only where it is not so, in place of the others.
NEVER_SHOWN = {("learning_rates", test_learning_rates.EVEN), ("length_rates", test_length.EVEN)}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.name)
def test_every_claim_has_a_world_where_it_is_true_and_one_where_it_is_not(figure: Figure) -> None:
    """Every claim that docs/results makes, and every one that is made in one of the worlds."""
    assert figure.name in WORLDS, f"{figure.name} has no made-up records: add worlds and name them here"
    worlds = WORLDS[figure.name]()
    assert {world.figure for world in worlds} == {figure.name}
    sentences = {claim.text for world in worlds for claim in world.claims()}
    stored = recorded(figure.name)
    for group in Runs(list(known(stored).values())).split("model.name").values():
        sentences |= {claim.text for claim in figure.judge(group, stored["extra"])}
    assert sentences
    without = {(figure.name, sentence) for sentence in sentences} - paired(worlds) - NEVER_SHOWN
    assert not without, "no world where this is shown, or none where it is not; read the sentence and add both"
