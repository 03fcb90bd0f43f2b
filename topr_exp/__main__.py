"""`python -m topr_exp`: Hydra composes, every run is checked, then each goes to `pipeline.run`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from topr_exp.interrupts import Interrupted
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from topr_exp.config import Config


def job(composed: DictConfig) -> None:
    """One run; it may start in another process or on another machine, so it checks its settings again."""
    from topr_exp.config import load

    config = load(composed)
    from topr_exp.pipeline import run

    run(config)


def main() -> None:
    """The command line: exit code 2 for a mistake in the settings, 1 for a run that failed, one line for each."""
    import hydra
    from hydra._internal.utils import get_args_parser

    from topr_exp.jobs import CONF, expand

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then passes errors on, and they are reported here
    args = get_args_parser().parse_args()
    try:
        if not (args.help or args.hydra_help or args.info or args.shell_completion):
            runs = expand(args)
            if runs[0].dry_run and not args.cfg:
                print("\n".join(describe(config) for config in runs))
                return
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    except ConfigError as error:
        fail(error, 2)
    except TOPRError as error:
        fail(error, 1)
    except Interrupted as stop:
        fail(stop, 128 + stop.signal)
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on where this one stopped", 130)


def describe(config: Config) -> str:
    """A run that would start: its folder and whether it is new, resumable or done."""
    folder = config.folder
    state = "done" if (folder / "DONE").exists() else "resumable" if folder.exists() else "new"
    return f"{state:<10} {folder}"


def fail(error: object, code: int) -> None:
    """One line on standard error, then exit."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
