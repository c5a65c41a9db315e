"""Fair shares against SimGrid where it is installed (PyPI or Debian), within 0.1 %; without it,
against bounds.
"""

from itertools import pairwise
from pathlib import Path

import pytest

from engine.default_rules.against_simgrid import largest_difference, ours_ps, random_case


def test_the_same_times_as_simgrid(command: Path, tmp_path: Path) -> None:
    pytest.importorskip("simgrid", reason="SimGrid's Python module is not installed")
    for seed in range(50):
        assert largest_difference(random_case(seed), command, tmp_path) < 1e-3, seed


@pytest.mark.parametrize("seed", range(10))
def test_no_flow_beats_its_slowest_link_and_every_link_carries_its_load(
    command: Path, tmp_path: Path, seed: int
) -> None:
    case = random_case(seed)
    speed = {(a, b): rate for x, y, rate in case.cables for a, b in ((x, y), (y, x))}
    ends = ours_ps(case, command, tmp_path)
    load: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for flow, end in zip(case.flows, ends, strict=True):
        hops = list(pairwise(flow.path))
        assert end - flow.start_ps >= flow.num_bytes * 10**12 // min(speed[hop] for hop in hops)
        for hop in hops:
            load.setdefault(hop, []).append((flow.start_ps, end, flow.num_bytes))
    for hop, carried in load.items():
        span = max(end for _, end, _ in carried) - min(start for start, _, _ in carried)
        assert span >= sum(size for _, _, size in carried) * 10**12 // speed[hop]
