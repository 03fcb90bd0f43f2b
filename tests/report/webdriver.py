"""Headless Chromium through chromedriver's WebDriver protocol, with the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def missing() -> str | None:
    """Why no browser can be driven here; None where one can."""
    names = [name for name in ("chromedriver", "chromium") if shutil.which(name) is None]
    return f"{' and '.join(names)} not installed (see .ci/run)" if names else None


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser for the time of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--allowed-ips=127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    opened = None
    try:
        opened = Browser(f"http://127.0.0.1:{port}")
        yield opened
    finally:
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.call("DELETE", "")
        driver.terminate()
        driver.wait(20)


class Browser:
    """One window."""

    def __init__(self, server: str) -> None:
        self.base = f"{server}/session"
        options = {
            # As root there is no sandbox; no host but this machine's can be looked up.
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--disable-background-networking",
            ],
            "binary": shutil.which("chromium"),
        }  # fmt: skip
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        end = time.monotonic() + 60
        while True:
            try:
                made = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        self.base += f"/{made['sessionId']}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        # No proxy: the driver is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        self.call("POST", "/url", {"url": page.resolve().as_uri()})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def log(self, kind: str = "browser") -> list[dict[str, Any]]:
        """What came to the console (or `performance`: what the page did) since the last call."""
        found: list[dict[str, Any]] = self.call("POST", "/se/log", {"type": kind})
        return found

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))
