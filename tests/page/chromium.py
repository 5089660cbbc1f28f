"""Chromium without a screen, spoken to over a pipe: pages opened, asked, and photographed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from servers.process import find_program

__all__ = ["Chromium", "Page", "run_chromium"]

# A start takes about a second, on a busy machine ten times as long.
_DEADLINE_S = 60.0


class Chromium:
    """A browser that is there until the end of ``run_chromium``."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = to, of
        self._rest = b""
        self._number = 0
        #: What was told of that nobody had asked for.
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """What the browser answers; see the Chrome DevTools Protocol."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        message = json.dumps(asked | ({"sessionId": session} if session else {}))
        os.write(self._to, message.encode() + b"\0")
        while (told := self._next()).get("id") != self._number:
            self.events.append(told)
        assert "error" not in told, (method, told)
        result: dict[str, Any] = told["result"]
        return result

    def wait(self, method: str, session: str) -> None:
        """Until the browser has told of this in a session."""
        while not any(each["method"] == method for each in self.events if each.get("sessionId") == session):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        deadline = monotonic() + _DEADLINE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._of], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium said nothing for {_DEADLINE_S:.0f} s")
            more = os.read(self._of, 1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def open(self, path: Path, *, width: int = 1180, height: int = 1200, dark: bool = False) -> Page:
        """A file as a page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.resize(width, height)
        page.call("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired", session)
        return page


class Page:
    """An open page."""

    def __init__(self, chromium: Chromium, target: str, session: str) -> None:
        self._chromium, self._target, self._session = chromium, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """See ``Chromium.call``."""
        return self._chromium.call(method, self._session, **params)

    def resize(self, width: int, height: int) -> None:
        """Make the window as large."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """What is on the console."""
        kinds = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
        return [event for event in self._told() if event["method"] in kinds]

    def requests(self) -> list[str]:
        """The URLs that were asked for."""
        asked = [event for event in self._told() if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in asked]

    def picture(self) -> bytes:
        """The whole page as a PNG."""
        height = self.ask("document.documentElement.scrollHeight")
        self.resize(self.ask("innerWidth"), height)
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        """Close it."""
        self._chromium.call("Target.closeTarget", targetId=self._target)

    def _told(self) -> list[dict[str, Any]]:
        return [event for event in self._chromium.events if event.get("sessionId") == self._session]


@contextmanager
def run_chromium(folder: Path) -> Iterator[Chromium]:
    """Run the browser; skips or fails the test if it is not installed.

    Args:
        folder: For its profile, and all else that it writes.
    """
    program = find_program("chromium")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += [
        "--disable-background-networking",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder}/profile",
    ]
    command += ["--remote-debugging-pipe"]
    their_input, to = os.pipe()
    of, their_output = os.pipe()
    # Its ends of the pipes have to be 3 and 4; and a test that passes its time limit ends without clean-up.
    setpriv = [shutil.which("setpriv"), "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    redirect = f'exec "$@" 3<&{their_input} 4>&{their_output}'
    process = subprocess.Popen(
        [*setpriv, "bash", "-c", redirect, "bash", *command],
        pass_fds=(their_input, their_output),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "XDG_CACHE_HOME": str(folder),
        },
    )
    os.close(their_input)
    os.close(their_output)
    try:
        chromium = Chromium(to, of)
        yield chromium
        with suppress(RuntimeError, OSError):
            chromium.call("Browser.close")
    finally:
        os.close(to)
        os.close(of)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
