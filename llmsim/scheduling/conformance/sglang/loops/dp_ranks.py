"""Data-parallel ranks of SGLang's: their command line, where they meet, and what they tell each
other.
"""

import json
import socket
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from llmsim.scheduling.conformance.cases import Case

_MOST_BYTES = 1 << 16
"""Of one message."""


class Exchange:
    """What one rank's process tells those of the others: a socket for each of them.

    SGLang's collectives through `torch.distributed` would take most of a comparison's time.
    """

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket]) -> None:
        self._rank = rank
        self._sockets = dict(sorted(sockets.items()))

    def agreed(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; each is anything that JSON can hold.

        Raises EOFError once another rank's process has ended.
        """
        said = json.dumps(value).encode()
        for other in self._sockets.values():
            other.send(said)
        values = {self._rank: value}
        for rank, other in self._sockets.items():
            heard = other.recv(_MOST_BYTES)
            if not heard:
                raise EOFError(f"rank {rank} has ended")
            values[rank] = json.loads(heard)
        return [values[rank] for rank in sorted(values)]

    def close(self) -> None:
        """For a process that is another rank's or none's: the end of this one's is heard of."""
        for other in self._sockets.values():
            other.close()


def exchanges(ranks: int) -> list[Exchange]:
    """One for each rank."""
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    for one, other in combinations(range(ranks), 2):
        # Messages keep their bounds, and an ended process is heard of.
        sockets[one][other], sockets[other][one] = socket.socketpair(type=socket.SOCK_SEQPACKET)
    return [Exchange(rank, of_rank) for rank, of_rank in enumerate(sockets)]


def arguments(config: Case) -> list[str]:
    """SGLang's command line for the ranks of a configuration; empty without several."""
    ranks = str(config.get("dp_size", 1))
    if ranks == "1":
        return []
    return ["--tp-size", ranks, "--dp-size", ranks, "--enable-dp-attention"]


def with_ranks(case: Case) -> list[Case]:
    """A server's case as one for each of its ranks, which meet at a free port."""
    ranks = case["config"].get("dp_size", 1)
    if ranks == 1:
        return [case]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    return [
        case | {"rank": rank, "port": port, "exchange": exchange}
        for rank, exchange in enumerate(exchanges(ranks))
    ]


def close(ranks: Iterable[Case]) -> None:
    """In a process that is none of these ranks."""
    for case in ranks:
        if "exchange" in case:
            case["exchange"].close()


def meeting_point(case: Case) -> list[str]:
    """SGLang's command line for where the ranks meet; empty without several."""
    return ["--dist-init-addr", f"127.0.0.1:{case['port']}"] if "port" in case else []


def ports(case: Case) -> tuple[int, list[int]] | tuple[()]:
    """What SGLang derives a rank's ports of: its number, and those of all, which nobody uses."""
    if "port" not in case:
        return ()
    return case["rank"], [case["port"] + 100 + rank for rank in range(case["config"]["dp_size"])]
