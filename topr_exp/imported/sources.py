"""Raw rows of a log: JSON lines, Parquet, a folder that `datasets` saved, or a data set of the hub."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.data.user_lines import numbered_lines
from topr_exp.runtime.checksums import cached_digest
from topr_exp.runtime.files import disk_errors, list_files
from topr_exp.types import TOPRError

HUB = "hub:"
TABLE_KIND = "imported"  # of a store's tables
NO_LOG = "neither a file nor an imported table of {}; `python -m topr_exp.store export` writes another table to a file"
PATTERNS = ("*.parquet", "*.jsonl", "*.json")  # of a folder's files
MOST_UNPACKED = 1 << 30  # bytes of a Parquet file that is LARGEST_EXPANSION times smaller
LARGEST_EXPANSION = 1000
PARQUET_ROWS = 100  # that are unpacked at once

RawRow = bytes | dict[str, Any]  # a line of JSON, or a row by column


def source_files(source: str) -> list[Path]:
    """List a source's files on this machine, in their order; none for the hub's or a table of the store. TOPRError."""
    path = Path(source)
    with disk_errors(f"read {path}"):
        if path.is_file():
            return [path]
        if not path.is_dir():
            return []
        entries = path.rglob("*") if is_saved_dataset(path) else list_files(path, *PATTERNS)
        files = [file for file in entries if file.is_file()]
    return sorted(files, key=lambda file: (len(file.name), file.name, file.parts))  # 2.jsonl before 10.jsonl


def is_stored_log(source: str, store_root: Path) -> bool:
    """True for the name of a table that was imported into a store."""
    return source.startswith(f"{TABLE_KIND}/") and (store_root / source / "key.json").is_file()


def is_saved_dataset(path: Path) -> bool:
    """True for a folder that `datasets` saved."""
    return (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()


def read_raw_rows(source: str) -> Iterator[tuple[str, RawRow]]:
    """Read the rows of a source, each with its file and line; TOPRError for what can't be read."""
    if source.startswith(HUB) or is_saved_dataset(Path(source)):
        for number, row in enumerate(load_dataset_rows(source), start=1):
            yield f"{Path(source)}: row {number}", row
        return
    files = source_files(source)
    if not files and Path(source).is_dir():
        raise TOPRError(f"{source} holds no .parquet, .jsonl or .json files")
    for path in files or [Path(source)]:
        if path.suffix == ".parquet":
            for number, row in enumerate(read_parquet(path), start=1):
                yield f"{path}: row {number}", row
        else:
            for number, line in numbered_lines(path):
                yield f"{path}:{number}", line


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a Parquet file; TOPRError for a damaged file, or one that expands beyond all measure."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with disk_errors(f"read {path}"):
            file = ParquetFile(path)
            announced_bytes = 0
            for index in range(file.metadata.num_row_groups):
                announced_bytes += file.metadata.row_group(index).total_byte_size
            refuse_expansion(path, announced_bytes)
            unpacked_bytes = 0
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                unpacked_bytes += batch.nbytes
                refuse_expansion(path, unpacked_bytes)
                yield from batch.to_pylist()
    except MemoryError:
        raise TOPRError(f"{path}: it unpacks to more than there is memory") from None
    except (ArrowException, UnicodeError) as error:
        raise TOPRError(f"{path}: not a whole Parquet file ({' '.join(str(error).split())})") from None


def refuse_expansion(path: Path, unpacked_bytes: int) -> None:
    """Raise TOPRError for a file that unpacks to so many bytes, and is far too small for them."""
    size = path.stat().st_size
    if unpacked_bytes > max(MOST_UNPACKED, LARGEST_EXPANSION * size):
        raise TOPRError(
            f"{path}: its {size:,} bytes unpack to {unpacked_bytes / 1e9:.1f} GB or more; allowed are "
            f"{LARGEST_EXPANSION} times as many as it has, or {MOST_UNPACKED / 1e9:.1f} GB"
        )


def load_dataset_rows(source: str) -> Any:
    """Load a data set that `datasets` saved, or of the hub; of several splits the one called train."""
    import datasets

    try:
        if source.startswith(HUB):
            dataset = datasets.load_dataset(source.removeprefix(HUB))
        else:
            dataset = datasets.load_from_disk(source)
        if isinstance(dataset, datasets.DatasetDict):
            return dataset["train"]
        return dataset
    except Exception as error:  # datasets raises many types
        raise TOPRError(f"data.completions={source}: {' '.join(str(error).split())}") from None


def content_digest(source: str) -> str:
    """Hash the content of a source; of one file its SHA-256, of the hub's the fingerprint by `datasets`."""
    if source.startswith(HUB):
        return str(load_dataset_rows(source)._fingerprint)
    with disk_errors(f"read {source}"):
        digests = [cached_digest(path) for path in source_files(source)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
