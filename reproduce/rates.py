"""`python -m reproduce.rates [FOLDER]`: write the learning rates that validation problems chose into conf."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import yaml

from reproduce import records
from reproduce.learning_rates import HEAD, LEARNING_RATES, choose, key_of, read_rates, tried_on_models
from reproduce.length import tried_at_lengths
from topr_exp.report.selection import Runs
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.files import write_text
from topr_exp.types import TOPRError

TRIED = {"learning_rates": tried_on_models, "length_rates": tried_at_lengths}  # by the figure that tries them


def main(given: list[str] | None = None) -> int:
    """The command; exit status 1, with one line, where nothing is recorded or the algorithms were tried unevenly."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduce.rates",
        description="Write the learning rates that validation problems chose into conf/learning_rates.yaml; "
        "algorithms and models that were not tried keep what they have.",
    )
    wrote = "what `python -m reproduce learning_rates length_rates --full` wrote (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"), metavar="FOLDER", help=wrote)
    return exit_status(partial(write_rates, parser.parse_args(given).folder))


def write_rates(folder: Path) -> int:
    tried: dict[str, dict[str, Runs]] = {}
    for name, by_place in TRIED.items():
        tried |= by_place(Runs(list(records.known(records.read(folder / f"{name}.json")).values())))
    if not tried:
        figures = " ".join(TRIED)
        raise TOPRError(f"{folder} records no runs; python -m reproduce {figures} --full makes them")
    try:
        chosen = choose(tried)
    except ValueError as error:
        raise TOPRError(str(error)) from None
    rates = read_rates(LEARNING_RATES)
    for place, by_loss in chosen.items():
        known = rates.setdefault(key_of(place), {})
        for name, rate in by_loss.items():
            print(f"{place:20} {name:21} {known.get(key_of(name), 'none')} -> {rate:g}")
            known[key_of(name)] = rate
    write_text(LEARNING_RATES, HEAD + yaml.safe_dump(rates, sort_keys=False, default_flow_style=None, width=110))
    return 0


if __name__ == "__main__":
    sys.exit(main())
