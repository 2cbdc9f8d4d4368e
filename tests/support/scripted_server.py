"""A server of OpenAI's chat completions that plays a script, and knows when it said what.

It answers in words of one token each. What a client measures can be held against the script, and
against ``heard``, in which the server itself noted its times.
"""

import contextlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from typing_extensions import override

from support.virtual_time import Gone, RealTime, Times

MODEL = "scripted"
# What goes wrong with a request: a status, an end in the midst, an error event, or what is no JSON.
Fault = Literal["refuse", "cut", "error", "garble"]


@dataclass(kw_only=True)
class Script:
    """What the server does; all may be changed while it runs.

    Attributes:
        ttft_s: to the first word of a prompt that it does not know.
        cached_s: of one that begins as one before.
        long_s: of a prompt of ``long_words`` words and more that it does not know.
        itl_s: between words.
        long_itl_s: between words while the first word of a long prompt is waited for.
        words: of an answer, at most as many as are asked for.
        usage: whether it tells its counts at the end.
        tells_cached: whether they say what was cached.
        finish: its word for the end.
        faults: of the next requests, one each.
    """

    ttft_s: float = 0.001
    cached_s: float = 0.001
    long_s: float = 0.0
    long_words: int = 10**9
    itl_s: float = 0.001
    long_itl_s: float = 0.001
    words: int = 10**9
    usage: bool = True
    tells_cached: bool = True
    finish: str = "length"
    faults: list[Fault | None] = field(default_factory=list[Fault | None])


@dataclass
class Heard:
    """One request, and when it came and was answered."""

    prompt: str
    body: dict[str, Any]
    came_s: float
    cached: int = 0
    words_s: list[float] = field(default_factory=list[float])
    ended_s: float = 0.0


class ScriptedServer(ThreadingHTTPServer):
    """Plays ``script``; ``heard`` has all requests in the order of their coming."""

    daemon_threads = True

    def __init__(self, script: Script, times: Times) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.times = script, times
        self.heard: list[Heard] = []
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that leave."""

    def hear(self, body: dict[str, Any], came_s: float) -> tuple[Heard, Fault | None]:
        """Note a request, and tell what shall go wrong with it."""
        prompt = json.dumps(body["messages"])
        with self.guard:
            known = max(
                (_common(prompt, before.prompt) for before in self.heard if before.words_s),
                default=0,
            )
            heard = Heard(prompt, body, came_s, known)
            self.heard.append(heard)
            fault = self.script.faults.pop(0) if self.script.faults else None
            return heard, fault


def _common(one: str, other: str) -> int:
    """Words that two prompts begin with alike, if there are enough to be worth anything."""
    pairs = zip(one.split(), other.split(), strict=False)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
    whole = min(len(one.split()), len(other.split()))
    count = whole if same is None else same
    return count if count > len(other.split()) // 2 else 0


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer  # pyright: ignore[reportIncompatibleVariableOverride]  what it is
    protocol_version = "HTTP/1.0"  # a stream ends with its connection

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Name the one model."""
        told = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
        self._start(200)
        self.wfile.write(told)

    def do_POST(self) -> None:
        """Play the script."""
        came_s = self.server.times.now()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self._start(404)
            return
        heard, fault = self.server.hear(body, came_s)
        if fault == "refuse":
            self._start(503)
            self.wfile.write(b'{"error": "no room"}')
            return
        self._start(200)
        with contextlib.suppress(Gone):
            self._answer(heard, fault)

    def _start(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def _answer(self, heard: Heard, fault: Fault | None) -> None:
        script, times = self.server.script, self.server.times
        words = min(script.words, heard.body["max_tokens"])
        self._say(delta={"role": "assistant", "content": ""})
        due_s = heard.came_s + self._first_s(heard)
        for word in range(words):
            times.until(heard.prompt, due_s)
            if word == words // 2 and self._fails(fault):
                return
            heard.words_s.append(times.now())
            self._say(delta={"content": f"w{word} "})
            times.until_read(heard.prompt, word + 1)
            due_s = heard.words_s[-1] + self._pause_s()
        self._say(delta={}, finish_reason=script.finish)
        if script.usage and heard.body.get("stream_options", {}).get("include_usage"):
            self._send({"choices": [], "usage": self._usage(heard, words)})
        self.wfile.write(b"data: [DONE]\n\n")
        heard.ended_s = times.now()

    def _pause_s(self) -> float:
        script = self.server.script
        waited_for = any(self._is_long(each) and not each.words_s for each in self.server.heard)
        return script.long_itl_s if waited_for else script.itl_s

    def _is_long(self, heard: Heard) -> bool:
        return not heard.cached and len(heard.prompt.split()) >= self.server.script.long_words

    def _first_s(self, heard: Heard) -> float:
        script = self.server.script
        if heard.cached:
            return script.cached_s
        return script.long_s if self._is_long(heard) else script.ttft_s

    def _fails(self, fault: Fault | None) -> bool:
        if fault == "error":
            self._send({"error": {"message": "the device is lost"}})
        elif fault == "garble":
            self.wfile.write(b'data: {"choices": [\n\n')
        return fault is not None

    def _usage(self, heard: Heard, words: int) -> dict[str, Any]:
        told: dict[str, Any] = {
            "prompt_tokens": len(heard.prompt.split()),
            "completion_tokens": words,
        }
        if self.server.script.tells_cached:
            told["prompt_tokens_details"] = {"cached_tokens": heard.cached}
        return told

    def _say(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self._send({"choices": [choice], "usage": None})

    def _send(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()


@contextmanager
def scripted_server(script: Script, times: Times | None = None) -> Generator[ScriptedServer]:
    """Run a server while the block runs.

    Yields:
        It, listening.
    """
    with ScriptedServer(script, times or RealTime()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
