"""A client whose threads and processes wait in every way of the standard library, for a time.

Usage: waiting_client.py OUT; writes [what it was, whether it was in time, virtual s] as JSON.
"""

import concurrent.futures
import json
import multiprocessing
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def takes(results: Any, items: Any) -> None:
    """Waits for items, a moment each time."""
    found = []
    end_s = time.monotonic() + 2
    while time.monotonic() < end_s:
        try:
            found.append((items.get(timeout=0.01), time.monotonic()))
        except queue.Empty:
            continue
    results.put(found)


def handed_over() -> list[tuple[int, float]]:
    """Three processes take what this one puts, and the time when they have it."""
    context = multiprocessing.get_context("spawn")
    items, results = context.Queue(), context.Queue()
    workers = [context.Process(target=takes, args=(results, items)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for number in range(10):
        items.put((number, time.monotonic()))
        time.sleep(0.06)
    found = [one for _ in workers for one in results.get(timeout=60)]
    for worker in workers:
        worker.join(60)
    return sorted((number, now - sent) for (number, sent), now in found)


def ends_late(seconds: float) -> bool:
    """Whether a process was still there after so many seconds."""
    process = subprocess.Popen(["sleep", "3600"])
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()
    return False


def still_sleeps(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return thread.is_alive()


def is_empty(seconds: float) -> bool:
    try:
        queue.Queue[int]().get(timeout=seconds)
    except queue.Empty:
        return True
    return False


def main() -> None:
    taken, pool = threading.Lock(), concurrent.futures.ThreadPoolExecutor(2)
    taken.acquire()
    sleeper = threading.Thread(target=time.sleep, args=(500,))
    sleeper.start()
    sleeping = pool.submit(time.sleep, 100)
    near, far = multiprocessing.Pipe()
    waits: dict[str, tuple[float, Callable[[float], bool]]] = {
        "event": (7, lambda s: not threading.Event().wait(s)),
        "lock": (2, lambda s: not taken.acquire(timeout=s)),
        "semaphore": (3, lambda s: not threading.Semaphore(0).acquire(timeout=s)),
        "queue": (4, is_empty),
        "futures": (11, lambda s: not concurrent.futures.wait([sleeping], timeout=s).done),
        "join": (5, lambda s: still_sleeps(sleeper, s)),
        "process event": (3.5, lambda s: not multiprocessing.Event().wait(s)),
        "pipe": (6, lambda s: not near.poll(s)),
        "select": (1.5, lambda s: select.select([near], [], [], s)[0] == []),
        "poll": (8, lambda s: select.poll().poll(s * 1000) == []),
        "epoll": (9, lambda s: select.epoll().poll(s) == []),
        "process": (20, ends_late),
    }
    found = []
    for name, (seconds, wait) in waits.items():
        began_s = time.monotonic()
        came_late = wait(seconds)
        found.append((name, came_late, time.monotonic() - began_s - seconds))
    far.close()
    sleeper.join()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"waits": found, "handed_over": handed_over()}, file)


if __name__ == "__main__":
    main()
