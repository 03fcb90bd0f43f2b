"""A run in W&B, by its client."""

from __future__ import annotations

import hashlib
import netrc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from topr_exp.runs.records import Record
from topr_exp.tracking.follower import COLUMNS, Follower, allowed, flat, sample_rows

INIT_SECONDS = 60.0  # to reach W&B, unless WANDB_INIT_TIMEOUT is set


class WandbRun(Follower):
    """One run folder and the W&B run that shows it.

    What W&B already has is known by its last step, so a resumed run sends just the rest. Offline everything is written
    again into one new folder: the files of the run hold all of it.
    """

    run: Any = None

    # ---- opening

    def open(self) -> None:
        """Start the W&B run, or go on with it under the same id."""
        import wandb

        mode, old = wanted_mode(), list((self.folder / "wandb").glob("offline-run-*"))
        try:
            self.run = self.init(wandb, mode)
        except Exception as error:
            if mode == "offline":
                raise
            text = " ".join(str(error).split())[:200]
            self.report("unreachable", warning=f"going on offline ({text})")
            wandb.teardown()  # the failed attempt holds the id
            self.run = self.init(wandb, "offline")
        if self.run.settings.mode == "offline":
            for folder in old:  # superseded: everything is written again
                shutil.rmtree(folder, ignore_errors=True)
        elif self.run.resumed:
            self.sent = int(self.run.step) - 1
        for kind in ("train", "curve", "eval"):
            self.run.define_metric(f"{kind}/*", step_metric="optimizer_step")
        for axis in ("optimizer_step", "samples"):
            self.run.define_metric(axis, hidden=True)
        mode = self.run.settings.mode
        url = self.run.url if mode == "online" else None
        self.report("opened", mode=mode, path=str(Path(self.run.settings.sync_dir)), url=url)

    def init(self, wandb: Any, mode: str | None) -> Any:
        tracking, config, identity = self.request["tracking"], self.read("config.json"), run_id(self.folder)
        resolved = config["resolved"]
        tags = [resolved["algo"]["name"], resolved["data"]["name"], resolved["data"].get("source", "")]
        return wandb.init(
            project=tracking["project"],
            entity=tracking["entity"],
            group=tracking["group"],
            job_type=tracking["job_type"],
            name=self.folder.name,
            id=identity,
            resume="allow" if mode != "offline" else None,
            dir=str(self.folder),
            mode=mode,
            tags=[tag[:64] for tag in [*tags, resolved["model"]["name"]] if tag],
            config={**resolved, "overrides": self.request["overrides"], "environment": self.read("environment.json")},
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
                x_stats_pid=self.request["pid"],
            ),
        )

    # ---- sending

    def put(self, step: int, kind: str, record: Record) -> None:
        self.run.log({**flat(kind, record), **self.table(kind, record)}, step=step)

    def table(self, kind: str, record: Record) -> dict[str, Any]:
        """Some completions of an evaluation on the whole test set; their text stays text."""
        import wandb

        rows = list(sample_rows(record)) if kind == "eval" else []
        return {"completions": wandb.Table(columns=list(COLUMNS), data=rows)} if rows else {}

    # ---- closing

    def close(self, end: dict[str, Any] | None) -> None:
        """Send the summary and finish."""
        if (self.folder / "DONE").exists():
            summary = {allowed(name): value for name, value in leaves(self.read("summary.json"))}
            self.run.summary.update(summary)
            if self.request["tracking"]["model_artifact"]:
                self.run.log_model(str(self.folder / "model"), name=f"model-{self.run.id}")
        if end is None or end["preempted"]:
            self.run.mark_preempting()
        self.run.finish(exit_code=end["exit_code"] if end is not None else 1)


def run_id(folder: Path) -> str:
    """The W&B id: the same for every attempt at this run, another one when the folder was removed and made again."""
    made = (folder / "environment.json").read_bytes()
    return f"{folder.name[:48]}-{hashlib.sha256(made).hexdigest()[:8]}"


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The summary's values by path, as final/pass@1; lists (the iterations' records) are curves already."""
    for name, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, f"{prefix}{name}/")
        elif not isinstance(item, list):
            yield f"{prefix}{name}", item


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
