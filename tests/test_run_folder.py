"""The folder of a run, as its other processes see it."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

from tests.conftest import config_of
from topr_exp.run_folder import Onlooker, RunFolder

# What the processes that don't lead do as the leading one does: none of it writes but through `save_state`.
SHARED = {"refuse_another", "read", "done", "stage", "aside", "lap", "count", "evaluations"}
WRITING = {"write_json", "write_text", "write_whole", "open", "mkdir", "unlink", "rename", "replace", "save"}


def methods(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    """NaN and Infinity are no JSON, and other programs than Python refuse them."""
    with RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
        folder.rewind(1, 0)
        folder.log({"iteration": 1, "step": 1, "loss": math.nan, "kl_mu": math.inf})
        text = (folder.path / "metrics.jsonl").read_text()
    assert text == '{"iteration": 1, "step": 1, "loss": null, "kl_mu": null}\n'


def test_an_onlooker_leaves_every_writing_to_the_leader() -> None:
    """A new method of a run's folder belongs to one of the two: overridden by Onlooker, or named above."""
    ours, theirs = methods(RunFolder), methods(Onlooker)
    assert set(ours) == SHARED | set(theirs)
    assert not SHARED & set(theirs)
    for name in SHARED:
        method = ours[name].fget if isinstance(ours[name], property) else ours[name]
        code = inspect.unwrap(method).__code__
        assert not WRITING & set(code.co_names), name
    for name in theirs:  # and what is overridden can be called in the same way
        assert inspect.signature(ours[name]) == inspect.signature(theirs[name]), name
