"""The Perfetto timeline holds every step, request and counter of the run, well nested, and links
them.
"""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from llmsim.api.preparation.prepare import trial
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS
from llmsim.export.timeline.timeline import write_timeline

ROOT = Path(__file__).resolve().parents[2]
proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture(scope="module")
def results():
    cluster = str(ROOT / "cluster_config" / "h100_multi_instance.json")
    dataset = "synthetic:n=40,rate=30,input=lognormal:300,output=lognormal:40,seed=5"
    return trial(
        checked_options(["--cluster-config", cluster, "--timeline", "unused", "--dataset", dataset])
    )


@pytest.fixture(scope="module")
def trace(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "t.pftrace"
    write_timeline(path, results)
    found = proto.Trace()
    found.ParseFromString(path.read_bytes())
    return found


def slices(trace):
    """(track name, slice name, start ns, end ns, facts, flows) of every slice; fails where slices
    do not nest.
    """
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    open_slices = defaultdict(list)
    last = defaultdict(int)
    event = proto.TrackEvent
    for packet in trace.packet:
        if not packet.HasField("track_event") or packet.track_event.type == event.TYPE_COUNTER:
            continue
        track = packet.track_event.track_uuid
        assert packet.timestamp >= last[track]
        last[track] = packet.timestamp
        if packet.track_event.type == event.TYPE_SLICE_BEGIN:
            open_slices[track].append(packet)
        else:
            begin = open_slices[track].pop()
            facts = {a.name: a.int_value for a in begin.track_event.debug_annotations}
            flows = list(begin.track_event.flow_ids)
            yield (
                tracks[track].name,
                begin.track_event.name,
                begin.timestamp,
                packet.timestamp,
                facts,
                flows,
            )
    assert not any(open_slices.values())


def test_every_step_is_a_slice_on_its_group(results, trace):
    steps = [s for s in slices(trace) if s[0] == "steps"]
    assert len(steps) == len(results.steps["group"]) > 100
    expected = sorted((int(a) // PS_PER_NS, int(b) // PS_PER_NS) for a, b in zip(
        results.steps["start_ps"], results.steps["end_ps"], strict=True))  # fmt: skip
    assert sorted((s[2], s[3]) for s in steps) == expected
    assert sum(s[4]["tokens"] for s in steps) == int(results.steps["tokens"].sum())
    assert {s[1] for s in steps} >= {"decode", "mixed"}


def test_every_request_is_a_track_with_its_phases(results, trace):
    tracks = defaultdict(dict)
    for track, name, start, end, facts, _ in slices(trace):
        if track.startswith("request "):
            tracks[track][name] = (start, end, facts)
    assert len(tracks) == 40
    for track, parts in tracks.items():
        start, end, facts = parts[track]
        assert parts["queue"][0] == start
        assert parts["decode"][1] == end
        assert parts["queue"][1] == parts["prefill"][0]
        assert parts["prefill"][1] == parts["decode"][0]
        row = facts["row"]
        blame = sum(value for name, value in facts.items() if name.endswith("_ps"))
        assert blame == int(results.requests.finish_ps[row] - results.requests.arrival_ps[row])


def test_the_step_that_first_ran_a_request_points_to_it(trace):
    ends = defaultdict(list)
    for track, name, start, end, _, flows in slices(trace):
        for flow in flows:
            ends[flow].append((track, name, start, end))
    assert len(ends) == 40
    for pair in ends.values():
        assert len(pair) == 2
        step = next(one for one in pair if one[0] == "steps")
        prefill = next(one for one in pair if one[1] == "prefill" and one[0] != "steps")
        assert prefill[2] <= step[2]


def test_counters_are_the_series(results, trace):
    names = {
        p.track_descriptor.uuid: p.track_descriptor.name
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    totals = defaultdict(int)
    for packet in trace.packet:
        if packet.track_event.type == proto.TrackEvent.TYPE_COUNTER:
            totals[names[packet.track_event.track_uuid]] += packet.track_event.counter_value
    assert totals["generation_tokens"] == int(results.requests.emitted_tokens.sum())
    assert totals["kv_blocks_used"] == int(results.series["kv_blocks_used"].sum())


def test_the_same_run_gives_the_same_bytes(results, tmp_path):
    for name in "ab":
        write_timeline(tmp_path / name, results)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_without_the_package_one_sentence(results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(InputError, match=r"pip install \"llmsim\[timeline\]\""):
        write_timeline(tmp_path / "x", results)
    assert not (tmp_path / "x").exists()
