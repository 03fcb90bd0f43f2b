"""Figures in the page's order: a file each, with what runs, what is drawn and what is claimed."""

from reproduce.figures import (
    agro_fig1,
    agro_kl,
    agro_replay,
    centering,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    frameworks,
    lag,
    learning_rates,
    length_bias,
    map,  # noqa: A004 - the figure's name
    masks,
    mismatch,
    mu,
    nats,
    ratio,
    related,
    staleness_by_rate,
    table1,
    table2,
)

PAPERS = (fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, table1, table2, agro_fig1, agro_kl, agro_replay)
STUDIES = (
    related,
    learning_rates,
    ratio,
    mu,
    staleness_by_rate,
    lag,
    mismatch,
    centering,
    masks,
    nats,
    frameworks,
    length_bias,
    map,
)
FIGURES = tuple(module.FIGURE for module in (*PAPERS, *STUDIES))
