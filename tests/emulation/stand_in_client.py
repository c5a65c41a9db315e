"""Load generators that know nothing of a virtual clock: asyncio, one thread with sockets, asyncio
beside a thread that sleeps ("threads"), in processes that "fork" or "spawn", in a thread that the
main thread "joins", or all requests "at once", three at a time. All with asyncio hand each request
to a pool of threads before they send it, as aiohttp does.

Usage: stand_in_client.py KIND PORT OUT; writes what it has measured, as JSON.
"""

import asyncio
import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import Any


def body(tokens: int, answer: int) -> bytes:
    return json.dumps(
        {"prompt": list(range(1, tokens + 1)), "max_tokens": answer, "stream": True}
    ).encode()


async def ask(port: int, tokens: int, answer: int) -> list[float]:
    began = time.perf_counter()
    for _ in range(3):
        assert await asyncio.to_thread(sum, range(answer)) == answer * (answer - 1) // 2
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = body(tokens, answer)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    times = []
    while (line := await reader.readline()) and b"[DONE]" not in line:
        if line.startswith(b"data: "):
            times.append(time.perf_counter() - began)
    writer.close()
    return times


async def many(port: int, count: int, pause_s: float) -> list[list[float]]:
    """One request after each pause, three at a time."""
    gate = asyncio.Semaphore(3)

    async def one(number: int) -> list[float]:
        async with gate:
            return await ask(port, 20 + 7 * number, 2 + number % 4)

    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(pause_s)
    await asyncio.sleep(3600)
    return list(await asyncio.gather(*tasks))


def in_turn(port: int, count: int) -> list[list[float]]:
    """One connection for all requests, with blocking reads and sleeps."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found = []
    for number in range(count):
        began = time.monotonic()
        connection.request("POST", "/v1/completions", body(20 + number, 3))
        answer = connection.getresponse()
        times = []
        while line := answer.readline():
            if line.startswith(b"data: {"):
                times.append(time.monotonic() - began)
        found.append(times)
        time.sleep(1.5)
    return found


def in_thread(port: int) -> list[list[float]]:
    """The main thread waits for another one, in real time."""
    found: list[list[float]] = []
    thread = threading.Thread(target=lambda: found.extend(in_turn(port, 4)))
    thread.start()
    thread.join()
    return found


def send_in_turn(port: int, pipe: Any) -> None:
    pipe.send(in_turn(port, 2))


def in_processes(port: int, kind: str) -> list[list[float]]:
    """Two processes, which send their results over pipes, and a third one that ends at once."""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(30)"], check=True)
    context = multiprocessing.get_context(kind)
    found = []
    workers = []
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=send_in_turn, args=(port, sender))
        worker.start()
        workers.append((worker, receiver))
    for worker, receiver in workers:
        found += receiver.recv()
        worker.join()
    return found


def main() -> None:
    kind, port, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    began = time.time()
    result: dict[str, Any] = {"real_s": -os.times().elapsed}
    if kind == "threads":
        asyncio.run(asyncio.to_thread(time.sleep, 60.0))
    if kind == "sockets":
        found = in_turn(port, 4)
    elif kind == "joins":
        found = in_thread(port)
    elif kind in ("fork", "spawn"):
        found = in_processes(port, kind)
    else:
        found = asyncio.run(many(port, 8, 0.0 if kind == "at once" else 0.02))
    result |= {"times": found, "took_s": time.time() - began}
    result["real_s"] += os.times().elapsed
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
