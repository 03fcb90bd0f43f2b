"""`python -m topr_exp.paper.rates [FOLDER]`: write the learning rates that validation problems chose into conf."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from topr_exp.config.resolvers import LEARNING_RATES
from topr_exp.paper import records
from topr_exp.paper.learning_rates import choose
from topr_exp.report.selection import Runs
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.files import write_text
from topr_exp.types import TOPRError


def main(given: list[str] | None = None) -> int:
    """The command; exit status 1, with one line, where nothing is recorded or the algorithms were tried unevenly."""
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.paper.rates",
        description="Write the learning rates that validation problems chose into conf/learning_rates.json; "
        "algorithms and models that were not tried keep what they have.",
    )
    wrote = "what `python -m topr_exp.paper learning_rates --full` wrote (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"), metavar="FOLDER", help=wrote)
    return exit_status(partial(write_rates, parser.parse_args(given).folder / "learning_rates.json"))


def write_rates(path: Path) -> int:
    found = Runs(list(records.known(records.read(path)).values()))
    if not len(found):
        raise TOPRError(f"{path} records no runs; python -m topr_exp.paper learning_rates --full makes them")
    try:
        chosen = choose(found)
    except ValueError as error:
        raise TOPRError(str(error)) from None
    rates = json.loads(LEARNING_RATES.read_text(encoding="utf-8"))
    for model, by_algorithm in chosen.items():
        known = rates.setdefault(model, {})
        for name, rate in by_algorithm.items():
            print(f"{model:12} {name:16} {known.get(name, 'none')} -> {rate:g}")
            known[name] = rate
    write_text(LEARNING_RATES, json.dumps(rates, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
