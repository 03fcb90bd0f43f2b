"""`python -m reproduce.findings [--check]`: write the tables of docs/findings.md and docs/findings_details.md.

Both pages hold lines of Python in comments, which cog runs and whose tables it writes below them. --check: only say
whether a page is as its records make it.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence

from reproduce import records
from reproduce.claims import Claim
from reproduce.records import ROOT, TRIED_RATES
from reproduce.tried_rates import CLIFF, Tried, best_rate, cliffs_beside

PAGES = ("docs/findings.md", "docs/findings_details.md")
PROLOGUE = "from reproduce.findings import *"
CLIFF_MARK = "°"
__all__ = ["choosing_scores", "chosen_rates", "claims", "evidence"]


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
            where, _, pattern = words.partition(": ")
            claim = find_claim(where, pattern.format(name))
            cells.append(claim_cell(claim))
        table.append(cells)
    print_table([head, *columns], table)


def evidence(where: str, text: str, form: str) -> None:
    """Print the last numbers of a claim's evidence, in a sentence with {} for them."""
    last_part = find_claim(where, text).evidence.rpartition("; ")[2]
    numbers = last_part.rpartition(": ")[2]
    print(form.format(numbers))


def chosen_rates(head: str, places: Mapping[str, str]) -> None:
    """Print how many of the chosen rates stand beside a cliff; places: label -> a pattern of the places' names."""
    tried_of_place = records.read_rates(TRIED_RATES)
    table = []
    for label, pattern in places.items():
        are_beside_cliffs: list[bool] = []
        for place, tried_of_loss in tried_of_place.items():
            if re.fullmatch(pattern, place):
                are_beside_cliffs += map(chosen_beside_cliff, tried_of_loss.values())
        table.append([label, str(len(are_beside_cliffs)), str(sum(are_beside_cliffs))])
    print_table([head, "chosen", f"beside one more than {CLIFF:g} points lower"], table)


def chosen_beside_cliff(tried: Tried) -> bool:
    return bool(cliffs_beside(tried, best_rate(tried)))


def choosing_scores(loss: str, places: Sequence[str], *, rate: float, form: str) -> None:
    """Print pass@1 at one rate of the first seed that chose rates, in a sentence with {} for the places' numbers."""
    tried_of_place = records.read_rates(TRIED_RATES)
    scores = [f"{tried_of_place[place][loss][rate][0]:.1f}" for place in places]
    print(form.format(", ".join(scores)))


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
