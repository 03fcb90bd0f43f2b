"""`python -m topr_exp.track FOLDER wandb|tensorboard`: send a finished run to a tracker.

Sends the run's records as if it had been tracked during training; repeat it to send only what is missing.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from topr_exp.runs.finished import DONE_FILE, changed_results
from topr_exp.runtime.exit_status import command_parser, exit_status, user_path
from topr_exp.runtime.terminal import say, warn
from topr_exp.types import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("topr_exp.track", __doc__)
    parser.add_argument("folder", type=user_path, metavar="FOLDER", help="a finished run")
    parser.add_argument("tracker", choices=("wandb", "tensorboard"))
    parser.add_argument("settings", nargs="*", help=argparse.SUPPRESS)  # of earlier releases
    return exit_status(partial(track, parser.parse_args(arguments)))


def track(options: argparse.Namespace) -> int:
    """Send a finished run; ConfigError for a run that is none."""
    from topr_exp.config.retired import refuse_retired
    from topr_exp.runs.preflight import check_tracker
    from topr_exp.tracking.tracker import send_finished

    folder: Path = options.folder.resolve()
    for setting in options.settings:
        refuse_retired(setting.partition("=")[0])
        raise ConfigError(f"{setting}: no setting is read here")
    if not (folder / DONE_FILE).exists():
        raise ConfigError(f"{folder} is no finished run; one that trains is tracked with tracking={options.tracker}")
    for fault in changed_results(folder) or ():  # none of a mark without checksums
        warn(f"{folder}, changed since it finished: {fault}")
    check_tracker(options.tracker)
    say(send_finished(options.tracker, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
