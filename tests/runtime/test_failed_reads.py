"""Whatever a read decides, a disk that fails for a moment does not decide it: one line, no default in its place."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import refused
from topr_exp.models.model_folder import (
    config_number,
    has_chat_template,
    linear_layers,
    model_damage,
    weights_fingerprint,
)
from topr_exp.runs.provenance import user_overrides
from topr_exp.runs.records import Evaluations, Metrics
from topr_exp.runtime.checksums import _digest_of_version, find_damage, write_checksums
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.json_files import read_lines, read_object, write_json
from topr_exp.store import Store
from topr_exp.store.completions import verdicts_on
from topr_exp.training.checkpoint import checkpoints
from topr_exp.types import TOPRError

NUMBERS = (errno.EIO, errno.EACCES, errno.ESTALE)
READS: dict[str, Callable[[Path], Any]] = {
    "an object": lambda folder: read_object(folder / "config.json"),
    "lines": lambda folder: read_lines(folder / "metrics.jsonl"),
    "what a run evaluated": lambda folder: Evaluations(folder).add({"iteration": 0}),
    "the updates of a run": lambda folder: Metrics(folder).updates(),
    "damage": find_damage,
    "damage of headers": model_damage,
    "the layers of an adapter": linear_layers,
    "the context": lambda folder: config_number(folder, "max_position_embeddings"),
    "a chat template": has_chat_template,
    "weights": weights_fingerprint,
    "checkpoints": checkpoints,
    "overrides": user_overrides,
    "rows of a table": lambda folder: a_table(folder).row_count(),
    "the source of a table": lambda folder: a_table(folder, "verdicts").read(),
    "verdicts to export": lambda folder: verdicts_on(a_table(folder)),
}


def a_table(folder: Path, kind: str = "rollouts") -> Any:
    store = Store(folder / "store")
    rollouts = store.table("rollouts", {}, 1)
    return rollouts if kind == "rollouts" else store.table(kind, {"rollouts": rollouts.name}, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with everything that is read."""
    import pyarrow as pa
    import torch
    from safetensors.torch import save_file

    write_json(tmp_path / "config.json", {"max_position_embeddings": 8})
    write_json(tmp_path / "tokenizer_config.json", {"a": 1})
    write_json(tmp_path / "launch.json", {"overrides": ["a=1"]})
    (tmp_path / "chat_template.jinja").write_text("x")
    (tmp_path / "step-00000001").mkdir()
    for name in ("metrics.jsonl", "eval.jsonl"):
        (tmp_path / name).write_text('{"iteration": 1, "step": 1}\n')
    save_file({"a.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    write_checksums(tmp_path)
    for kind in ("rollouts", "verdicts"):
        a_table(tmp_path, kind).fill(lambda index: pa.table({"verdict": ["correct"]}))
    return tmp_path


class Reads:
    """Counts what is opened and listed below a folder; one of these calls fails."""

    def __init__(self, folder: Path, number: int, failing: int | None = None) -> None:
        self.folder, self.number, self.failing, self.count = folder, number, failing, 0

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            if str(path).startswith(str(self.folder)):
                self.count += 1
                if self.count == self.failing:
                    raise OSError(self.number, os.strerror(self.number), str(path))
            return real(path, *arguments, **named)

        return call

    def during(self, read: Callable[[Path], Any]) -> str:
        """What a read gives, or its error."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("io.open", self.counted(io.open))  # what pathlib calls
            patch.setattr("builtins.open", self.counted(open))
            patch.setattr(os, "open", self.counted(os.open))
            patch.setattr(os, "listdir", self.counted(os.listdir))
            patch.setattr(os, "scandir", self.counted(os.scandir))
            patch.setattr("topr_exp.store.table._verified", {})
            _digest_of_version.cache_clear()
            try:
                return repr(read(self.folder))
            except TOPRError as error:
                return f"error: {error}"


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", READS)
def test_what_cannot_be_read_is_one_line_and_no_default(folder: Path, name: str, number: int) -> None:
    """Each open and each listing below the folder fails in turn."""
    calm = Reads(folder, number)
    expected = calm.during(READS[name])
    assert calm.count >= 1
    assert not expected.startswith("error")
    for call in range(1, calm.count + 1):
        outcome = Reads(folder, number, call).during(READS[name])
        assert outcome.startswith("error: cannot ")
        assert os.strerror(number) in outcome
        assert "\n" not in outcome


def test_what_is_only_shown_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, flags: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "open", fail)
    assert read_object(folder / "config.json", unreadable_is_damage=True) == ({}, "can't be read (Input/output error)")
    with refused("cannot read .*config.json: Input/output error"):
        read_object(folder / "config.json")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOLCK])
@pytest.mark.parametrize("name", [None, "a file"])
def test_a_disk_that_fails_anywhere_is_one_line(capsys: Any, number: int, name: str | None) -> None:
    def command() -> int:
        raise OSError(number, os.strerror(number), name)

    assert exit_status(command) == 1
    told = "cannot open a file" if name else "cannot read or write a file"
    assert capsys.readouterr().err == f"error: {told}: {os.strerror(number).lower()}\n"
