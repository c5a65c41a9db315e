"""Takes the KV of a prefill group under test: at once, with a given time for each transfer."""

import numpy as np

from llmsim import _native
from llmsim.scheduling.conformance.cases import MakeSimulation

BYTES_PER_S = 10**12
"""A prompt's KV is one byte: transfers that begin together land 1 ps apart, behind their
latency.
"""
_TOKENS = 1 << 26


def receiver(transfer_ps: int) -> MakeSimulation:
    """A simulation with a decode group behind the group under test, whose steps take next to no
    time, and whose cache holds everything.
    """

    def simulation(
        source: "_native.Source", group: "_native.GroupSpec"
    ) -> "_native.SimulationConfig":
        network = _native.NetworkConfig(_native.Sharing.FIFO)
        places = []
        for latency_ps in (transfer_ps, 0):
            out = network.add_link(BYTES_PER_S, latency_ps)
            back = network.add_link(BYTES_PER_S, 0)
            places.append([network.add_place(0, (out, back), (out, back))])
        moves = _native.KvTransferConfig(False, False, places)
        moves.add_route(0, 1, moves.add_table([(0, 0, [([0], 0, 1, 0)])], 1))
        return _native.SimulationConfig(
            source, [group, _decode_group()], network=network, kv_transfer=moves
        )

    return simulation


def _decode_group() -> "_native.GroupSpec":
    group = _native.GroupConfig()
    group.index, group.role = 1, _native.Role.DECODE
    scheduler = _native.SchedulerConfig()
    scheduler.max_num_seqs = scheduler.max_num_scheduled_tokens = 1 << 12
    scheduler.kv_consumer = True
    kv = _native.KvCacheConfig()
    kv.block_size, kv.max_model_len = 16, 1 << 24
    kv.num_blocks = _TOKENS // kv.block_size
    scheduler.kv = kv
    return _native.GroupSpec(group, scheduler, _free_program(scheduler.max_num_seqs))


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
