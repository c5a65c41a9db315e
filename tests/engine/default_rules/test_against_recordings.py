"""The default rules against recorded results of ASTRA-sim, where its rules differ by its truncation
to ns only.
"""

import json
from types import ModuleType

import pytest
from shared_data import shared


@pytest.mark.parametrize("aware", [False, True])
def test_incast_on_a_switch(engine: ModuleType, aware: bool) -> None:
    """Seven devices send 1 MiB each to device 0 at once: 100 * 2^30 bytes/s and 250 ns per link
    (its network.yml).
    """
    recorded = json.loads(shared("astra_conformance/p2p_incast_switch/expected.json").read_text())
    finish_ns = recorded["congestion_aware" if aware else "congestion_unaware"]["finish_cycles"]
    network = (
        engine.NetworkKind.CONGESTION_AWARE if aware else engine.NetworkKind.CONGESTION_UNAWARE
    )
    run = engine.Engine(engine.Topology.switch(8, 100 << 30, 250_000), network)
    builder = engine.GraphBuilder(8)
    for sender in range(1, 8):
        builder.transfer(sender, 0, 1 << 20)
    graph = run.submit(builder.build(), 0)
    run.run()
    for sender, end_ps in enumerate(run.times(graph)[1].tolist(), start=1):
        # Upstream drops the fraction of each of up to 8 serialisations in a row; ours keeps it.
        assert 0 <= end_ps - 1000 * finish_ns[str(sender)] < 8 * 1000
