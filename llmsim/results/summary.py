"""The machine-readable summary of a run: vLLM's benchmark names first, then what only a simulator
knows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict

from llmsim.columns import KvTierTotals
from llmsim.core import (
    FEATURES,
    PS_PER_MS,
    PS_PER_S,
    BackendUse,
    Results,
    Status,
    TimeShare,
)
from llmsim.costs.confidence import Reach, expected_error, farthest
from llmsim.exact import exact_sum
from llmsim.results import summary_checks
from llmsim.results.afd import afd_rows
from llmsim.results.devices.energy import carbon_block, cost_block, energy_block
from llmsim.results.devices.host_links import host_link_rows
from llmsim.results.devices.utilisation import by_device, group_usage, utilisation
from llmsim.results.error_bars import system_error
from llmsim.results.reconfigurations import reconfiguration_blocks
from llmsim.results.requests.classes import Objectives, classes_block, goodput
from llmsim.results.requests.metrics import (
    describe,
    finished_rows,
    latencies,
    makespan_ps,
    statistics_ms,
)
from llmsim.results.requests.sessions import reasons, sessions_block
from llmsim.results.speculation import speculation_block
from llmsim.results.time_sources import TimeSources, provenance, share_of

SCHEMA_VERSION = 1
_DIGITS = 6
"""Of every fraction: a millisecond figure is then exact to the nanosecond."""


def summary(results: Results, info: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a program may want to read about a run; keys in a fixed order, None where there is
    no value.

    `info` says what the results do not know: `groups`, a list with, for each group, `ledger` (pairs
    of label and bytes), `block_bytes`, `operators` and `hardware` (of `llmsim.model`), `stages` (of
    its pipeline), `tables` (of `llmsim.costs`), `cost_plan`, `objectives` (of
    `llmsim.results.requests.classes`), and `notes`. All of it is optional. Times end in their unit;
    `duration` is in seconds, throughputs are per second, as in vLLM's benchmark. Holds no
    wall-clock time: same run, same bytes.
    """
    energy, used = energy_block(results), _utilisation(results, info)
    objectives = info.get("objectives", Objectives())
    block = {
        "schema_version": SCHEMA_VERSION,
        **_throughput(results),
        **_latency(results),
        "goodput": goodput(results, objectives),
        "kv_cache": _kv_cache(results, info),
        "prefix_cache": _prefix_cache(results),
        "graphs": _graphs(results),
        "speculation": speculation_block(results),
        "kv_tiers": [
            {one.name: pool[one.name] for one in KvTierTotals.COLUMNS if one.in_files}
            for pool in results.kv_tiers
        ],
        "utilisation": used,
        "utilisation_by_device": by_device(used, results.groups),
        "preemptions": _total(results, "preemptions"),
        "recomputed_tokens": _total(results, "recomputed_tokens"),
        "steps": _total(results, "steps"),
        "communication": _communication(results),
        "blame": _blame(results),
        "kv_transfer": _kv_transfer(results),
        "energy": energy,
        "cost": cost_block(results, info, energy),
        "carbon": carbon_block(info, energy),
        "sources": _sources(results.time_shares, _reaches(results, info)),
        "invariants": dict(results.invariants),
        "workload": {"source": results.workload.source, "requests": len(results.workload)},
        "notes": [*results.workload.notes, *info.get("notes", ()), *results.notes],
        "interrupted": results.interrupted,
        "circular_groups": list(results.circular),
        "horizon_s": None if results.horizon_ps is None else results.horizon_ps / PS_PER_S,
    }
    error, without = system_error(block, _unlike(results, info), _asked_tok_s(results))
    if error is not None:
        block["system_error"] = error
    elif without:
        block["without_system_error"] = without
    block |= _where_used(results, info, objectives)
    block["invariants"][summary_checks.NAME] = summary_checks.check_summary(block, results)
    return block


