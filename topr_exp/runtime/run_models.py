"""The weights that a run keeps on the disk: whether there are any, and how much room they take."""

from contextlib import suppress
from pathlib import Path

from topr_exp.runtime.small_files import read_small_file

NOT_SAVED = "its model was not saved (checkpoint.save_model=false)"


def keeps_no_model(run: Path) -> bool:
    """True for a finished run that was told to keep no weights."""
    return read_small_file(run / "summary.json", unreadable_is_damage=True)[0].get("model_saved") is False


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


def readable_size(count: int) -> str:
    """A number of bytes for people to read."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
