"""Finished runs: the mark `DONE` with the checksums of all results, and the weights on the disk.

`DONE` is written last. Trained models and the run's own store carry checksums of their own; files that go on changing
(`state.json`, `log.txt`) or that others write (a report, trackers) are no results.
"""

from pathlib import Path

from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.checksums import file_digest, list_damage, read_checksum_list, write_checksum_list
from topr_exp.runtime.files import disk_errors, folder_size, list_files, read_file

DONE_FILE = "DONE"
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
TRAINING_SET_FILES = ("*.json", "*.npy")  # of an iteration
NOT_SAVED = "its model was not saved (checkpoint.weights=none)"


# ---- the mark


def mark_finished(folder: Path) -> None:
    """Write the mark, with the checksums of the results."""
    checksums = {}
    with disk_errors(f"read {folder}"):
        for path in result_files(folder):
            checksums[path.relative_to(folder).as_posix()] = file_digest(path)
    write_checksum_list(folder / DONE_FILE, checksums)


def changed_results(folder: Path) -> list[str] | None:
    """Describe each result of a finished run that has changed since; None for a mark without checksums.

    An older version's mark is an empty file. TOPRError for a file that can't be read.
    """
    path = folder / DONE_FILE
    with disk_errors(f"read {path}"):
        if not path.exists() or not read_file(path):
            return None
    checksums = read_checksum_list(path)
    if checksums is None:
        return [f"{DONE_FILE} is no whole list of checksums"]
    return list(list_damage(folder, checksums))


def result_files(folder: Path) -> list[Path]:
    """Return the results in a run's folder; OSError."""
    paths = list_files(folder, *RESULTS)
    for iteration_folder in list_files(folder, "iteration-*"):
        paths += list_files(iteration_folder, *TRAINING_SET_FILES)
    return paths


# ---- weights


def keeps_no_model(folder: Path) -> bool:
    """True for a finished run with checkpoint.weights=none."""
    summary, _ = read_run_file(folder / "summary.json", unreadable_is_damage=True)
    return summary.get("model_saved") is False


def model_folders_of(folder: Path) -> list[Path]:
    """Return the folders of a run's weights: of its last iteration, of earlier ones, and of updates."""
    candidates = [folder / "model"]
    for pattern in ("iteration-*/model", "iteration-*/update-*[0-9]"):  # a temporary folder ends with letters
        candidates += sorted(folder.glob(pattern))
    return [candidate for candidate in candidates if candidate.is_dir() and not candidate.is_symlink()]


def bytes_of_models(folder: Path) -> int:
    """Return the size of a run's weights."""
    return sum(map(folder_size, model_folders_of(folder)))