def _where_used(
    results: Results, info: Mapping[str, Any], objectives: Objectives
) -> dict[str, Any]:
    """Parts of a summary that only some runs have."""
    block: dict[str, Any] = _power_limit(results)
    if results.backend is not None:
        block["network_backend"] = _network_backend(results.backend)
    if reasons(results.workload):
        block["sessions"] = sessions_block(results)
    if info.get("afd"):
        block["afd"] = afd_rows(results, info["afd"])
    if info.get("layouts") is not None:
        block |= reconfiguration_blocks(results, info["layouts"])
    if host_links := host_link_rows(results, info.get("host_links", ())):
        block["host_links"] = host_links
    loads = _adapter_loads(results)
    if loads:
        block["lora"] = loads
    if results.workload.encoder_inputs is not None:
        block["encoder"] = {
            name: _total(results, name)
            for name in ("encoded_inputs", "encoded_tokens", "encoder_cache_hits")
        }
    host_cache = {name: _total(results, f"host_cache_{name}") for name in _HOST_CACHE}
    if any(host_cache.values()):
        block["host_cache"] = host_cache
    offloading = {name: _total(results, f"offloading_{name}") for name in _OFFLOADING}
    if any(offloading.values()):
        block["kv_offloading"] = offloading
    load_failures = {name: _total(results, name) for name in ("failed_loads", "lost_tokens")}
    if any(load_failures.values()):
        block["load_failures"] = load_failures
    if results.workload.slo_class is not None:
        block["classes"] = classes_block(results, objectives)
    return block


_OFFLOADING = (
    "stored_tokens",
    "loaded_tokens",
    "evicted_tokens",
    "refused_tokens",
    "deferred_lookups",
)
"""What vLLM's offloading counts."""
_HOST_CACHE = (
    "written_tokens",
    "loaded_tokens",
    "dropped_tokens",
    "evicted_tokens",
    "stored_tokens",
    "prefetched_tokens",
    "erased_tokens",
)
"""What HiCache counts."""


def _unlike(results: Results, info: Mapping[str, Any]) -> list[str]:
    """Features of the run that no published system has."""
    found = list(info.get("unlike_published", ()))
    if results.backend is not None:
        found.append("another network simulator")
    if info.get("layouts") is not None:
        found.append("switches of layouts")
    return found


def _asked_tok_s(results: Results) -> float | None:
    """Output tokens of the finished requests over the time from the first arrival to their last
    one, which no server can shorten; None where they arrive at once. Later calls of a session
    arrive when the server lets them, and do not count as arrivals.
    """
    rows = finished_rows(results.requests)
    given_ps = results.workload.arrival_ps
    own_ps = given_ps[rows]
    own_ps = own_ps[own_ps >= 0]
    if len(own_ps) == 0:
        return None
    span_ps = int(own_ps.max()) - int(given_ps[given_ps >= 0].min())
    tokens = exact_sum(results.requests.emitted_tokens[rows])
    return tokens * PS_PER_S / span_ps if span_ps else None


def _throughput(results: Results) -> dict[str, Any]:
    rows = finished_rows(results.requests)
    status = results.requests.status
    rejected = int(np.count_nonzero(status == Status.REJECTED))
    cancelled = status == Status.CANCELLED
    refused = int(np.count_nonzero(status == Status.REFUSED))
    errored = int(np.count_nonzero(status == Status.FAILED))
    input_tokens = exact_sum(results.workload.input_tokens[rows])
    output_tokens = exact_sum(results.requests.emitted_tokens[rows])
    duration_ps = makespan_ps(results)
    return {
        "completed": len(rows),
        "failed": rejected + errored,
        "rejected": rejected,
        "cancelled": int(np.count_nonzero(cancelled)),
        "cancelled_output_tokens": exact_sum(results.requests.emitted_tokens[cancelled]),
        "refused": refused,
        "errored": errored,
        "unfinished": len(status)
        - len(rows)
        - rejected
        - refused
        - errored
        - int(np.count_nonzero(cancelled)),
        "duration": _rounded(None if duration_ps is None else duration_ps / PS_PER_S),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _per_second(len(rows), duration_ps),
        "output_throughput": _per_second(output_tokens, duration_ps),
        "total_token_throughput": _per_second(input_tokens + output_tokens, duration_ps),
    }


