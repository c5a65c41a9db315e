"""What clients asked, as a trace: `llmsim run` on it gives the run that they saw."""

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from llmsim.core import Status
from llmsim.endpoint.engine.async_engine import LoraAdapter, Stream
from llmsim.endpoint.engine.clock import PS_PER_NS

TRACE = "trace.jsonl"


class TraceRecorder:
    """Writes a line for each request when it has ended, and all of them in order at the end.

    A client that went stands there with the time after which it did.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        """`folder` exists; `stack` closes what is written meanwhile. Raises OSError."""
        self.path = folder / TRACE
        self._pending: dict[int, dict[str, object]] = {}
        self._lines = tempfile.TemporaryFile("w+b", dir=folder)  # noqa: SIM115
        stack.enter_context(self._lines)
        self._adapters: dict[int, str] = {}
        """By number, what the trace calls an adapter."""
        self._index: list[tuple[int, int, int]] = []
        """(arrival in ns, number, offset of its line)."""

    def asked(self, stream: Stream) -> None:
        """A request has come."""
        line: dict[str, object] = {
            "arrival_time_ns": stream.arrival_ps // PS_PER_NS,
            "input_toks": len(stream.prompt),
            "output_toks": stream.output_tokens,
            "input_tok_ids": list(stream.prompt),
            "output_tok_ids": list(stream.answer),
        }
        line["model"] = stream.model_name
        if stream.priority:
            line["priority"] = stream.priority
        if stream.adapter is not None:
            line["adapter"] = self._adapter_name(stream.adapter)
        self._pending[stream.number] = line

    def refused(self, stream: Stream) -> None:
        """A request that found no room is no part of the run."""

    def _adapter_name(self, adapter: LoraAdapter) -> str:
        """Its name, with a mark for each adapter of another path that was called so before."""
        if adapter.number not in self._adapters:
            name = adapter.name
            while name in self._adapters.values():
                name += "#"
            self._adapters[adapter.number] = name
        return self._adapters[adapter.number]

    def tokens(self, stream: Stream, more: int, time_ps: int) -> None:
        """Tokens are not written: the run makes them again."""

    def ended(self, stream: Stream, time_ps: int) -> None:
        """It has ended."""
        line = self._pending.pop(stream.number)
        if stream.status == Status.CANCELLED:
            line["cancel_after_ns"] = max(time_ps - stream.arrival_ps, PS_PER_NS) // PS_PER_NS
        self._write(line, stream.number)

    def _write(self, line: dict[str, object], number: int) -> None:
        arrival = line["arrival_time_ns"]
        assert isinstance(arrival, int)
        self._index.append((arrival, number, self._lines.tell()))
        self._lines.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def finish(self, now_ps: int) -> Path | None:
        """Writes the trace in order of arrival, whole or not at all; None: nobody asked anything.

        Clients that still wait are written as gone at this time.
        """
        for number, line in self._pending.items():
            arrival = line["arrival_time_ns"]
            assert isinstance(arrival, int)
            line["cancel_after_ns"] = max(now_ps // PS_PER_NS - arrival, 1)
            self._write(line, number)
        self._pending.clear()
        if not self._index:
            return None
        part = self.path.with_suffix(".part")
        with part.open("wb") as file:
            for _, _, offset in sorted(self._index):
                self._lines.seek(offset)
                file.write(self._lines.readline())
        os.replace(part, self.path)
        return self.path
