"""A full disk while a checkpoint is written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from tests.conftest import make_model
from topr_exp.training import checkpoint
from topr_exp.types import TOPRError


def test_a_full_disk_during_a_checkpoint_keeps_the_last_one(tmp_path: Path) -> None:
    model = make_model(11)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.save(tmp_path, 1, model, optimizer, {"step": 1}, {})
    size = (tmp_path / "step-00000001" / "model.safetensors").stat().st_size
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # its state now takes twice the room of the weights
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (size // 2, size + size // 2):  # while the weights are written, and while the optimizer's state is
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(TOPRError, match=r"cannot write .*step-00000002: the file would be larger"):
                checkpoint.save(tmp_path, 2, model, optimizer, {"step": 2}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    found = checkpoint.load(tmp_path, model, optimizer)
    assert found is not None
    assert found[0] == {"step": 1}
