"""What `llmsim serve` holds: 2,000 streams at 20,000 tokens/s, and clients that misbehave.

    taskset -c 0,1 python evaluation/serve_load.py

starts the server on one core (`taskset -c 0`) and asks it from another, on 127.0.0.1. It prints a
row for each question and ends after at most two minutes.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np

from llmsim.cli.arguments import OneSentenceParser

CLUSTER = "cluster_config/h100_llama31_8b.json"
STREAMS, TOKENS_PER_S = 2_000, 10.1
"""Streams at a time, and tokens that each gets in a second."""
ANSWER_TOKENS = 200
IDLE = 10_000
LONGEST_S = 110


class Client:
    """Asks a server on this machine over plain sockets: reading costs as little as it can."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(
        self, tokens: int, *, body: bytes | None = None, path: str = "/v1/completions"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request for that many tokens is sent; its answer is still to be read."""
        reader, writer = await self.connect()
        asked = {"prompt": [1, 2, 3], "max_tokens": tokens, "stream": True}
        data = json.dumps(asked).encode() if body is None else body
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
        writer.write(head.encode() + str(len(data)).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        return reader, writer

    async def chunks(self, reader: asyncio.StreamReader) -> AsyncIterator[tuple[float, int]]:
        """(when, how many) chunks came together, until the answer has ended."""
        left = b""
        while data := await reader.read(1 << 16):
            # A chunk begins with an event's first bytes; one may be cut by a packet.
            joined = left + data
            count = joined.count(b"data: {")
            left = joined[-6:] if not joined.endswith(b"data: {") else b""
            yield time.monotonic(), count

    async def status(self, body: bytes, path: str = "/v1/completions", wait_s: float = 20) -> str:
        """The status of an answer; "closed" where the server says nothing."""
        try:
            reader, writer = await self.ask(0, body=body, path=path)
            line = await asyncio.wait_for(reader.readline(), wait_s)
            writer.close()
        except (ConnectionError, TimeoutError) as error:
            return type(error).__name__
        return line.decode().strip().removeprefix("HTTP/1.1 ") or "closed"

    async def whole(self, tokens: int) -> tuple[int, list[float]]:
        """(chunks, when each came) of one stream."""
        reader, writer = await self.ask(tokens)
        times: list[float] = []
        async for at_s, count in self.chunks(reader):
            times += [at_s] * count
        writer.close()
        return len(times), times


async def many_streams(client: Client) -> list[list[str]]:
    """2,000 streams at once, each with a chunk for every token."""
    began_s = time.monotonic()
    found = await asyncio.gather(
        *(client.whole(ANSWER_TOKENS) for _ in range(STREAMS)), return_exceptions=True
    )
    took_s = time.monotonic() - began_s
    answers = [one for one in found if not isinstance(one, BaseException)]
    lost = STREAMS - sum(count == ANSWER_TOKENS for count, _ in answers)
    times = np.sort(np.concatenate([one for _, one in answers]))
    middle = times[len(times) // 10 : -len(times) // 10]
    rate = len(middle) / (middle[-1] - middle[0])
    gaps_ms = np.concatenate([np.diff(one) for _, one in answers]) * 1e3
    together = float(np.mean(gaps_ms < 0.001))
    return [
        ["streams at once", f"{STREAMS:,}"],
        ["streams that lost a token", f"{lost:,}"],
        ["tokens/s, the middle 80 %", f"{rate:,.0f}"],
        ["seconds", f"{took_s:.1f}"],
        ["time between chunks, p50 / p99 / highest", " / ".join(
            f"{np.percentile(gaps_ms, share):.0f}" for share in (50, 99, 100)) + " ms"],
        ["chunks that were read together with the one before", f"{together:.1%}"],
    ]  # fmt: skip


async def slow_readers(client: Client) -> list[list[str]]:
    """100 clients ask for 2,000 tokens and read nothing for 10 s, while one reads as it should."""
    slow = [await client.ask(2_000) for _ in range(100)]
    count, times = await client.whole(100)
    await asyncio.sleep(max(0.0, 10 - (times[-1] - times[0])))
    gaps_ms = np.diff(times) * 1e3
    for _, writer in slow:
        writer.close()
    return [
        ["beside 100 that do not read: chunks of 100", str(count)],
        ["and the time between them, p50 / highest",
         f"{np.median(gaps_ms):.0f} / {gaps_ms.max():.0f} ms"],
    ]  # fmt: skip


async def disconnects(client: Client) -> list[list[str]]:
    """500 clients leave after their first tokens; the simulation forgets their requests."""
    for _ in range(10):
        asked = await asyncio.gather(*(client.ask(2_000) for _ in range(50)))
        await asyncio.gather(*(reader.read(400) for reader, _ in asked))
        for _, writer in asked:
            writer.transport.abort()
    await asyncio.sleep(1)
    running = await gauge(client, "vllm:num_requests_running")
    return [["500 disconnects: requests that still run a second later", f"{running:.0f}"]]


async def bad_requests(client: Client) -> list[list[str]]:
    """What the server answers to what is no request."""
    oversized = json.dumps({"prompt": "x" * (40 << 20)}).encode()
    return [
        ["40 MB of prompt", await client.status(oversized)],
        ["a prompt longer than the model", await client.status(
            json.dumps({"prompt": [1] * 200_000, "max_tokens": 1}).encode())],
        ["half of a JSON object", await client.status(b'{"prompt": ')],
        ["a number for the prompt", await client.status(b'{"prompt": 3}')],
        ["bytes that are no UTF-8", await client.status(b"\xff\xfe")],
        ["negative max_tokens", await client.status(b'{"prompt": "a", "max_tokens": -1}')],
        ["a path that is none", await client.status(b"{}", path="/v1/nothing")],
    ]  # fmt: skip


async def idle_connections(client: Client) -> list[list[str]]:
    """10,000 connections that say nothing, and one that does."""
    held = []
    with contextlib.suppress(OSError):
        for _ in range(IDLE // 100):
            held += await asyncio.gather(*(client.connect() for _ in range(100)))
    began_s = time.monotonic()
    count, times = await client.whole(50)
    took_ms = (times[0] - began_s) * 1e3
    for _, writer in held:
        writer.transport.abort()
    return [
        ["idle connections", f"{len(held):,}"],
        ["beside them: chunks of 50, time to the first", f"{count}, {took_ms:.0f} ms"],
    ]


async def gauge(client: Client, name: str) -> float:
    """A gauge of /metrics, over all models."""
    reader, writer = await client.connect()
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read(-1)).decode()
    writer.close()
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


QUESTIONS: dict[str, Callable[[Client], Awaitable[list[list[str]]]]] = {
    "streams": many_streams,
    "slow": slow_readers,
    "disconnects": disconnects,
    "bad": bad_requests,
    "idle": idle_connections,
}


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask_all(port: int, pid: int, questions: list[str]) -> None:
    """Prints the rows."""
    print("| question | answer |\n| --- | --- |")
    client = Client(port)
    for name in questions:
        before_s, began_s = cpu_s(pid), time.monotonic()
        for row in await asyncio.wait_for(QUESTIONS[name](client), LONGEST_S):
            print(f"| {' | '.join(row)} |", flush=True)
        used_s, took_s = cpu_s(pid) - before_s, time.monotonic() - began_s
        print(f"| {name}: CPU of the server | {used_s:.1f} s in {took_s:.1f} s |", flush=True)


def fixed_steps(folder: Path) -> Path:
    """Coefficients of steps that take 1 / `TOKENS_PER_S`, whatever is in them."""
    path = folder / "steps.json"
    step_us = 1e6 / TOKENS_PER_S
    path.write_text(json.dumps({"beta": [step_us, 0, 0], "alpha": [0, 0, 0]}), encoding="utf-8")
    return path


def main() -> None:
    """Starts the server, asks it, and ends it."""
    parser = OneSentenceParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--server-core", default="0")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        words = ["taskset", "-c", given.server_core, sys.executable, "-m", "llmsim", "serve"]
        words += ["--cluster-config", CLUSTER, "--port", "0"]
        words += ["--cost-source", f"blackbox:{fixed_steps(Path(folder))}"]
        words += ["--max-num-seqs", str(STREAMS), "--max-num-batched-tokens", "8192"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        ready = server.stdout.readline()
        try:
            asyncio.run(ask_all(int(ready.rsplit(":", 1)[1]), server.pid, given.only))
        finally:
            server.send_signal(signal.SIGTERM)
            print(f"| exit code after SIGTERM | {server.wait(10)} |")


if __name__ == "__main__":
    main()
