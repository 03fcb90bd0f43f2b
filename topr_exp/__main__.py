"""`python -m topr_exp`: Hydra composes, every run is checked, then one goes to `pipeline.run`, many to a launcher."""

import os
import sys
from argparse import Namespace

from topr_exp import leave_out_current_folder
from topr_exp.runtime.exit_status import exit_status, print_error
from topr_exp.types import ConfigError


def main() -> int:
    """The command line; returns the exit status."""
    leave_out_current_folder()
    try:
        from topr_exp.config.compose_overrides import parse_arguments
    except ModuleNotFoundError as error:
        print_error(f"{error.name} is not installed for {sys.executable}; activate its environment")
        return 2
    return exit_status(lambda: answer(parse_arguments(sys.argv[1:])), resumes=True)


def answer(args: Namespace) -> int:
    """Start what the arguments stand for, or show what they ask for."""
    for option in ("experimental_rerun", "config_path", "config_name"):
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option.replace('_', '-')} is not read here; --config-dir FOLDER adds YAMLs")
    return show(args) if args.help or args.hydra_help or args.cfg or args.info or args.shell_completion else start(args)


def start(args: Namespace) -> int:
    """Check every run, then start: a single one in this process, a sweep through its launcher."""
    from topr_exp.runs.attempt import start_anew
    from topr_exp.runs.plan import plan
    from topr_exp.runs.preflight import check_machine
    from topr_exp.runtime.distributed import launched_processes

    planned = plan(args)
    check_machine(job.config for job in planned.jobs)
    config = planned.jobs[0].config
    if config.overwrite and launched_processes() > 1:
        raise ConfigError("overwrite=true: under torchrun each process would move the run's folder; move it yourself")
    if config.dry_run:
        from topr_exp.runs.console import preview_prompt
        from topr_exp.sweeps.launch import preview

        rows = preview(planned)  # first, since it refuses
        print(f"{preview_prompt(config)}\n\n{rows}")
    elif planned.sweep:
        from topr_exp.sweeps.launch import launch

        return launch(planned, sys.argv[1:])
    else:
        from topr_exp.sweeps.processes import run_processes

        run_processes(start_anew(config))
    return 0


def show(args: Namespace) -> int:
    """Help, the composed settings, completion."""
    import hydra

    from topr_exp.config.compose_overrides import Composer
    from topr_exp.config.load import CONF

    if args.shell_completion:
        args.overrides = []  # install=bash and the like are words for Hydra
    composer = Composer(args)
    if args.help:
        print(composer.help())
        return 0
    if args.cfg:
        composer.base()  # refuses in one line what Hydra would refuse in seventy
        words = dict(zip(args.overrides, (str(read.input_line) for read in composer.overrides), strict=True))
        sys.argv[1:] = [words.get(word, word) for word in sys.argv[1:]]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then passes errors on, and they are reported by `main`
    app = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda composed: None)
    composer.call(app)
    return 0


if __name__ == "__main__":
    sys.exit(main())
