"""A real browser, driven by its debugging protocol over two pipes: no package is needed for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One tab of a browser.

    Args:
        write, read: Ends of the pipes.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._read = os.fdopen(read, "rb")
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the page has said to the console, or failed by."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; what is told meanwhile is noted."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    def _next(self) -> Any:
        text = b""
        while not text.endswith(b"\0"):
            text += self._read.read(1)
        told = json.loads(text[:-1])
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(told["params"]["exceptionDetails"]))
        if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
            self.complaints.append(str(told["params"]["entry"]))
        if told.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(told["params"]))
        return told

    def open(
        self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        """Open an address, and wait until it is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def close(self) -> None:
        """Read no more from it."""
        self._read.close()

    def run(self, script: str) -> Any:
        """Run JavaScript in the page; return its value, of a promise what it comes to."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 60) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + timeout_s
        while not self.run(condition):
            assert time.monotonic() < until, condition
            time.sleep(0.05)

    def picture(self, to: Path, *, height: int | None = None, of: str = "html") -> None:
        """Take a picture of an element, the upper part where a height is given."""
        at = "(({x, y, width, height}) => ({x, y, width, height}))"
        box = self.run(f"{at}(document.querySelector({json.dumps(of)}).getBoundingClientRect())")
        box["y"] += self.run("scrollY")
        clip = {**box, "height": min(height or 10**9, box["height"]), "scale": 0.75}
        found = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        to.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def open_browser(directory: Path) -> Iterator[Browser]:
    """Start a browser for a block; its files are in a directory."""
    assert BROWSER is not None
    from_us, to_us = os.pipe(), os.pipe()

    def pass_on() -> None:
        # As the protocol has it: it reads 3 and writes 4.
        read, write = os.dup(from_us[0]), os.dup(to_us[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
        "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={directory / 'browser'}",
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        preexec_fn=pass_on,
        close_fds=False,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(from_us[0])
        os.close(to_us[1])
        browser = Browser(from_us[1], to_us[0])
        try:
            yield browser
        finally:
            process.kill()
            os.close(from_us[1])
            browser.close()
