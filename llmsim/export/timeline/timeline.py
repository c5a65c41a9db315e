"""The timeline of a run for Perfetto (ui.perfetto.dev): steps as slices, requests as tracks, gauges
as counters, flows.

Needs the `perfetto` package, whose protobuf classes write the trace. Perfetto counts nanoseconds;
our picoseconds are rounded down, so that what follows each other still does.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from llmsim.columns import LatencyCauses, SeriesColumns
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS, Results, Status
from llmsim.export.files import atomic_writer
from llmsim.export.timeline.gauges import Gauge, GroupOperators, Transfer, gauges, lanes, transfers

MAX_REQUESTS = 20_000
"""Requests that get a track of their own; a browser shows no more."""
_STEP_FACTS = (
    "tokens",
    "padded_tokens",
    "prefill_tokens",
    "sequences",
    "decode_sequences",
    "preempted",
)
_SEQUENCE = 1
"""Of all packets: one writer, in one order."""
_TRANSFER_FLOW = 1 << 32
"""First flow of the KV that moves between groups; below it are those between requests and steps."""


def write_timeline(
    path: str | Path,
    results: Results,
    groups: Sequence[GroupOperators] = (),
    *,
    layerwise: bool = False,
) -> None:
    """Writes the trace; the same run gives the same bytes. Steps appear if they were recorded.

    `groups` (one for each of the results', or none) give the share of the time in collectives;
    `layerwise`: KV moves between groups layer by layer. Raises InputError where `perfetto` is not
    installed or the file cannot be written.
    """
    proto = check_perfetto()
    with atomic_writer(path, "wb") as file:
        _Timeline(file, proto, results, groups, layerwise=layerwise).write()


def check_perfetto() -> Any:
    """The package's protobuf classes; raises InputError, best before a long run, where it is not
    installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError:
        raise InputError(
            "the timeline needs the perfetto package, which is not installed; pip install "
            '"llmsim[timeline]"'
        ) from None
    return perfetto_trace_pb2


class _Timeline:
    """Writes packets as they are made: a trace of any length takes no memory. Tracks are numbered
    as they appear.
    """

    def __init__(
        self,
        file: IO[bytes],
        proto: Any,
        results: Results,
        groups: Sequence[GroupOperators],
        *,
        layerwise: bool,
    ) -> None:
        self._file = file
        self._proto = proto
        self._results = results
        self._tracks = 0
        shown = [one for one in transfers(results, layerwise=layerwise) if one.row < MAX_REQUESTS]
        self._transfers: Sequence[Transfer] = shown
        self._gauges: Sequence[Gauge] = list(gauges(results, shown, groups))

    def write(self) -> None:
        """All of it."""
        waiting_for = self._first_scheduled()
        linked = (
            {row for rows in waiting_for.values() for row in rows}
            if len(self._results.steps)
            else set()
        )
        for group in self._results.groups:
            title = (
                f"group {group.index}: {group.model_name} on {group.num_devices} x {group.hardware}"
            )
            process = self._track(title, process=group.index + 1)
            self._steps(self._track("steps", parent=process), group.index, waiting_for)
            self._moved(process, group.index)
            self._counters(process, group.index)
            for gauge in self._gauges:
                if gauge.group == group.index:
                    self._gauge(process, gauge)
        cluster = [gauge for gauge in self._gauges if gauge.group is None]
        if cluster:
            process = self._track("cluster", process=len(self._results.groups) + 2)
            for gauge in cluster:
                self._gauge(process, gauge)
        self._requests(linked)

    def _first_scheduled(self) -> dict[tuple[int, int], list[int]]:
        """The requests that a (group, schedule time) saw first."""
        requests = self._results.requests
        found: dict[tuple[int, int], list[int]] = {}
        for row in range(min(len(requests.group), MAX_REQUESTS)):
            if requests.scheduled_ps[row] >= 0:
                found.setdefault(
                    (int(requests.group[row]), int(requests.scheduled_ps[row])), []
                ).append(row)
        return found

    def _steps(self, track: int, group: int, waiting_for: dict[tuple[int, int], list[int]]) -> None:
        steps = self._results.steps
        if not len(steps.get("group", ())):
            return
        ended = (steps["group"] == group) & np.greater_equal(steps["end_ps"], 0)
        for row in np.flatnonzero(ended):
            facts = {name: int(steps[name][row]) for name in _STEP_FACTS}
            prefills = facts["prefill_tokens"] > 0
            name = "decode" if not prefills else "mixed" if facts["decode_sequences"] else "prefill"
            # Of two batches formed at the same time, the first is the one that what had waited got
            # into.
            flows = waiting_for.pop((group, int(steps["schedule_ps"][row])), [])
            self._slice(
                track, name, int(steps["start_ps"][row]), int(steps["end_ps"][row]), facts, flows
            )

    def _moved(self, process: int, group: int) -> None:
        """KV that leaves the group and that comes in, each transfer a slice at both ends and a flow
        between them.
        """
        for title, side, other in (("KV out", "source", "target"), ("KV in", "target", "source")):
            own = [one for one in self._transfers if getattr(one, side) == group]
            tracks: dict[int, int] = {}
            for one, lane in zip(
                own, lanes([(one.start_ps, one.end_ps) for one in own]), strict=True
            ):
                if lane not in tracks:
                    tracks[lane] = self._track(title, parent=process)
                facts = {"row": one.row, "bytes": one.num_bytes, "group": getattr(one, other)}
                name = self._name(one.row)
                self._slice(
                    tracks[lane], name, one.start_ps, one.end_ps, facts, [_TRANSFER_FLOW + one.row]
                )

    def _gauge(self, process: int, gauge: Gauge) -> None:
        track = self._track(gauge.name, parent=process, unit=gauge.unit)
        for time_ps, value in zip(gauge.times_ps, gauge.values, strict=True):
            packet = self._event(track, time_ps, self._proto.TrackEvent.TYPE_COUNTER)
            packet.track_event.double_counter_value = value
            self._emit(packet)

    def _counters(self, process: int, group: int) -> None:
        series = self._results.series
        if not len(series.get("group", ())):
            return
        rows = np.flatnonzero(series["group"] == group)
        for column in SeriesColumns.COLUMNS:
            if column.name in ("time_ps", "group") or column.name not in series:
                continue
            track = self._track(column.name, parent=process, unit=column.unit)
            values = series[column.name]
            for row in rows:
                packet = self._event(
                    track, int(series["time_ps"][row]), self._proto.TrackEvent.TYPE_COUNTER
                )
                packet.track_event.counter_value = int(values[row])
                self._emit(packet)

    def _requests(self, linked: set[int]) -> None:
        requests = self._results.requests
        process = self._track("requests", process=len(self._results.groups) + 1)
        for row in range(min(len(requests.group), MAX_REQUESTS)):
            if requests.status[row] != Status.FINISHED:
                continue
            name = self._name(row)
            track = self._track(name, parent=process)
            end = int(requests.finish_ps[row])
            self._begin(track, name, int(requests.arrival_ps[row]), self._facts(row))
            for part, start, stop in self._phases(row):
                self._slice(
                    track,
                    part,
                    start,
                    stop,
                    {},
                    [row] if part == "prefill" and row in linked else [],
                )
            self._end(track, end)

    def _name(self, row: int) -> str:
        names = self._results.workload.request_id
        return f"request {names[row] if names else row}"

    def _phases(self, row: int) -> Iterator[tuple[str, int, int]]:
        requests = self._results.requests
        times = (
            requests.arrival_ps,
            requests.scheduled_ps,
            requests.first_token_ps,
            requests.finish_ps,
        )
        arrival, scheduled, first, finish = (int(column[row]) for column in times)
        yield "queue", arrival, scheduled
        kv_transfers = self._results.kv_transfers
        if kv_transfers is not None and kv_transfers.prefill_group[row] >= 0:
            computed, decoding = (
                int(kv_transfers.prefill_end_ps[row]),
                int(kv_transfers.decode_scheduled_ps[row]),
            )
            yield "prefill", scheduled, computed
            yield "hand-over", computed, decoding
            yield "first token", decoding, first
        else:
            yield "prefill", scheduled, first
        yield "decode", first, finish

    def _facts(self, row: int) -> dict[str, int]:
        requests, workload = self._results.requests, self._results.workload
        facts = {
            "row": row,
            "group": int(requests.group[row]),
            "input_tokens": int(workload.input_tokens[row]),
            "emitted_tokens": int(requests.emitted_tokens[row]),
            "cached_tokens": int(requests.cached_tokens[row]),
            "preemptions": int(requests.preemptions[row]),
        }
        blame = self._results.blame
        return facts | {
            column.name: int(blame[column.name][row])
            for column in LatencyCauses.COLUMNS
            if column.name in blame
        }

    def _track(
        self, name: str, *, parent: int = 0, process: int = 0, unit: str | None = None
    ) -> int:
        self._tracks += 1
        packet = self._proto.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        if self._tracks == 1:
            packet.sequence_flags = packet.SEQ_INCREMENTAL_STATE_CLEARED
        packet.track_descriptor.uuid = self._tracks
        packet.track_descriptor.name = name
        if parent:
            packet.track_descriptor.parent_uuid = parent
        if process:
            packet.track_descriptor.process.pid = process
            packet.track_descriptor.process.process_name = name
        if unit is not None:
            packet.track_descriptor.counter.unit_name = unit
        self._emit(packet)
        return self._tracks

    def _slice(
        self,
        track: int,
        name: str,
        start_ps: int,
        end_ps: int,
        facts: Mapping[str, int],
        flows: list[int],
    ) -> None:
        self._begin(track, name, start_ps, facts, flows)
        self._end(track, end_ps)

    def _begin(
        self,
        track: int,
        name: str,
        time_ps: int,
        facts: Mapping[str, int],
        flows: list[int] | None = None,
    ) -> None:
        packet = self._event(track, time_ps, self._proto.TrackEvent.TYPE_SLICE_BEGIN)
        packet.track_event.name = name
        packet.track_event.flow_ids.extend(flow + 1 for flow in flows or ())
        for fact, value in facts.items():
            annotation = packet.track_event.debug_annotations.add()
            annotation.name = fact
            annotation.int_value = value
        self._emit(packet)

    def _end(self, track: int, time_ps: int) -> None:
        self._emit(self._event(track, time_ps, self._proto.TrackEvent.TYPE_SLICE_END))

    def _event(self, track: int, time_ps: int, kind: int) -> Any:
        packet = self._proto.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.timestamp = time_ps // PS_PER_NS
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _emit(self, packet: Any) -> None:
        """Field 1 of the message Trace, length-delimited."""
        payload = packet.SerializeToString(deterministic=True)
        self._file.write(b"\x0a" + _varint(len(payload)) + payload)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
