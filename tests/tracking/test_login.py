"""Whether somebody is logged in, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from topr_exp.tracking.wandb_run import wanted_mode


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_nobody_logged_in_means_offline() -> None:
    assert wanted_mode() == "offline"


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"])
def test_a_key_in_the_environment_means_logged_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    assert wanted_mode() is None


def test_a_netrc_entry_counts_for_its_own_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / ".netrc"
    path.write_text("machine api.wandb.ai login user password secret\n")
    path.chmod(0o600)
    assert wanted_mode() is None
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert wanted_mode() == "offline"


def test_a_damaged_netrc_is_no_login(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine\n")
    assert wanted_mode() == "offline"


def test_the_users_mode_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wanted_mode() == "disabled"
