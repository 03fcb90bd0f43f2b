"""`python -m reproduce.findings [--check]`: write the tables of docs/findings.md and docs/findings_details.md.

Both pages name functions of reproduce/finding_tables.py in comments, below which cog writes what they print. --check:
only say whether a page is as its records make it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence

from reproduce import records
from reproduce.claims import Claim
from reproduce.records import ROOT, TRIED_RATES
from reproduce.tried_rates import Tried, best_rate, cliffs_beside

PAGES = ("docs/findings.md", "docs/findings_details.md")
PROLOGUE = "from reproduce.finding_tables import *"
CLIFF_MARK = "°"


def claims(head: str, rows: Sequence[str] | Mapping[str, str], columns: Mapping[str, str]) -> None:
    """Print claims as a table of differences in points, with what is not sure of each.

    rows: labels, and the names by which the claims call them where these differ. columns: title -> "FIGURE MODEL:
    CLAIM", with {} for the name.
    """
    if isinstance(rows, Mapping):
        name_of_label = rows
    else:
        name_of_label = {label: label for label in rows}
    table = []
    for label, name in name_of_label.items():
        cells = [label]
        for words in columns.values():
            where, _, text = words.format(name).partition(": ")
            cells.append(claim_cell(find_claim(where, text)))
        table.append(cells)
    print_table([head, *columns], table)


def count_rates_beside_cliffs() -> tuple[int, int]:
    """How many learning rates were chosen, and how many of them stand beside a cliff."""
    are_beside_cliffs: list[bool] = []
    for tried_of_loss in records.read_rates(TRIED_RATES).values():
        are_beside_cliffs += map(chosen_beside_cliff, tried_of_loss.values())
    return len(are_beside_cliffs), sum(are_beside_cliffs)


def chosen_beside_cliff(tried: Tried) -> bool:
    return bool(cliffs_beside(tried, best_rate(tried)))


# ---- from the records


def find_claim(where: str, text: str) -> Claim:
    """The claim of a figure and model; where: "FIGURE MODEL"."""
    figure, model = where.split()
    for claim in decided_claims(figure)[model]:
        if claim.text == text:
            return claim
    raise AssertionError(f"{where}: no claim {text!r}")


@functools.cache
def decided_claims(name: str) -> dict[str, list[Claim]]:
    """The claims of a figure by model, corrected over all of them."""
    from reproduce.figures import FIGURES

    figure_of = {figure.name: figure for figure in FIGURES}
    stored = records.read(TRIED_RATES.with_name(f"{name}.json"))
    return figure_of[name].decide(records.runs_of(stored), stored["extra"])


# ---- as Markdown


def claim_cell(claim: Claim) -> str:
    """A difference with its interval, and what is not sure of it."""
    assert claim.interval is not None, f"{claim.text}: not about a difference of shares"
    text = claim.interval.percent(sign=True).replace("-", "−")
    if claim.beside_cliff:
        text += CLIFF_MARK
    if claim.left_open:
        text += " *alone*"
    elif claim.holds is None:
        text += " *undecided*"
    return text


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table between empty lines, which Markdown needs beside a comment."""
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def main(words: Sequence[str]) -> int:
    """Write the pages, or with --check compare them; returns an exit status."""
    from cogapp import Cog

    action = ["-r"]
    if "--check" in words:
        action = ["--check", "--diff"]
    pages = [str(ROOT / page) for page in PAGES]
    return int(Cog().main(["cog", "-P", "-n", "utf-8", "-p", PROLOGUE, *action, *pages]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
