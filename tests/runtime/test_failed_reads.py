"""Whatever a read decides, a disk that fails for a moment does not decide it: one line, no default in its place."""

import contextlib
import errno
import itertools
import os
from unittest.mock import patch

import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import refused
from topr_exp.algorithms.group_relative import AsymRE
from topr_exp.config.model_choice import preset_of, read_small_json
from topr_exp.config.yamls import loss_of_file
from topr_exp.imported.sources import source_files
from topr_exp.models.folder_damage import model_damage
from topr_exp.models.model_folder import config_entry, has_chat_template, weights_fingerprint
from topr_exp.models.weight_headers import linear_layers
from topr_exp.runs.provenance import user_overrides
from topr_exp.runs.records import Evaluations, Metrics
from topr_exp.runtime.checksums import _digest_of_version, cached_digest, file_digest, find_damage, write_checksums
from topr_exp.runtime.json_files import read_lines, read_object, write_json
from topr_exp.store import Store
from topr_exp.store.completions import verdicts_on
from topr_exp.training.checkpoint import checkpoints
from topr_exp.types import TOPRError

versions = itertools.count()  # of a YAML, which is read once for each
READS = {
    "an object": lambda folder: read_object(folder / "config.json"),
    "lines": lambda folder: read_lines(folder / "metrics.jsonl"),
    "what a run evaluated": lambda folder: Evaluations(folder).add({"iteration": 0}),
    "the updates of a run": lambda folder: Metrics(folder).updates(),
    "damage": find_damage,
    "damage of headers": model_damage,
    "the layers of an adapter": linear_layers,
    "the context": lambda folder: config_entry(folder, "max_position_embeddings", int),
    "a chat template": has_chat_template,
    "weights": weights_fingerprint,
    "checkpoints": checkpoints,
    "overrides": user_overrides,
    "the shape that chooses a model's settings": read_small_json,
    "a model's settings": lambda folder: preset_of("mine", folder / "mine.yaml"),
    "values of a loss": lambda folder: loss_of_file(folder / "soft.yaml", next(versions), AsymRE),
    "files of a log": lambda folder: source_files(str(folder)),
    "rows of a table": lambda folder: rollouts_of(folder).row_count(),
    "the source of a table": lambda folder: verdicts_of(folder).read(),
    "verdicts to export": lambda folder: verdicts_on(rollouts_of(folder)),
}


def rollouts_of(folder):
    return Store(folder / "store").table("rollouts", {}, 1)


def verdicts_of(folder):
    return Store(folder / "store").table("verdicts", {"rollouts": rollouts_of(folder).name}, 1)


@pytest.fixture
def folder(tmp_path):
    """A folder with everything that is read."""
    write_json(tmp_path / "config.json", {"max_position_embeddings": 8})
    write_json(tmp_path / "tokenizer_config.json", {"a": 1})
    write_json(tmp_path / "launch.json", {"overrides": ["a=1"]})
    (tmp_path / "chat_template.jinja").write_text("x")
    (tmp_path / "mine.yaml").write_text("model: {path: some/model}\n")
    (tmp_path / "soft.yaml").write_text("_target_: topr_exp.algorithms.group_relative.AsymRE\nname: asymre\n")
    (tmp_path / "step-00000001").mkdir()
    for name in ("metrics.jsonl", "eval.jsonl"):
        (tmp_path / name).write_text('{"iteration": 1, "step": 1}\n')
    save_file({"a.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    write_checksums(tmp_path)
    for table in (rollouts_of(tmp_path), verdicts_of(tmp_path)):
        table.fill(lambda index: pa.table({"verdict": ["correct"]}))
    return tmp_path


class Disk:
    """Counts what is opened and listed below a folder; one of these calls fails."""

    CALLS = ("io.open", "builtins.open", "os.open", "os.listdir", "os.scandir")

    def __init__(self, folder, error_number=errno.EIO, failing_call=None):
        self.folder = folder
        self.error_number = error_number
        self.failing_call = failing_call
        self.calls = 0

    def wrap(self, function):
        def call(path, *arguments, **options):
            if str(path).startswith(str(self.folder)):
                self.calls += 1
                if self.calls == self.failing_call:
                    raise OSError(self.error_number, os.strerror(self.error_number), str(path))
            return function(path, *arguments, **options)

        return call

    def outcome(self, read):
        """What a read gives, or its error."""
        _digest_of_version.cache_clear()
        with contextlib.ExitStack() as patches:
            patches.enter_context(patch("topr_exp.store.source._verified", {}))
            for name in self.CALLS:
                patches.enter_context(patch(name, self.wrap(function_of(name))))
            try:
                return repr(read(self.folder))
            except TOPRError as error:
                return f"error: {error}"


def function_of(name):
    """The function of this name."""
    module, _, function = name.partition(".")
    return getattr(__import__(module), function)


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", READS)
def test_what_cannot_be_read_is_one_line_and_no_default(name, error_number, folder):
    """Each open and each listing below the folder fails in turn."""
    disk = Disk(folder)
    assert not disk.outcome(READS[name]).startswith("error")
    assert disk.calls >= 1

    for failing_call in range(1, disk.calls + 1):
        outcome = Disk(folder, error_number, failing_call).outcome(READS[name])
        assert outcome.startswith("error: cannot ")
        assert os.strerror(error_number) in outcome
        assert "\n" not in outcome


def test_what_is_only_shown_says_that_it_cant_be_read(folder):
    path = folder / "config.json"

    with patch("os.open", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
        assert read_object(path, unreadable_is_damage=True) == ({}, "can't be read (Input/output error)")
        with refused("cannot read .*config.json: Input/output error"):
            read_object(path)


def test_no_file_of_a_large_log_is_hashed_twice(tmp_path):
    paths = [tmp_path / f"{number}.jsonl" for number in range(200)]
    for path in paths:
        path.write_text(path.name)
    with patch("topr_exp.runtime.checksums.file_digest", side_effect=file_digest) as digest:
        digests = list(map(cached_digest, paths))

        assert list(map(cached_digest, paths)) == digests

    assert digest.call_count == len(paths)
