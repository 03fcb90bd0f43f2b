"""Whether W&B can be used online, from files and the environment alone: no network, no question to the user."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit


def wanted_mode() -> str | None:
    """`offline` when nobody is logged in; None leaves it to W&B's own settings (WANDB_MODE, a logged-in account)."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    return None if logged_in() else "offline"


def logged_in() -> bool:
    """An API key in the environment or, for this server, in the user's netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            if netrc.netrc(str(path)).authenticators(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
