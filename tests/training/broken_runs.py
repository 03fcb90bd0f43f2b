"""Runs that break off and are given again."""

from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.conftest import refused, small_config
from tests.sweep_tools import result
from topr_exp.pipeline import run
from topr_exp.types import TOPRError


def twins(folder, *settings):
    """Two runs that differ in their folders alone."""
    return [small_config(folder / name, *settings) for name in "ab"]


def break_off(config, updates):
    """Run until an optimizer's step fails, after this many updates."""
    steps = []

    def fail_late(*_):
        steps.append(1)
        if len(steps) > updates:
            raise TOPRError("on the way")

    hook = register_optimizer_step_pre_hook(fail_late)
    try:
        with refused("on the way"):
            run(config)
    finally:
        hook.remove()


def run_both(undisturbed, broken, updates):
    """Runs of the same settings, one of which breaks off after some updates and is given again; their summaries."""
    summary = run(undisturbed)
    break_off(broken, updates)
    metrics = (broken.folder / "metrics.jsonl").read_text()
    resumed_summary = run(broken)

    assert metrics.count("\n") == updates
    assert (broken.folder / "metrics.jsonl").read_text().startswith(metrics), "no update is made again"
    assert result(broken.folder) == result(undisturbed.folder)
    return summary, resumed_summary
