"""Energy by its definitions: states, bytes and constants, and every way of splitting the total."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.config.cluster_file.power import AcceleratorPower, NodePowerSpec, PoolPowerSpec
from llmsim.core import AJ_PER_J, COMPONENTS, Energy, Traffic
from llmsim.power import GroupUse, PowerPlan, account

W = 10**6  # microwatts; also attojoules per picojoule


def node(**changes: Any) -> NodePowerSpec:
    accelerator = AcceleratorPower(25 * W, 115 * W, 300 * W, 3000, 7, 300 * W)
    fields: dict[str, Any] = {
        "accelerators": {"X": accelerator}, "base_uw": 60 * W, "cpu_uw": 38 * W, "dram_uw": 8 * W,
        "dram_aj_per_bit": 6 * W, "link_uw": 5 * W, "link_aj_per_bit": 4 * W, "nic_uw": 20 * W,
        "nic_aj_per_bit": 0, "storage_uw": 10 * W, "storage_aj_per_bit": 0,
    }  # fmt: skip
    return NodePowerSpec(**{**fields, **changes})


def use(
    steps: Sequence[tuple[int, int]], shares: Sequence[tuple[int, int]] = (), **traffic: int
) -> GroupUse:
    columns = np.array(steps, np.int64).reshape(len(steps), 2)
    who = np.array(shares, np.int64).reshape(len(shares), 2)
    return GroupUse(columns[:, 0], columns[:, 1], who[:, 0], who[:, 1], Traffic(**traffic))


def plan(
    groups: int = 1, nodes: tuple[NodePowerSpec | None, ...] | None = None, devices: int = 1
) -> PowerPlan:
    specs = (node(),) if nodes is None else nodes
    where = tuple((index % len(specs),) for index in range(groups))
    return PowerPlan(specs, None, where, ("X",) * groups, (devices,) * groups)


def test_an_idle_cluster_draws_its_idle_power_exactly() -> None:
    length = 10**13 + 7
    found = account(plan(devices=3), [use([])], 0, (5, 5 + length), 10**12)
    assert found.total_aj == (3 * 25 + 60 + 38 + 8 + 5 + 20 + 10) * W * length
    assert found.unattributed_j == pytest.approx(found.total_aj / AJ_PER_J, rel=1e-15)


def brute(
    steps: list[tuple[int, int]], window: tuple[int, int], standby: int
) -> tuple[int, int, int]:
    """(active, standby, idle) picosecond by picosecond."""
    counts, last = [0, 0, 0], None
    for now in range(*window):
        if any(start <= now < end for start, end in steps):
            counts[0] += 1
            last = now
        else:
            counts[1 if last is not None and now - last <= standby else 2] += 1
    return counts[0], counts[1], counts[2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_states_are_those_of_a_picosecond_clock(data: st.DataObject) -> None:
    steps, now = [], 10
    for gap, length in data.draw(
        st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=8)
    ):
        steps.append((now + gap, now + gap + length))
        now += gap + length - data.draw(st.integers(0, length - 1))  # batches of a pipeline overlap
    end = max([12, *(stop for _, stop in steps)]) + data.draw(st.integers(0, 30))
    standby = data.draw(st.integers(0, 25))
    power = AcceleratorPower(25 * W, 115 * W, 300 * W, standby, 0, 300 * W)
    found = account(plan(nodes=(node(accelerators={"X": power}),)), [use(steps)], 0, (10, end), 7)
    active, waiting, idle = brute(steps, (10, end), standby)
    group = found.groups[0]
    assert group is not None
    assert (group.active_ps, group.standby_ps) == (active, waiting)
    assert (
        group.active_aj + group.standby_aj + group.idle_aj
        == (active * 300 + waiting * 115 + idle * 25) * W
    )


def random_use(data: st.DataObject, requests: int) -> GroupUse:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = int(rng.integers(0, 40))
    edges = np.sort(rng.integers(0, 10**13, 2 * count))
    who = rng.permutation(requests)[: int(rng.integers(0, requests + 1))]
    times = rng.integers(1, 10**12, len(who))
    traffic = {
        name: int(rng.integers(0, 10**13))
        for name in ("memory_bytes", "link_bytes", "host_bytes", "pool_bytes")
    }
    return use(
        list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)),
        list(zip(who.tolist(), times.tolist(), strict=True)),
        **traffic,
    )


def integral_j(found: Energy, node_index: int) -> float:
    rows = found.series["node"] == node_index
    ends = found.series["time_ps"][rows].astype(np.int64)
    length = np.diff(np.concatenate([[found.start_ps], ends])) / 1e12
    return float(
        sum((found.series[f"{name}_w"][rows].astype(float) * length).sum() for name in COMPONENTS)
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_split_adds_up_to_the_total(data: st.DataObject) -> None:
    groups, nodes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    specs = tuple(None if data.draw(st.integers(0, 4)) == 0 else node() for _ in range(nodes))
    uses = [random_use(data, 20) for _ in range(groups)]
    the_plan = plan(groups, specs, devices=data.draw(st.integers(1, 8)))
    end = 10**13 + data.draw(st.integers(0, 10**13))
    found = account(the_plan, uses, 20, (0, end), data.draw(st.integers(10**11, 10**13)))
    total_j = found.total_aj / AJ_PER_J
    for index, parts in enumerate(found.components_aj):
        assert (parts is None) == (specs[index] is None)
        if parts is None:
            continue
        mine = [group for group in found.groups if group is not None and group.node == index]
        assert not mine or sum(group.total_aj for group in mine) == sum(parts.values())
        assert integral_j(found, index) == pytest.approx(sum(parts.values()) / AJ_PER_J, rel=1e-9)
    assert found.request_j.sum() + found.unattributed_j == pytest.approx(total_j, rel=1e-9)
    assert (found.request_j >= 0).all()


@pytest.mark.parametrize(
    "kind", ["memory_bytes", "link_bytes", "host_bytes", "pool_bytes", "processor_bytes"]
)
def test_energy_grows_with_bytes_by_exactly_their_price(kind: str) -> None:
    steps = [(0, 10**12)]
    some, more = (
        account(plan(), [use(steps, **{kind: size})], 0, (0, 10**13), 10**12)
        for size in (10**9, 3 * 10**9)
    )
    per_bit = {
        "memory_bytes": 7,
        "link_bytes": 4 * W,
        "host_bytes": 10 * W,
        "pool_bytes": 4 * W,
        "processor_bytes": 6 * W,
    }
    assert more.total_aj - some.total_aj == 2 * 10**9 * 8 * per_bit[kind]
    where = {"memory_bytes": "accelerators", "link_bytes": "links", "pool_bytes": "links"}.get(
        kind, "dram"
    )
    before, after = some.components_aj[0], more.components_aj[0]
    assert before is not None and after is not None and after[where] > before[where]


def test_the_pool_has_an_account_of_its_own() -> None:
    the_plan = PowerPlan((None, node()), PoolPowerSpec(3 * W, 5), ((0,), (1,)), ("X", "X"), (1, 1))
    found = account(
        the_plan, [use([], pool_bytes=100), use([(0, 10)], pool_bytes=11)], 1, (0, 1000), 100
    )
    assert found.pool_aj == 3 * W * 1000 + 111 * 8 * 5
    assert found.groups[0] is None and found.components_aj[0] is None


def test_a_request_pays_by_its_device_time() -> None:
    found = account(plan(), [use([(0, 100)], [(2, 75), (0, 25)])], 3, (0, 100), 100)
    total_j = found.total_aj / AJ_PER_J
    assert found.request_j.tolist() == pytest.approx([total_j / 4, 0, 3 * total_j / 4], rel=1e-12)
    assert found.unattributed_j == pytest.approx(0, abs=1e-9 * total_j)


def test_nodes_share_a_group_that_is_on_both() -> None:
    """Three devices' worth of odd attojoules: halves, and what is left over on the first node."""
    specs = (node(), node(cpu_uw=1000 * W))
    whole = PowerPlan(specs, None, ((0, 1),), ("X",), (4,))
    steps = use([(10, 41)], [(0, 31)], memory_bytes=1, nic_bytes=3)
    found = account(whole, [steps], 1, (0, 100), 30)
    alone = account(PowerPlan(specs[:1], None, ((0,),), ("X",), (4,)), [steps], 1, (0, 100), 30)
    first, second = found.components_aj
    (apart,) = alone.components_aj
    assert first is not None and second is not None and apart is not None
    assert first["accelerators"] + second["accelerators"] == apart["accelerators"]
    assert first["accelerators"] - second["accelerators"] in (0, 1)
    assert second["cpu"] == 1000 * W * 100
    (group,) = found.groups
    assert group is not None
    assert dict(group.node_aj) == {0: sum(first.values()), 1: sum(second.values())}
    assert group.total_aj == found.total_aj
    assert found.request_j.tolist() == pytest.approx([found.total_aj / AJ_PER_J], rel=1e-12)
    length = np.diff(np.unique(np.concatenate([[0], found.series["time_ps"]])))
    for index, parts in enumerate((first, second)):
        rows = found.series["node"] == index
        drawn = sum(found.series[f"{name}_w"][rows] * length for name in COMPONENTS)
        assert float(np.sum(drawn)) * W == pytest.approx(sum(parts.values()), rel=1e-12)


def test_nodes_without_power_leave_a_group_to_those_that_have_it() -> None:
    steps = use([(10, 41)], memory_bytes=7)
    both = PowerPlan((node(), None), None, ((0, 1),), ("X",), (4,))
    one = PowerPlan((node(),), None, ((0,),), ("X",), (4,))
    found, alone = (account(of, [steps], 0, (0, 100), 30) for of in (both, one))
    assert found.total_aj == alone.total_aj
    assert found.components_aj == (*alone.components_aj, None)
