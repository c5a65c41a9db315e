"""KV between groups, links and power in the timeline: read back from the file, they add up to the
run's own figures.
"""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import AJ_PER_J, PS_PER_NS, PS_PER_S
from llmsim.export.timeline.gauges import GroupOperators, lanes
from llmsim.export.timeline.timeline import write_timeline
from llmsim.simulation.run import simulate

ROOT = Path(__file__).resolve().parents[2]
proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
DATASET = "synthetic:n=40,rate=30,input=lognormal:400,output=lognormal:30,seed=5"


class Run:
    """A run of an example cluster, and its timeline read back."""

    def __init__(self, cluster: str, folder: Path) -> None:
        path = folder / "t.pftrace"
        where = str(ROOT / "cluster_config" / cluster)
        found = prepare(
            checked_options(
                ["--cluster-config", where, "--dataset", DATASET, "--timeline", str(path)]
            )
        )
        self.results = simulate(found.lowered, found.workload, found.simulation)
        groups = [
            GroupOperators(group.operators, group.program_costs) for group in found.lowered.groups
        ]
        how = found.deployment.disaggregation
        write_timeline(path, self.results, groups, layerwise=how is not None and how.layerwise)
        trace = proto.Trace()
        trace.ParseFromString(path.read_bytes())
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor
            for p in trace.packet
            if p.HasField("track_descriptor")
        }
        self.events = [packet for packet in trace.packet if packet.HasField("track_event")]

    def title(self, uuid: int) -> tuple[str, str]:
        """(process, track)."""
        track = self.tracks[uuid]
        return self.tracks[track.parent_uuid].name if track.parent_uuid else "", track.name

    def gauge(self, process: str, name: str) -> list[tuple[int, float]]:
        """(ns, value) of the counter of that name in the process whose name starts so."""
        found = [
            (event.timestamp, event.track_event.double_counter_value)
            for event in self.events
            if event.track_event.type == proto.TrackEvent.TYPE_COUNTER
            and self.title(event.track_event.track_uuid)[1] == name
            and self.title(event.track_event.track_uuid)[0].startswith(process)
        ]
        assert found, (process, name)
        return found

    def slices(self, name: str) -> list[tuple[str, int, int, int, dict[str, int], list[int]]]:
        """(process, track, start, end, facts, flows) of the tracks of that name."""
        opened, found = {}, []
        for event in self.events:
            uuid = event.track_event.track_uuid
            if self.title(uuid)[1] != name:
                continue
            if event.track_event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
                assert uuid not in opened, "slices of a track overlap"
                opened[uuid] = event
            else:
                begin = opened.pop(uuid)
                facts = {one.name: one.int_value for one in begin.track_event.debug_annotations}
                flows = list(begin.track_event.flow_ids)
                found.append(
                    (self.title(uuid)[0], uuid, begin.timestamp, event.timestamp, facts, flows)
                )
        assert not opened
        return found


def integral(points: list[tuple[int, float]]) -> float:
    """Of a step function, in value x s."""
    return sum(value * (after - at) / 1e9 for (at, value), (after, _) in pairwise(points))


@pytest.fixture(scope="module", params=["h100_llama31_8b_pd.json", "h100_llama31_8b_pd_2p1d.json"])
def apart(request, tmp_path_factory):
    return Run(request.param, tmp_path_factory.mktemp("apart"))


def test_kv_flows_from_the_prefill_to_the_decode_group(apart):
    leaving, arriving = apart.slices("KV out"), apart.slices("KV in")
    kv_transfers = apart.results.kv_transfers
    assert len(leaving) == len(arriving) == 40
    by_flow = {flows[0]: one for *one, flows in arriving}
    for process, _, start, end, facts, flows in leaving:
        target, _, *times, their_facts = by_flow[flows[0]]
        row = facts["row"]
        assert process.startswith(f"group {kv_transfers.prefill_group[row]}:")
        assert target.startswith(f"group {apart.results.requests.group[row]}:")
        assert times == [start, end]
        assert end == int(kv_transfers.kv_landed_ps[row]) // PS_PER_NS
        assert (
            facts["bytes"] == their_facts["bytes"] == int(kv_transfers.kv_transfer_bytes[row]) > 0
        )
    assert len(by_flow) == 40


def test_what_leaves_lands(apart):
    moved = apart.results.kv_transfers
    decode = f"group {apart.results.requests.group[0]}:"
    total = 0.0
    for source in sorted(set(moved.prefill_group.tolist())):
        on_the_way = [
            value for _, value in apart.gauge(decode, f"KV from group {source}, on its way")
        ]
        assert on_the_way[-1] == 0
        assert min(on_the_way) == 0
        total += integral(apart.gauge(decode, f"KV from group {source}, landed"))
    assert total == pytest.approx(float(moved.kv_transfer_bytes.sum()), rel=1e-6)


def test_a_handed_over_request_shows_its_hand_over(apart):
    kv_transfers = apart.results.kv_transfers
    for row in range(40):
        begins = [
            e.track_event.name
            for e in apart.events
            if apart.title(e.track_event.track_uuid)[1] == f"request {row}"
        ]
        assert [name for name in begins if name] == [
            f"request {row}", "queue", "prefill", "hand-over", "first token", "decode",
        ]  # fmt: skip
    assert (kv_transfers.decode_scheduled_ps >= kv_transfers.prefill_end_ps).all()


def test_collectives_share_is_the_time_of_the_collectives(tmp_path):
    run = Run("h100_llama31_70b_tp4.json", tmp_path)
    points = run.gauge("group 0", "collectives")
    assert all(0 <= value <= 100 for _, value in points)
    names = ("all_reduce", "logits_gather")
    spent = sum(
        sum(one.ps_by_provenance) for one in run.results.time_shares if one.operator in names
    )
    assert integral(points) / 100 == pytest.approx(spent / PS_PER_S, rel=1e-6)


def test_power_adds_up_to_the_energy(tmp_path):
    run = Run("single_node_power_instance.json", tmp_path)
    energy = run.results.energy
    assert energy is not None
    components = energy.components_aj[0]
    assert components is not None
    assert integral(run.gauge("cluster", "node 0, all")) == pytest.approx(
        sum(components.values()) / AJ_PER_J, rel=1e-6
    )
    assert integral(run.gauge("cluster", "node 0, accelerators")) == pytest.approx(
        components["accelerators"] / AJ_PER_J, rel=1e-6
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_lanes_hold_what_does_not_overlap_and_are_as_few_as_can_be(parts):
    intervals = sorted((start, start + length) for start, length in parts)
    chosen = lanes(intervals)
    for lane in set(chosen):
        own = [interval for interval, one in zip(intervals, chosen, strict=True) if one == lane]
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    deepest = max((sum(s <= start < e for s, e in intervals) for start, _ in intervals), default=0)
    assert len(set(chosen)) <= max(deepest, 1) + sum(s == e for s, e in intervals)
