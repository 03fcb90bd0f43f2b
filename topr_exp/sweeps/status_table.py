"""Text of a sweep's status: a table with one line per run, and a line that counts their states."""

from collections import Counter
from collections.abc import Sequence

from topr_exp.runs.finished import bytes_of_models
from topr_exp.runtime.terminal import align_columns, plural, printable, readable_size
from topr_exp.sweeps.run_status import RunState, RunStatus

HEADER = ["run", "settings", "state", "stage", "left", "pass@1", "slurm", "folder", ""]
MAX_TEXT_LENGTH = 60  # characters of settings, of a stage and of an error


def status_table(statuses: Sequence[RunStatus]) -> str:
    """Format the states of runs, with the settings that not all of them have."""
    shared_overrides = set(statuses[0].run.overrides)
    for status in statuses:
        shared_overrides &= set(status.run.overrides)
    rows = [HEADER]
    for status in statuses:
        run = status.run
        own_overrides = " ".join(override for override in run.overrides if override not in shared_overrides)
        cells = [
            str(run.number), shorten(own_overrides), status.state, shorten(status.stage), status.time_left,
            status.pass_at_1, status.job_id, run.folder.name, shorten(status.error),
        ]  # fmt: skip
        rows.append([printable(cell, keep="") for cell in cells])
    return "\n".join([*align_columns(rows), *describe_model_sizes(statuses), count_states(statuses)])


def shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return text[: MAX_TEXT_LENGTH - 3] + "..."


def describe_model_sizes(statuses: Sequence[RunStatus]) -> list[str]:
    """Return a line on the disk space of the runs' models; none where there are no models."""
    sizes = []
    for status in statuses:
        size = 0 if status.state == RunState.UNREADABLE else bytes_of_models(status.run.folder)
        if size:
            sizes.append(size)
    if not sizes:
        return []
    return [f"models of {plural(len(sizes), 'run')}: {readable_size(sum(sizes))}; checkpoint.weights=none keeps none"]


def count_states(statuses: Sequence[RunStatus]) -> str:
    """Format how many runs there are in each state."""
    counts = Counter(status.state for status in statuses)
    words = [f"{counts[state]} {state}" for state in RunState if counts[state]]
    return f"{plural(len(statuses), 'run')}: {', '.join(words)}"