def _latency(results: Results) -> dict[str, Any]:
    times = latencies(results.requests)
    block: dict[str, Any] = {}
    for name, distribution in (
        ("ttft", describe(times.ttft_ps)),
        ("tpot", describe(times.tpot_ps)),
        ("itl", describe(results.itl_values_ps, results.itl_counts)),
        ("e2el", describe(times.e2el_ps)),
        ("queueing_delay", describe(times.queueing_ps)),
    ):
        block |= statistics_ms(name, distribution)
    return block


def _kv_cache(results: Results, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks = []
    given = list(info.get("groups", ()))
    for group in results.groups:
        about = given[group.index] if group.index < len(given) else {}
        # One block of the pool is the null block, which never holds anything.
        usable = max(group.num_blocks - 1, 0)
        peak = int(results.counters["peak_blocks_used"][group.index])
        blocks.append(
            {
                "group": group.index,
                "model": group.model_name,
                "hardware": group.hardware,
                "devices": group.num_devices,
                "tensor_parallel": group.tp,
                "num_blocks": group.num_blocks,
                "block_size_tokens": group.block_size,
                "block_bytes": about.get("block_bytes"),
                "capacity_tokens": usable * group.block_size,
                "longest_requests": about.get("longest_requests"),
                "peak_blocks_used": peak,
                "peak_usage": _rounded(peak / usable if usable else None),
                "ledger": [
                    {"label": str(label), "bytes": int(size)}
                    for label, size in about.get("ledger", ())
                ],
            }
        )
    return blocks


def _prefix_cache(results: Results) -> dict[str, Any]:
    queried, hit = _total(results, "prefix_queried_tokens"), _total(results, "prefix_hit_tokens")
    return {
        "queried_tokens": queried,
        "hit_tokens": hit,
        "hit_rate": _rounded(hit / queried if queried else None),
        "both_sides_of_hand_overs": results.kv_transfers is not None,
    }


def _utilisation(results: Results, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Model flops and memory bandwidth utilisation of each group whose operators are known, over
    the makespan.

    Data-parallel ranks in lock-step go on for some rounds after the last answer, until they have
    agreed that nothing is left to do: they are busy to the end.
    """
    busy_ps = (
        group_usage(results, group.index).busy_ps for group in results.groups if results.table_rows
    )
    span_ps = max([makespan_ps(results) or 0, *busy_ps])
    rows = []
    for group, about in zip(results.groups, info.get("groups", ()), strict=False):
        if "operators" not in about or not results.table_rows:
            continue
        usage = group_usage(results, group.index)
        shares = utilisation(
            about["operators"], usage, about.get("hardware"), span_ps, about.get("stages", 1)
        )
        busy = _rounded(usage.busy_ps / span_ps if span_ps else None)
        rows.append(
            {
                "group": group.index,
                "busy": busy,
                **{k: _rounded(v) for k, v in asdict(shares).items()},
            }
        )
    return rows


def _graphs(results: Results) -> dict[str, int | float | None]:
    """Steps by the kind of CUDA graph that they replayed, and the seconds that launches added to
    the others.
    """
    steps = {
        kind: _total(results, f"steps_{kind}")
        for kind in ("full_graph", "piecewise_graph", "without_graph")
    }
    return {**steps, "launching_s": _rounded(_total(results, "launching_ps") / PS_PER_S)}


def _power_limit(results: Results) -> dict[str, float | None]:
    """The seconds that steps lost to the clock of the card's power limit, if they lost any."""
    slowed_ps = _total(results, "slowed_ps")
    return {"slowed_s": _rounded(slowed_ps / PS_PER_S)} if slowed_ps else {}


def _network_backend(use: BackendUse) -> dict[str, Any]:
    """Steps that another program timed, and how many of them it had to run."""
    return {
        "name": use.name,
        "steps": use.steps,
        "new_steps": use.new_steps,
        "new_share": _rounded(use.new_steps / use.steps if use.steps else None),
        "failure": use.failure or None,
    }


def _communication(results: Results) -> dict[str, Any]:
    """Time of all groups' collectives and hand-overs, and what others on their links cost."""
    time_ps = _total(results, "communication_ps")
    slowed_ps, lost_ps = (
        _total(results, f"communication_{what}_ps") for what in ("slowed", "lost")
    )
    return {
        "time_s": time_ps / PS_PER_S,
        "slowed_share": round(slowed_ps / time_ps, 6) if time_ps else 0.0,
        "lost_s": lost_ps / PS_PER_S,
    }


def _blame(results: Results) -> dict[str, Any]:
    """Where the latency of the finished requests went: mean milliseconds per request and share of
    the total.
    """
    rows = finished_rows(results.requests)
    totals = {
        name.removesuffix("_ps"): exact_sum(part_ps[rows])
        for name, part_ps in results.blame.items()
    }
    total_ps = sum(totals.values())
    return {
        name: {
            "mean_ms": _rounded(part_ps / len(rows) / PS_PER_MS) if len(rows) else None,
            "share": share_of(part_ps, total_ps),
        }
        for name, part_ps in totals.items()
    }


def _kv_transfer(results: Results) -> dict[str, Any] | None:
    """Of the finished requests that two groups served; times in ms from the reservation of blocks
    to the last byte.
    """
    h = results.kv_transfers
    if h is None:
        return None
    rows = finished_rows(results.requests)
    rows = rows[h.prefill_group[rows] >= 0]
    moved = exact_sum(h.kv_transfer_bytes[rows])
    times = describe((h.kv_landed_ps - h.kv_reserved_ps)[rows])
    return {
        "requests": len(rows),
        "bytes": moved,
        "decode_cached_tokens": exact_sum(h.decode_cached_tokens[rows]),
        **statistics_ms("transfer", times),
    }


def _adapter_loads(results: Results) -> dict[str, int]:
    """Adapters that steps copied to slots of the devices, and those whose files they read, as far
    as both take time.
    """
    found: dict[str, int] = {}
    for rows in results.table_rows:
        for feature in ("adapter_loads", "adapter_reads"):
            counts = np.asarray(rows[FEATURES.index(feature)])
            if len(counts):
                loaded = exact_sum(np.arange(len(counts), dtype=np.int64), counts)
                found[feature] = found.get(feature, 0) + loaded
    return found


def _reaches(results: Results, info: Mapping[str, Any]) -> list[Reach]:
    """Where the run read tables beyond their last measured point."""
    found = [
        Reach(name, beyond, f"an axis of its table, group {group}")
        for group, name, beyond in results.attention_reach
    ]
    for rows, about in zip(results.table_rows, info.get("groups", ()), strict=False):
        for cost in about.get("tables", ()):
            used = rows[FEATURES.index(cost.feature)]
            reach = farthest(cost, used) if len(used) == len(cost.ps) else None
            found += [reach] if reach is not None and reach not in found else []
    return found


def _sources(shares: tuple[TimeShare, ...], reaches: Sequence[Reach]) -> dict[str, Any]:
    """Where the simulated busy time comes from: shares of its total, by source and by provenance,
    then per operator.
    """
    whole = TimeSources.of(shares)
    operators = []
    for share in sorted(
        shares, key=lambda one: (one.group, -sum(one.ps_by_provenance), one.operator, one.source)
    ):
        time_ps = sum(share.ps_by_provenance)
        operators.append(
            {
                "group": share.group,
                "operator": share.operator,
                "source": share.source,
                "time_s": _rounded(time_ps / PS_PER_S),
                "share": share_of(time_ps, whole.total_ps),
                "provenance": provenance(share.ps_by_provenance, time_ps),
            }
        )
    half, most = expected_error(whole.by_provenance)
    table_error = {"half": _rounded(half), "most": _rounded(most)}
    return {
        "busy_time_s": _rounded(whole.total_ps / PS_PER_S),
        **whole.as_json(),
        "expected_error_percent": table_error,
        "table_interpolation_error_percent": dict(table_error),
        "extrapolations": [
            {"operator": reach.operator, "beyond": _rounded(reach.beyond), "what": reach.what}
            for reach in sorted(reaches, key=lambda reach: (-reach.beyond, reach.operator))
        ],
        "operators": operators,
    }


def _total(results: Results, counter: str) -> int:
    return exact_sum(results.counters[counter])


def _per_second(amount: int, duration_ps: int | None) -> float | None:
    return _rounded(amount * PS_PER_S / duration_ps) if duration_ps else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
