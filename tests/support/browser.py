"""A headless Chromium, driven over its debugging pipe: what the page's tests look through."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_S = 30.0
# The browser speaks on descriptors 3 and 4, and no others may be handed on to it.
_HAND_ON = (
    "import os, sys; r, w = int(sys.argv[1]), int(sys.argv[2]); "
    "r, w = os.dup(r) if r in (3, 4) else r, os.dup(w) if w in (3, 4) else w; "
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
    *("--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-extensions", "--disable-sync", "--mute-audio"),
    # Each tab is as one that somebody looks at.
    *("--disable-renderer-backgrounding", "--disable-background-timer-throttling"),
    *("--disable-backgrounding-occluded-windows", "--hide-scrollbars", "about:blank"),
)


def found() -> str:
    """Find a Chromium; empty where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


class Page:
    """One tab.

    Attributes:
        asked: URLs of its requests.
        problems: what it complains of: exceptions, and what its policy or the network refused.
    """

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.asked: list[str] = []
        self.problems: list[str] = []
        browser.pages[session] = self

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        return await self._browser.call(method, self._session, **parameters)

    async def evaluate(self, script: str) -> Any:
        """Run a script; a promise is waited for."""
        told = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a script's value holds."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not await self.evaluate(script):  # noqa: ASYNC110 -- it tells of no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.evaluate("document.body.innerText")
            raise AssertionError(f"never: {script}\n{shown}\n{self.problems}") from None

    async def open(self, url: str) -> None:
        """Go somewhere, and wait until all is loaded."""
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href === {url!r} && document.readyState === 'complete'")

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key where the focus is."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        about["modifiers"] = 8 if shift else 0
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def write(self, text: str) -> None:
        """Write where the focus is."""
        await self.call("Input.insertText", text=text)

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Have a size and a scheme of colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """Show what is seen, as PNG."""
        told = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(told["data"])

    def note(self, method: str, about: Any) -> None:
        """Take an event in."""
        match method:
            case "Network.requestWillBeSent":
                self.asked.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(about["exceptionDetails"]))
            case "Log.entryAdded" if about["entry"]["level"] == "error":
                self.problems.append(about["entry"]["text"])
            case _:
                pass


class Browser:
    """A running Chromium."""

    def __init__(self, reader: asyncio.StreamReader, written: int) -> None:
        self._reader = reader
        self._written = written
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Take in what it says, until it ends."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                told = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if "id" in told:
                    if not (waiting := self._waiting.pop(told["id"])).done():
                        waiting.set_result(told)
                elif page := self.pages.get(told.get("sessionId", "")):
                    page.note(told["method"], told["params"])

    async def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        os.write(self._written, json.dumps(message).encode() + b"\0")
        told = await asyncio.wait_for(answer, WAIT_S)
        assert "error" not in told, told
        return told["result"]

    async def page(self) -> Page:
        """Open a tab, which shares nothing with others."""
        context = await self.call("Target.createBrowserContext")
        target = await self.call("Target.createTarget", url="about:blank", **context)
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        return page


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """Run one for the length of the block."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(prefix="bramley-browser-", ignore_cleanup_errors=True) as home:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-c", _HAND_ON, str(theirs_in), str(theirs_out)),
            *(found(), f"--user-data-dir={home}", *_FLAGS),
            pass_fds=(theirs_in, theirs_out),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        reader = asyncio.StreamReader(limit=64 << 20)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb", 0)
        )
        browser = Browser(reader, ours_out)
        listening = asyncio.create_task(browser.listen())
        try:
            yield browser
            with suppress(AssertionError, TimeoutError):
                await browser.call("Browser.close")
        finally:
            if process.returncode is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 5)
            if process.returncode is None:
                process.kill()
                await process.wait()
            listening.cancel()
            transport.close()
            os.close(ours_out)
