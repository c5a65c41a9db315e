"""What lies between prefill and decode groups: a given time for each transfer. Where one side is
under test, its counterpart takes no time and has room for everything.
"""

from collections.abc import Sequence

import numpy as np

from llmsim import _native
from llmsim.scheduling.conformance.cases import MakeSimulation

BYTES_PER_S = 10**12
"""A prompt's KV is one byte: transfers that begin together land 1 ps apart, behind their
latency.
"""
MESSAGE_PS = 7
"""From the decode side's reservation until the prefill side hears of it: no step ends just then."""
_TOKENS = 1 << 26
_STAND_IN_TOKENS = 1 << 12


def receiver(transfer_ps: int) -> MakeSimulation:
    """A simulation with a decode group behind the group under test, whose steps take next to no
    time, and whose cache holds everything.
    """

    def simulation(
        source: "_native.Source", group: "_native.GroupSpec"
    ) -> "_native.SimulationConfig":
        groups = [group, _stand_in(1, _native.Role.DECODE)]
        return between(source, groups, (transfer_ps, 0), push=False)

    return simulation


def sender(transfer_ps: int) -> MakeSimulation:
    """A simulation with a prefill group in front of the group under test."""

    def simulation(
        source: "_native.Source", group: "_native.GroupSpec"
    ) -> "_native.SimulationConfig":
        groups = [_stand_in(0, _native.Role.PREFILL), group]
        return between(source, groups, (transfer_ps, MESSAGE_PS), push=True)

    return simulation


def between(
    source: "_native.Source",
    groups: "Sequence[_native.GroupSpec]",
    latencies_ps: tuple[int, int],
    *,
    push: bool,
) -> "_native.SimulationConfig":
    """A simulation of a prefill group and a decode group; what each of them sends to the other
    takes its latency.
    """
    network = _native.NetworkConfig(_native.Sharing.FIFO)
    places = []
    for latency_ps in latencies_ps:
        out = network.add_link(BYTES_PER_S, latency_ps)
        back = network.add_link(BYTES_PER_S, 0)
        places.append([network.add_place(0, (out, back), (out, back))])
    moves = _native.KvTransferConfig(push, False, places)
    moves.add_route(0, 1, moves.add_table([(0, 0, [([0], 0, 1, 0)])], 1))
    return _native.SimulationConfig(source, list(groups), network=network, kv_transfer=moves)


def _stand_in(index: int, role: "_native.Role") -> "_native.GroupSpec":
    group = _native.GroupConfig()
    group.index, group.role = index, role
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs = scheduler.max_num_scheduled_tokens = _STAND_IN_TOKENS
    scheduler.kv_consumer = role == _native.Role.DECODE
    scheduler.kv_producer = role == _native.Role.PREFILL
    kv = _native.KvCacheConfig()
    kv.block_size, kv.max_model_len = 16, 1 << 24
    kv.num_blocks = _TOKENS // kv.block_size
    scheduler.kv = kv
    return _native.GroupSpec(group, scheduler, _free_program(_STAND_IN_TOKENS))


def _free_program(tokens: int) -> "_native.Program":
    """Steps take 1 ps, the least that there is."""
    none = np.zeros(tokens + 1, np.int64)
    operator = _native.Operator(
        "nothing",
        _native.NodeKind.COMPUTE,
        _native.Feature.TOKENS,
        0,
        1,
        none,
        np.zeros(len(none), np.uint8),
    )
    zero = np.zeros(1, np.int64)
    attention = _native.Attention.split([zero, zero], zero, [zero, zero], zero, 0, 0)
    padded = np.arange(tokens + 1, dtype=np.int32)
    return _native.Program([operator], attention, padded, _native.LowerBound(), 0)
