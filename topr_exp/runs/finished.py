"""Finished runs: the mark `DONE` with checksums of the results, and the weights that are kept."""

from contextlib import suppress
from pathlib import Path

from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.checksums import file_digest, list_damage, read_checksum_list, write_checksum_list
from topr_exp.runtime.files import disk_errors, list_files, read_file

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
    files = list_files(folder, *RESULTS)
    for iteration in list_files(folder, "iteration-*"):
        files += list_files(iteration, *OF_ITERATION)
    return files


def mark_finished(folder: Path) -> None:
    """Write the mark, with the checksums of what is there now."""
    with disk_errors(f"read {folder}"):
        checksums = {path.relative_to(folder).as_posix(): file_digest(path) for path in result_files(folder)}
    write_checksum_list(folder / MARK, checksums)


def changed_results(folder: Path) -> list[str] | None:
    """What is wrong with each result of a finished run that is not what it was; None where no mark lists any.

    The mark of an older version is an empty file. TOPRError for a file that can't be read.
    """
    path = folder / MARK
    with disk_errors(f"read {path}"):
        if not path.exists() or not read_file(path):
            return None
    checksums = read_checksum_list(path)
    if checksums is None:
        return [f"{MARK} is no whole list of checksums"]
    return list(list_damage(folder, checksums))


NOT_SAVED = "its model was not saved (checkpoint.save_model=false)"


def keeps_no_model(run: Path) -> bool:
    """True for a finished run that was told to keep no weights."""
    return read_run_file(run / "summary.json", unreadable_is_damage=True)[0].get("model_saved") is False


def model_folders_of(run: Path) -> list[Path]:
    """The folders of a run's weights: of its last iteration, and of earlier ones."""
    found = [run / "model", *sorted(run.glob("iteration-*/model"))]
    return [folder for folder in found if folder.is_dir() and not folder.is_symlink()]


def bytes_of_models(run: Path) -> int:
    """Bytes of all files in the folders of a run's weights."""
    total = 0
    for folder in model_folders_of(run):
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # a run at work removes those of earlier iterations
                total += path.lstat().st_size
    return total
