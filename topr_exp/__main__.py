"""`python -m topr_exp`: Hydra composes, every run is checked, then one goes to `pipeline.run`, many to a launcher."""

import sys
from argparse import Namespace

from topr_exp import prepare_command
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.terminal import print_error
from topr_exp.types import ConfigError


def main() -> int:
    """The command line; returns the exit status."""
    prepare_command()
    try:
        from topr_exp.config.compose_overrides import parse_arguments
    except ModuleNotFoundError as error:
        print_error(f"{error.name} is not installed for {sys.executable}; activate its environment")
        return 2
    return exit_status(lambda: run_command(parse_arguments(sys.argv[1:])), resumes=True)


def run_command(args: Namespace) -> int:
    """Start the runs that the arguments stand for, or print help or settings."""
    for option in ("experimental_rerun", "config_path", "config_name", "hydra_help", "info", "shell_completion"):
        if getattr(args, option):
            raise ConfigError(f"--{option.replace('_', '-')} is not read here; --config-dir FOLDER adds YAMLs")
    if args.help or args.cfg:
        return print_help_or_settings(args)
    return start(args)


def start(args: Namespace) -> int:
    """Check every run, then start: a single one in this process, a sweep through its launcher."""
    from topr_exp.runs.overwrite import move_overwritten_folder
    from topr_exp.runs.plan import plan
    from topr_exp.runs.preflight import check_machine
    from topr_exp.runtime.distributed import launched_processes

    planned = plan(args)
    check_machine(job.config for job in planned.jobs)
    config = planned.jobs[0].config
    if config.overwrite and launched_processes() > 1:
        raise ConfigError("overwrite=true: under torchrun each process would move the run's folder; move it yourself")
    if config.dry_run:
        from topr_exp.runs.first_prompt import preview_prompt
        from topr_exp.sweeps.launch import preview

        rows = preview(planned.jobs)  # first, since it refuses
        print(f"{preview_prompt(config)}\n\n{rows}")
    elif planned.is_sweep:
        from topr_exp.sweeps.launch import launch

        return launch(planned.jobs, sys.argv[1:])
    else:
        from topr_exp.sweeps.processes import run_in_processes

        run_in_processes(move_overwritten_folder(config))
    return 0


def print_help_or_settings(args: Namespace) -> int:
    """Print the help, or the composed settings of one run, which are checked first."""
    from omegaconf import OmegaConf

    from topr_exp.config.compose_overrides import Composer
    from topr_exp.config.load import load

    if args.cfg and args.multirun:
        raise ConfigError("--cfg shows the settings of one run; leave -m out")
    if args.cfg not in (None, "job"):
        raise ConfigError(f"--cfg {args.cfg} is not read here; --cfg job shows the settings of a run")
    composer = Composer(args)
    if args.help:
        print(composer.help())
        return 0
    _, settings = next(composer.jobs())
    load(settings)
    if args.package:
        settings = composer.call(lambda: OmegaConf.select(settings, args.package))
        if not OmegaConf.is_dict(settings):
            raise ConfigError(f"--package {args.package}: no group of settings")
    print(OmegaConf.to_yaml(settings, resolve=args.resolve), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
