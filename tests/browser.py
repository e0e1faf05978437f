"""Debian's chromium without a window, as far as a page is to be looked at: over its pipe, which needs no library."""

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import allowed

_SECONDS = 60.0  # for any answer
_COMMAND = (
    "chromium",
    "--headless=new",
    "--no-sandbox",  # the tests are root, in a container
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


@dataclass
class Browser:
    """A browser with one tab. `troubles` are errors and warnings of the console, `requests` the addresses asked for."""

    to: int
    back: int
    session: str = ""
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _events: list[str] = field(default_factory=list)
    _last: int = 0
    _rest: bytes = b""

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        self._last += 1
        session = {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps({"id": self._last, "method": method, "params": given, **session}).encode() + b"\0")
        while True:
            said = self._said()
            if said.get("id") == self._last:
                assert "error" not in said, (method, said["error"])
                result: dict[str, Any] = said["result"]
                return result

    def value(self, expression: str) -> Any:
        """What a script on the page says; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Open a page in a window of that size, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._said()

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}[key])

    def screenshot(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def _said(self) -> dict[str, Any]:
        until = time.monotonic() + allowed(_SECONDS)
        while b"\0" not in self._rest:
            assert select.select([self.back], [], [], max(0.0, until - time.monotonic()))[0], "the browser is silent"
            more = os.read(self.back, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(first)
        method, given = said.get("method", ""), said.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.troubles.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.troubles.append(str(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.troubles.append(str(given["args"]))
        return said


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser with an empty tab."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{in_read} 4>&{out_write}', "-", *_COMMAND, f"--user-data-dir={home}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(in_read, out_write),
            env={**os.environ, "HOME": home},
        )
        os.close(in_read)
        os.close(out_write)
        browser = Browser(in_write, out_read)
        try:
            tab = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                browser.call(f"{domain}.enable")
            yield browser
        finally:
            process.kill()
            process.wait()
            os.close(in_write)
            os.close(out_read)
