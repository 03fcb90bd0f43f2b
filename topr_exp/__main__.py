"""`python -m topr_exp`: Hydra composes, every run is checked, then one goes to `pipeline.run`, many to a launcher."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from topr_exp import world
from topr_exp.interrupts import Interrupted
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from argparse import Namespace


def main() -> None:
    """The command line: exit code 2 for a mistake in the settings, 1 for a run that failed, one line for each."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "python -m topr_exp"
    args = parser.parse_args()
    try:
        if args.help or args.hydra_help or args.cfg or args.info or args.shell_completion:
            show(args)
        else:
            sys.exit(start(args))
    except ConfigError as error:
        fail(error, 2)
    except TOPRError as error:
        fail(error, 1)
    except Interrupted as stop:
        fail(stop, 128 + stop.signal)
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on where this one stopped", 130)


def start(args: Namespace) -> int:
    """Check every run, then start: a single one in this process, a sweep through its launcher."""
    from topr_exp.jobs import plan

    planned = plan(args)
    if planned.jobs[0].config.dry_run:
        from topr_exp.sweeps.launch import preview

        print(preview(planned))
        return 0
    if planned.sweep:
        if world.announced() > 1:
            raise ConfigError("torchrun starts one run; start a sweep without it, and set cluster.processes")
        from topr_exp.sweeps.launch import launch

        return launch(planned, sys.argv[1:])
    from topr_exp.sweeps.group import start as start_run

    start_run(planned.jobs[0].config)
    return 0


def show(args: Namespace) -> None:
    """Hydra's own answers: help, the composed settings, completion."""
    import hydra

    from topr_exp.overrides import Composer
    from topr_exp.resolvers import CONF

    if args.help or args.cfg:
        Composer(args).base()  # refuses in one line what Hydra would refuse in seventy
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then passes errors on, and they are reported by `main`
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda composed: None)()


def fail(error: object, code: int) -> None:
    """One line on standard error, then exit."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
