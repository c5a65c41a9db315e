"""An engine of one batch at a time with the ways of talking of vLLM and SGLang: HTTP to clients, a
channel to the clock.
"""

import itertools
import json
import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from llmsim.emulation.in_engine.channel import Channel


class StandIn:
    """Runs all requests that it has in every step."""

    def __init__(self, socket_path: str, breaks_at: int = 0, number: int = 0) -> None:
        """`breaks_at`: the number from 1 of the part of an answer in whose place it hangs up.
        `number`: of the engine core.
        """
        self._parts, self._breaks_at = itertools.count(1), breaks_at
        self._channel = Channel(socket_path, number)
        self._inbox: queue.Queue[Any] = queue.Queue()
        self._lock = threading.Lock()
        self._parked = False
        self._left: set[str] = set()
        """Requests whose clients have left."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Ends the server; the engine's thread ends with the channel."""
        self._server.shutdown()
        self._server.server_close()
        self._inbox.put(None)

    def _received(self, request: dict[str, Any]) -> None:
        with self._lock:
            self._inbox.put(request)
            if self._parked:
                self._parked = False
                self._channel.unpark()
            self._channel.received(request["name"], request["left"])

    def _leaves(self, name: str) -> None:
        with self._lock:
            self._left.add(name)
            self._channel.left([name])

    def _run(self) -> None:
        running: list[dict[str, Any]] = []
        while True:
            if not running:
                with self._lock:
                    if self._inbox.empty():
                        self._parked = True
                        self._channel.park()
                running.append(self._inbox.get())
            if running[-1] is None:
                self._channel.close()
                return
            self._channel.settle()
            while not self._inbox.empty():
                running.append(self._inbox.get())
            running = self._without_those_left(running)
            running = self._step(running) if running else []

    def _without_those_left(self, running: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in running if one["name"] not in self._left]

    def _step(self, running: list[dict[str, Any]]) -> list[dict[str, Any]]:
        items = [
            [one["name"], one["left"], one["computed"], 0, one["computed"] == 0] for one in running
        ]
        end_ps, tokens, _ = self._channel.step(items)
        self._channel.wait(end_ps)
        known = dict(zip((one["name"] for one in running), tokens, strict=True))
        running = self._without_those_left(running)
        tokens = [known[one["name"]] for one in running]
        self._channel.produced(
            [
                (one["name"], len(given), one["wanted"] == len(given))
                for one, given in zip(running, tokens, strict=True)
            ]
        )
        for one, given in zip(running, tokens, strict=True):
            one["computed"] += one["left"]
            one["left"] = 1
            one["wanted"] -= len(given)
            one["out"].put((given, one["wanted"] == 0))
        return [one for one in running if one["wanted"] > 0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def give(self, text: str) -> None:
                if next(engine._parts) == engine._breaks_at:
                    self.connection.shutdown(socket.SHUT_RDWR)
                data = text.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name, prompt_tokens, wanted = _asked(self.path, body, self.headers["X-Request-Id"])
                is_long = prompt_tokens > 1000
                if is_long and self.path != "/generate":
                    self.send_error(400, "the prompt is too long")
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if is_long:  # SGLang has answered by then
                    self.event({"error": {"message": "the prompt is too long", "code": 400}})
                else:
                    self.answer(name, prompt_tokens, wanted)
                self.give("data: [DONE]\n\n")
                self.give("")

            def event(self, content: dict[str, Any]) -> None:
                self.give(f"data: {json.dumps(content)}\n\n")

            def answer(self, name: str, prompt_tokens: int, wanted: int) -> None:
                out: queue.Queue[tuple[list[int], bool]] = queue.Queue()
                engine._received(
                    {"name": name, "left": prompt_tokens, "computed": 0, "out": out}
                    | {"wanted": wanted}
                )
                watching = (engine, self.connection, name)
                threading.Thread(target=_watch, args=watching, daemon=True).start()
                ended = False
                while not ended:
                    tokens, ended = out.get()
                    self.event(_told(self.path, name, tokens))

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _asked(path: str, body: dict[str, Any], request_id: str) -> tuple[str, int, int]:
    """The name of a request in the engine, its prompt tokens and the tokens that it wants."""
    if path == "/generate":  # SGLang's
        return body["rid"], len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]
    return f"cmpl-{request_id}-0-ab12", len(body["prompt"]), body["max_tokens"]


def _told(path: str, name: str, tokens: list[int]) -> dict[str, Any]:
    """The event of an answer with further tokens."""
    if path == "/generate":
        return {"output_ids": tokens, "meta_info": {"id": name}}
    return {"choices": [{"text": "", "token_ids": tokens}]}


def _watch(engine: Any, connection: socket.socket, name: str) -> None:
    """Tells the engine when the client of a request closes the connection."""
    try:
        gone = not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        gone = True
    if gone:
        engine._leaves(name)
