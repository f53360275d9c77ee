"""Headless Chromium, driven over two pipes: what a page looks like, and how long it takes.

It uses the browser's own debugging protocol, so that nothing else has to be installed. That opens
no socket, and the browser's profile is where the caller says.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.shared.errors import BrokerTimeout, StoreUnavailable

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
    """One window, by Chromium's debugging protocol: JSON messages that end with a zero byte.

    Its methods raise StoreUnavailable if the browser ends or refuses.
    """

    def __init__(self, program: str, place: Path) -> None:
        """`place` is the directory for its profile."""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # not 3 and 4, which the browser uses
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
        targets = self.command("Target.getTargets")["targetInfos"]
        (target,) = (each for each in targets if each["type"] == "page")
        at = {"targetId": target["targetId"], "flatten": True}
        self._session = self.command("Target.attachToTarget", **at)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> Any:
        """The browser's answer to a command of its protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    said = f"{method}: {found['error'].get('message')}"
                    raise StoreUnavailable("the browser refuses a command", said)
                return found["result"]

    def _next(self) -> Any:
        while b"\0" not in self._came:
            came = os.read(self._in, 1 << 20)
            if not came:
                raise StoreUnavailable("the browser has ended", "chromium", "start it by hand")
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
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            said = f"{script}: {found['exceptionDetails']}"
            raise StoreUnavailable("a script failed in the page", said)
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true; returns its value. Raises BrokerTimeout."""
        script = f"((found) => (found instanceof Node ? true : found))({script})"
        deadline = time.monotonic() + WAIT_S
        while not (found := self.run(script)):
            text = self.run("document.body?.innerText")
            if time.monotonic() > deadline:
                said = f"{text}\n{self.complaints}"
                raise BrokerTimeout(f"the page does not come to it within {WAIT_S} s", script, said)
            time.sleep(0.02)
        return found

    def press(self, key: str, code: int) -> None:
        """Press a key, given by its name and its virtual code."""
        for kind in ("rawKeyDown", "keyUp"):
            at = {"type": kind, "key": key, "windowsVirtualKeyCode": code}
            self.command("Input.dispatchKeyEvent", **at)
        if key == "Enter":
            self.command("Input.dispatchKeyEvent", type="char", text="\r", key=key)

    def look(self, width: int, *, dark: bool, height: int = 800) -> None:
        """Set the window's size, and a light or dark theme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """A picture of the whole page, or of the part in the window."""
        found = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """Kill it with all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
