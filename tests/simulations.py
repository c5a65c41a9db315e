"""Native simulations for tests: rows of requests, groups, and the fields that a test is about."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmsim import _native

Rows = Sequence[tuple[int, int, int]]


def router(name: str, seed: int = 0, **options: float) -> Any:
    """A native router by name, with the defaults of the options that are not given."""
    return _native.native_router(name, seed, options, np.empty(0, np.int32))


def clients(
    timeout_ps: Sequence[int] | None = None,
    cancel_after_tokens: Sequence[int] | None = None,
    count: int = 0,
    think_ps: Sequence[int] | None = None,
) -> Any:
    """Clients that give up, or ask in turn; see the native ClientsConfig."""
    return _native.ClientsConfig(
        np.array(timeout_ps or [], np.int64),
        np.array(cancel_after_tokens or [], np.int32),
        count,
        np.array(think_ps or [], np.int64),
    )


def source(
    rows: Rows,
    *,
    keys: Sequence[Sequence[int]] | None = None,
    granularity: int = 16,
    priority: Sequence[int] = (),
    next_call: Sequence[int] = (),
    model: Sequence[int] = (),
    clients: Any = None,
) -> Any:
    """The workload of rows (arrival in ps, or -1 for a later call; input tokens; output tokens)."""
    n = len(rows)
    columns = np.array(rows, np.int64).reshape(n, 3)
    keys = keys or [[] for _ in rows]
    return _native.Source(
        columns[:, 0].copy(),
        columns[:, 1].astype(np.int32),
        columns[:, 2].astype(np.int32),
        np.array(model or [0] * n, np.int16),
        np.array(next_call or [-1] * n, np.int32),
        np.zeros(n, np.int64),
        np.array(priority, np.int32),
        np.cumsum([0, *map(len, keys)]).astype(np.int64),
        np.array([key for row in keys for key in row], np.uint64),
        granularity,
        clients,
    )


def simulation(
    rows: Rows,
    groups: Sequence[Any],
    *,
    router: Any = None,
    decode_router: Any = None,
    admission: Any = None,
    interval_ps: int = 0,
    device_shares: bool = False,
    check_every_step: bool = False,
    lockstep: Sequence[Any] = (),
    contention: Sequence[Any] = (),
    network: Any = None,
    kv_tiers: Any = None,
    kv_transfer: Any = None,
    horizon_ps: int = 0,
    controllers: Sequence[Any] = (),
    **of_source: Any,
) -> Any:
    """A simulation before its first event; `of_source` are the arguments of `source`."""
    config = _native.SimulationConfig(
        source(rows, **of_source),
        list(groups),
        lockstep=list(lockstep),
        network=network,
        contention=list(contention),
        kv_tiers=kv_tiers,
        kv_transfer=kv_transfer,
        frontend=_native.Frontend(router, decode_router, admission),
        observers=_native.Observers(interval_ps, device_shares, check_every_step),
        limits=_native.Limits(horizon_ps) if horizon_ps else None,
        controllers=list(controllers),
    )
    return _native.Simulation(config)
