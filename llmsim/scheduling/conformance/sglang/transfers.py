"""What lies between prefill and decode groups: a given time for each transfer. Where one side is
under test, its counterpart takes no time and has room for everything.
"""

from collections.abc import Callable, Sequence

import numpy as np

from llmsim import _native

MakeServers = Callable[
    ["_native.Source", "Sequence[_native.GroupSpec]"], "_native.SimulationConfig"
]

BYTES_PER_S = 10**12
"""A prompt's KV is one byte: transfers that begin together land 1 ps apart, behind their
latency.
"""
MESSAGE_PS = 7
"""From the decode side's reservation until the prefill side hears of it: no step ends just then."""
_TOKENS = 1 << 26
_STAND_IN_TOKENS = 1 << 12


def receiver(transfer_ps: int) -> MakeServers:
    """A simulation with a decode group behind each group under test, whose steps take next to no
    time, and whose cache holds everything.
    """

    def simulation(
        source: "_native.Source", groups: "Sequence[_native.GroupSpec]"
    ) -> "_native.SimulationConfig":
        ranks = len(groups)
        behind = [_stand_in(ranks + i, i, _native.Role.DECODE) for i in range(ranks)]
        both = [*groups, *behind]
        return between(source, both, (transfer_ps, 0), [range(ranks)], push=False)

    return simulation


def sender(transfer_ps: int) -> MakeServers:
    """A simulation with a prefill group in front of each group under test."""

    def simulation(
        source: "_native.Source", groups: "Sequence[_native.GroupSpec]"
    ) -> "_native.SimulationConfig":
        ranks = len(groups)
        in_front = [_stand_in(i, i, _native.Role.PREFILL) for i in range(ranks)]
        together, latencies = [range(ranks, 2 * ranks)], (transfer_ps, MESSAGE_PS)
        return between(source, [*in_front, *groups], latencies, together, push=True)

    return simulation


def between(
    source: "_native.Source",
    groups: "Sequence[_native.GroupSpec]",
    latencies_ps: tuple[int, int],
    together: Sequence[range],
    *,
    push: bool,
) -> "_native.SimulationConfig":
    """A simulation of prefill groups and as many decode groups behind them; what each sends to its
    counterpart takes its latency. Of `together`, those of one range are a server's ranks.
    """
    network = _native.NetworkConfig(_native.Sharing.FIFO)
    ranks, places = len(groups) // 2, []
    for latency_ps in latencies_ps:
        for _ in range(ranks):
            out = network.add_link(BYTES_PER_S, latency_ps)
            back = network.add_link(BYTES_PER_S, 0)
            places.append([network.add_place(0, (out, back), (out, back))])
    moves = _native.KvTransferConfig(push, False, places)
    whole = moves.add_table([(0, 0, [([0], 0, 1, 0)])], 1)
    for rank in range(ranks):
        moves.add_route(rank, ranks + rank, whole)
    steps = [one for server in together for one in lockstep(server)]
    return _native.SimulationConfig(
        source, list(groups), network=network, kv_transfer=moves, lockstep=steps
    )


def lockstep(ranks: range) -> "list[_native.LockstepSpec]":
    """Several ranks of a server run their steps together."""
    return [_native.LockstepSpec(list(ranks), 1)] if len(ranks) > 1 else []


def _stand_in(index: int, model: int, role: "_native.Role") -> "_native.GroupSpec":
    group = _native.GroupConfig()
    group.index, group.role, group.model = index, role, model
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
