"""Data-parallel ranks of SGLang's: their command line, and where they meet."""

import socket

from llmsim.scheduling.conformance.cases import Case


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
    return [case | {"rank": rank, "port": port} for rank in range(ranks)]


def meeting_point(case: Case) -> list[str]:
    """SGLang's command line for where the ranks meet; empty without several."""
    return ["--dist-init-addr", f"127.0.0.1:{case['port']}"] if "port" in case else []


def ports(case: Case) -> tuple[int, list[int]] | tuple[()]:
    """What SGLang derives a rank's ports of: its number, and those of all, which nobody uses."""
    if "port" not in case:
        return ()
    return case["rank"], [case["port"] + 100 + rank for rank in range(case["config"]["dp_size"])]
