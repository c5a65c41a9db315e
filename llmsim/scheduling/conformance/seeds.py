"""What the workers of all engines do with seeds: verdicts on the standard output, or recordings."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmsim.scheduling.conformance.cases import Case


def write_recording(case: Case, path: Path) -> None:
    """Writes a case with its steps as compressed JSON; the same bytes every time."""
    text = json.dumps(case, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def work(
    arguments: list[str],
    verdicts: Callable[[int, int, int], Iterator[dict[str, Any]]],
    write_recordings: Callable[[int, int, int, Path], None],
) -> None:
    """Runs a worker: `arguments` are the first seed, cases and requests, and the folder of
    recordings where those are asked for instead of verdicts.
    """
    seed, cases, requests = (int(text) for text in arguments[:3])
    if len(arguments) > 3:
        write_recordings(seed, cases, requests, Path(arguments[3]))
        return
    for verdict in verdicts(seed, cases, requests):
        print(json.dumps(verdict), flush=True)
