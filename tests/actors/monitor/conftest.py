"""A browser for the monitor's page: Debian's Chromium without a window, driven over two pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 120
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--lang=en"),
)

# The debugging pipes are descriptors 3 and 4.
_EXEC = """\
import os, sys
for end, at in zip(sys.argv[1:3], (3, 4)):
    os.dup2(int(end), at)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One window, by Chromium's debugging protocol: JSON messages that end with a zero byte."""

    def __init__(self, program: str, place: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # away from 3 and 4, where the browser looks for them
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]
        words = [*map(str, ends), program, *_FLAGS, f"--user-data-dir={place}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, *words],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._came = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        (target,) = (
            each for each in self._ask("Target.getTargets")["targetInfos"] if each["type"] == "page"
        )
        at = {"targetId": target["targetId"], "flatten": True}
        self._session = self._ask("Target.attachToTarget", **at)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def _next(self) -> Any:
        while b"\0" not in self._came:
            came = os.read(self._in, 1 << 20)
            assert came, "the browser has ended"
            self._came += came
        line, _, self._came = self._came.partition(b"\0")
        found = json.loads(line)
        if found.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(found["params"]["exceptionDetails"]))
        if found.get("method") == "Log.entryAdded":
            entry = found["params"]["entry"]
            if entry["level"] == "error":
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        return found

    def open(self, url: str) -> None:
        """Load a page from scratch."""
        self._ask("Page.navigate", url="about:blank")
        self._ask("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true; its value."""
        script = f"((found) => (found instanceof Node ? true : found))({script})"
        deadline = time.monotonic() + WAIT_S
        while not (found := self.run(script)):
            text = self.run("document.body?.innerText")
            assert time.monotonic() < deadline, f"{script}\n{text}\n{self.complaints}"
            time.sleep(0.02)
        return found

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            at = {"type": kind, "key": key, "windowsVirtualKeyCode": code}
            self._ask("Input.dispatchKeyEvent", **at)
        if key == "Enter":
            self._ask("Input.dispatchKeyEvent", type="char", text="\r", key=key)

    def look(self, width: int, *, dark: bool, height: int = 800) -> None:
        """Be this large, and light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Of the whole page, or of what the window shows of it."""
        found = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    found = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[str], Path]:
    """Where a screenshot goes: PENSTOCK_SCREENSHOTS, or the test's own directory."""
    place = Path(os.environ.get("PENSTOCK_SCREENSHOTS", tmp_path))
    place.mkdir(exist_ok=True)
    return lambda name: place / f"{name}.png"
