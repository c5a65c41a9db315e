"""Collectives of the engine against an independent reference, with random starts, sizes, networks
and groups.
"""

from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .reference import Site, serialisation_ps, simulate

relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def sites(draw: st.DrawFn) -> Site:
    num_devices = draw(st.integers(1, 9))
    size = draw(st.integers(1, num_devices))
    group = (
        draw(st.permutations(range(num_devices)))[:size]
        if draw(st.booleans())
        else list(range(size))
    )
    return Site(
        topology=draw(st.sampled_from(["ring", "switch", "full"])),
        num_devices=num_devices,
        bandwidth_bytes_per_s=draw(st.sampled_from([10**6, 7_000_003, 25 * 10**9, 450 * 10**9])),
        latency_ps=draw(st.sampled_from([0, 1, 500_000, 936_250])),
        group=list(group),
        kind=draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])),
        algorithm=draw(st.sampled_from(["ring", "direct"])),
        aware=draw(st.booleans()),
        endpoint_delay_ps=draw(st.sampled_from([0, 0, 10_000])),
    )


def native_topology(engine: ModuleType, site: Site) -> Any:
    make = {"ring": "ring", "switch": "switch", "full": "fully_connected"}[site.topology]
    return getattr(engine.Topology, make)(
        site.num_devices, site.bandwidth_bytes_per_s, site.latency_ps
    )


def native_site(engine: ModuleType, site: Site) -> Any:
    return engine.CollectiveSite(
        native_topology(engine, site),
        site.group,
        getattr(engine.CollectiveKind, site.kind.upper()),
        getattr(engine.Algorithm, site.algorithm.upper()),
        network=engine.NetworkKind.CONGESTION_AWARE
        if site.aware
        else engine.NetworkKind.CONGESTION_UNAWARE,
        endpoint_delay_ps=site.endpoint_delay_ps,
    )


@relaxed
@given(site=sites(), num_bytes=st.integers(0, 2_000_000), data=st.data())
def test_engine_equals_the_reference(
    engine: ModuleType, site: Site, num_bytes: int, data: st.DataObject
) -> None:
    spread = data.draw(st.sampled_from([0, 1, 10**6, 10**13]))
    starts = data.draw(
        st.lists(st.integers(0, spread), min_size=len(site.group), max_size=len(site.group))
    )
    ends, link_bytes = simulate(site, num_bytes, starts)

    builder = engine.GraphBuilder(site.num_devices)
    plan = builder.add_plan(
        getattr(engine.CollectiveKind, site.kind.upper()),
        getattr(engine.Algorithm, site.algorithm.upper()),
        builder.add_group(site.group),
    )
    for device, start in zip(site.group, starts, strict=True):
        builder.compute(device, start, stream=engine.Stream.NONE)
    for rank, device in enumerate(site.group):
        builder.collective(device, plan, 0, num_bytes, [rank])
    network = (
        engine.NetworkKind.CONGESTION_AWARE if site.aware else engine.NetworkKind.CONGESTION_UNAWARE
    )
    topology = native_topology(engine, site)
    run = engine.Engine(topology, network, site.endpoint_delay_ps)
    graph = run.submit(builder.build(), 0)
    run.run()
    assert run.times(graph)[1][len(site.group) :].tolist() == ends
    counted = dict(zip(topology.links(), run.link_counters()["bytes"].tolist(), strict=True))
    assert {link: count for link, count in counted.items() if count} == link_bytes


@relaxed
@given(site=sites(), num_bytes=st.integers(0, 2_000_000), data=st.data())
def test_maps_equal_the_reference(
    engine: ModuleType, site: Site, num_bytes: int, data: st.DataObject
) -> None:
    starts = data.draw(
        st.lists(st.integers(0, 10**8), min_size=len(site.group), max_size=len(site.group))
    )
    collective_map = engine.CollectiveMap.isolated(native_site(engine, site), num_bytes)
    assert collective_map.apply(np.array(starts)).tolist() == simulate(site, num_bytes, starts)[0]
    together, _ = simulate(site, num_bytes, [0] * len(site.group))
    assert engine.isolated_duration(native_site(engine, site), num_bytes) == max(together)
    if collective_map.linear:
        n = len(site.group)
        weights = [[collective_map.weight_ps(i, j) for j in range(n)] for i in range(n)]
        by_hand = [
            max(s + w for s, w in zip(starts, row, strict=True) if w >= 0) for row in weights
        ]
        assert by_hand == simulate(site, num_bytes, starts)[0]


def test_the_order_of_service_is_noticed(engine: ModuleType) -> None:
    """Direct on a switch is not linear, and a map that claimed so would be wrong for
    skewed starts.
    """
    site = Site("switch", 4, 10**9, 1000, [0, 1, 2, 3], "all_to_all", "direct", aware=True)
    assert (
        engine.CollectiveMap.isolated(native_site(engine, site), 1 << 20).form
        == engine.MapForm.SIMULATED
    )
    site.topology = "full"
    assert engine.CollectiveMap.isolated(native_site(engine, site), 1 << 20).linear


def test_one_rounding_per_message(engine: ModuleType) -> None:
    """14 roundings of one chunk, not one rounding of 14 chunks (28 ps apart in this example)."""
    bandwidth, num_bytes = 450 * 10**9, 1_048_579
    site = Site("ring", 8, bandwidth, 500_000, list(range(8)), "all_reduce", "ring", aware=True)
    expected = 14 * (500_000 + serialisation_ps(-(-num_bytes // 8), bandwidth))
    assert engine.isolated_duration(native_site(engine, site), num_bytes) == expected
    sizes = np.array([0, 1, 8, num_bytes])
    each = [engine.isolated_duration(native_site(engine, site), int(size)) for size in sizes]
    assert engine.isolated_durations(native_site(engine, site), sizes).tolist() == each
