"""DONE, the mark of a finished run: it is written last, and holds the SHA-256 of each of the run's results.

A trained model and the run's own store have checksums of their own. What goes on changing (`state.json`, `log.txt`) and
what others write into the folder (a report, trackers) is no result.
"""

from pathlib import Path

from topr_exp.runtime.files import (
    damaged_files,
    disk_errors,
    file_digest,
    files_named,
    read_checksums,
    read_file,
    write_listed,
)

MARK = "DONE"
RESULTS = (
    "config.json",
    "config.yaml",
    "environment.json",
    "inputs.json",
    "prompt.txt",
    "metrics.jsonl",
    "eval.jsonl",
    "completions.jsonl",
    "verification.json",
    "summary.json",
)
OF_ITERATION = ("*.json", "*.npy")  # what it trained on


def result_files(folder: Path) -> list[Path]:
    """The results that a run's folder holds; OSError."""
    files = files_named(folder, *RESULTS)
    for iteration in files_named(folder, "iteration-*"):
        files += files_named(iteration, *OF_ITERATION)
    return files


def mark_finished(folder: Path) -> None:
    """Write the mark, with the checksums of what is there now."""
    with disk_errors(f"read {folder}"):
        checksums = {path.relative_to(folder).as_posix(): file_digest(path) for path in result_files(folder)}
    write_listed(folder / MARK, checksums)


def changed_results(folder: Path) -> list[str] | None:
    """What is wrong with each result of a finished run that is not what it was; None where no mark lists any.

    The mark of an older version is an empty file. TOPRError for a file that can't be read.
    """
    path = folder / MARK
    with disk_errors(f"read {path}"):
        if not path.exists() or not read_file(path):
            return None
    checksums = read_checksums(path)
    if checksums is None:
        return [f"{MARK} is no whole list of checksums"]
    return list(damaged_files(folder, checksums))
