"""The numbered invariants of docs/reference/invariants.md that are checked at the end
of every run.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from llmsim.core import AJ_PER_J, COMPONENTS, PS_PER_S, Energy, Int64, Results, Status
from llmsim.exact import exact_sum

OK = "ok"
_LEFT = (Status.FINISHED, Status.REJECTED, Status.CANCELLED, Status.REFUSED, Status.FAILED)
"""Where requests of a run that was not cut short stand."""


def check_invariants(results: Results, enforces_lower_bound: Sequence[bool]) -> Mapping[str, str]:
    """Number and name of each invariant -> "ok" or the first violation found.

    `enforces_lower_bound[g]` says whether group g's costs are llmsim's own. A step below the lower
    bound is then a violation; a user's own profile gets a warning instead.
    """
    return {
        "1 conservation": _conservation(results),
        "2 causality": _causality(results),
        "3 clock": _clock(results),
        "4 blocks": _blocks(results),
        "5 tokens": _tokens(results),
        "7 work conservation": _work(results),
        "10 speed of light": _peak_rates(results, enforces_lower_bound),
        "11 blame": _blame(results),
        "12 energy": _energy(results),
        "13 transfers": _transfers(results),
        "15 links": _links(results),
    }


def _conservation(results: Results) -> str:
    status = results.requests.status
    counted = np.bincount(status, minlength=len(Status))
    counters = results.counters
    in_groups = {
        Status.FINISHED: exact_sum(counters["finished"]),
        Status.RUNNING: exact_sum(counters["running"]),
        Status.WAITING: exact_sum(counters["waiting"]),
    }
    for state, total in in_groups.items():
        if counted[state] != total:
            return f"{counted[state]} requests are {state.name.lower()}, the groups count {total}"
    if counted[Status.PARKED] > exact_sum(counters["parked"]):
        return (
            f"{counted[Status.PARKED]} requests are parked, the groups count "
            f"{exact_sum(counters['parked'])}"
        )
    reached = results.requests.queued_ps >= 0
    for state, said in ((Status.CANCELLED, "were cancelled"), (Status.FAILED, "failed")):
        dropped = int(np.count_nonzero((status == state) & reached))
        total = exact_sum(counters[state.name.lower()])
        if dropped != total:
            return f"{dropped} requests {said}, the groups count {total}"
    left = len(status) - exact_sum(counted[list(_LEFT)])
    if not results.cut_short and left:
        return f"{left} requests neither finished nor left"
    return OK


def _causality(results: Results) -> str:
    r = results.requests
    done = r.status == Status.FINISHED
    chain = (r.arrival_ps, r.queued_ps, r.scheduled_ps, r.first_token_ps, r.finish_ps)
    for earlier, later in pairwise(chain):
        wrong = np.flatnonzero(done & ((earlier < 0) | (earlier > later)))
        if len(wrong):
            return (
                f"request {wrong[0]} goes back in time: "
                f"{[int(column[wrong[0]]) for column in chain]} ps"
            )
    return OK


def _clock(results: Results) -> str:
    return (
        OK
        if not len(results.itl_values_ps) or results.itl_values_ps[0] >= 0
        else "a token came before the last one"
    )


def _blocks(results: Results) -> str:
    counters = results.counters
    for pool in results.kv_tiers:
        if not pool["consistent"]:
            return (
                f"the chunks of the KV pool {pool['name']} do not add up to the bytes it has in use"
            )
    for group, consistent in enumerate(counters["pool_consistent"]):
        if not consistent:
            return f"group {group}: free, cached and referenced blocks do not add up to its pool"
        idle = counters["running"][group] == 0 and not results.cut_short
        if idle and counters["free_blocks"][group] != counters["total_blocks"][group] - 1:
            return (
                f"group {group}: {counters['free_blocks'][group]} blocks are free though nothing "
                "runs"
            )
    return OK


def _tokens(results: Results) -> str:
    r, workload = results.requests, results.workload
    emitted = r.emitted_tokens
    if exact_sum(emitted) != exact_sum(results.counters["generation_tokens"]):
        return "emitted and generated tokens differ"
    finished = np.flatnonzero(r.status == Status.FINISHED)
    most = results.counters["max_model_len"][r.group[finished]] - workload.input_tokens[finished]
    asked = np.minimum(workload.output_tokens[finished], most)
    wrong = finished[(emitted[finished] != asked) | (asked < 1)]
    if len(wrong):
        return (
            f"request {wrong[0]} emitted {emitted[wrong[0]]} of "
            f"{workload.output_tokens[wrong[0]]} tokens"
        )
    unscheduled = unscheduled_tokens(results, finished)
    if unscheduled != OK:
        return unscheduled
    gaps = exact_sum(results.itl_counts)
    expected = exact_sum(emitted[finished].astype(np.int64) - 1)
    return (
        OK
        if gaps == expected
        else f"{gaps} inter-token latencies for {expected} tokens after the first"
    )


def unscheduled_tokens(results: Results, finished: Int64) -> str:
    """Checks that every group scheduled what its requests needed, computed again or dropped, and
    nothing else.

    `finished` are the rows of requests that finished. Returns OK, or the first group whose tokens
    do not add up. A finished request needs all tokens but its last one computed; the others what
    they had computed when they left, or when the run ended. What a request had when it first ran
    came from a cache or another group.
    """
    r, c = results.requests, results.counters
    needed = (
        results.workload.input_tokens[finished].astype(np.int64) + r.emitted_tokens[finished] - 1
    )
    due = np.zeros(len(results.groups), np.int64)
    np.add.at(due, r.group[finished], needed)
    due += (
        c["open_tokens"] - c["started_with_tokens"] + c["recomputed_tokens"] + c["discarded_tokens"]
    )
    scheduled = c["scheduled_tokens"] + c["unlaunched_tokens"]
    negative = (c["discarded_tokens"] < 0) | (c["started_with_tokens"] < 0)
    wrong = np.flatnonzero((scheduled != due) | negative)
    if len(wrong):
        group = int(wrong[0])
        return (
            f"group {group} scheduled {scheduled[group]} tokens for {due[group]} that its "
            "requests needed"
        )
    return OK


def _work(results: Results) -> str:
    for group, times in enumerate(results.counters["idle_with_work"]):
        if times:
            return f"group {group} was left idle {times} times although it held requests"
    return OK


def _blame(results: Results) -> str:
    r = results.requests
    end_ps = np.maximum(r.finish_ps, r.cancelled_ps)
    done = end_ps >= 0
    total_ps = np.zeros_like(end_ps)
    for column in results.blame.values():
        total_ps += column
    wrong = np.flatnonzero(done & (total_ps != end_ps - r.arrival_ps))
    if len(wrong):
        return f"the parts of request {wrong[0]}'s latency do not add up to it"
    if any(column[done].min(initial=0) < 0 for column in results.blame.values()):
        return "a part of a latency is negative"
    return OK


def _energy(results: Results) -> str:
    """Components, groups, requests and the power series are four ways to split one total; 1e-9 is
    double precision.
    """
    energy = results.energy
    if energy is None:
        return OK
    total_j = energy.total_aj / AJ_PER_J
    slack_j = 1e-9 * total_j
    by_node: dict[int, int] = {}
    for group in energy.groups:
        for node, used_aj in group.node_aj if group is not None else ():
            by_node[node] = by_node.get(node, 0) + used_aj
    for node, used_aj in by_node.items():
        parts = energy.components_aj[node]
        if parts is None or sum(parts.values()) != used_aj:
            return f"the groups of node {node} do not add up to its components"
    for group in energy.groups:
        if group is not None and sum(used_aj for _, used_aj in group.node_aj) != group.total_aj:
            return f"the nodes of group {group.group} do not add up to its energy"
    for group in energy.groups:
        if (
            group is not None
            and min(group.idle_aj, group.standby_aj, group.active_aj, group.traffic_aj) < 0
        ):
            return f"group {group.group} has a negative part"
    attributed_j = float(energy.request_j.sum()) + energy.unattributed_j
    if abs(attributed_j - total_j) > slack_j:
        return f"requests and what nobody used are {attributed_j!r} J of {total_j!r} J"
    drawn_j = _integral_j(energy)
    if abs(drawn_j - (total_j - energy.pool_aj / AJ_PER_J)) > slack_j:
        return f"the power series adds up to {drawn_j!r} J of {total_j!r} J"
    return OK


def _integral_j(energy: Energy) -> float:
    """Power times length of every interval."""
    length_s = interval_lengths_ps(energy) / PS_PER_S
    return float(
        sum((energy.series[f"{name}_w"].astype(np.float64) * length_s).sum() for name in COMPONENTS)
    )


def interval_lengths_ps(energy: Energy) -> Int64:
    """Length of the interval of each row of the power series, ps."""
    times, nodes = energy.series["time_ps"].astype(np.int64), energy.series["node"]
    begins = np.concatenate([[energy.start_ps], times[:-1]]).astype(np.int64)
    first = np.concatenate([[True], nodes[1:] != nodes[:-1]])[: len(times)]
    return np.asarray(times - np.where(first, energy.start_ps, begins[: len(times)]))


def _transfers(results: Results) -> str:
    """Whole and in order: prompt, KV, decode; and the groups agree on how many there were."""
    h, r = results.kv_transfers, results.requests
    if h is None:
        return OK
    done = np.flatnonzero((h.prefill_group >= 0) & (r.status == Status.FINISHED))
    for earlier, later in (
        (h.prefill_end_ps, h.decode_scheduled_ps),
        (h.kv_landed_ps, h.decode_scheduled_ps),
    ):
        wrong = done[(earlier[done] < 0) | (earlier[done] > later[done])]
        if len(wrong):
            return f"request {wrong[0]} was decoded before its KV was there"
    handed_over = results.workload.input_tokens[done] + r.emitted_tokens[done]
    if (h.decode_cached_tokens[done] >= handed_over).any():
        return "a request was handed over whose whole prompt was cached"
    wrong = done[h.kv_transfer_bytes[done] != h.kv_due_bytes[done]]
    if len(wrong):
        moved, due = h.kv_transfer_bytes[wrong[0]], h.kv_due_bytes[wrong[0]]
        return f"of request {wrong[0]} {moved} B of KV were moved instead of {due} B"
    ended = int(np.count_nonzero(h.prefill_end_ps >= 0))
    counted = exact_sum(results.counters["handed_over"])
    return (
        OK if ended == counted else f"{ended} prompts were handed over, the groups count {counted}"
    )


def _peak_rates(results: Results, enforces_lower_bound: Sequence[bool]) -> str:
    for group, below in enumerate(results.counters["steps_below_lower_bound"]):
        if below and enforces_lower_bound[group]:
            return (
                f"group {group}: {below} steps are faster than the device can read weights and KV"
            )
    return OK


def _links(results: Results) -> str:
    """No link has carried more than its bandwidth allows while it was in use."""
    columns = [results.links[name].tolist() for name in ("bytes_per_s", "bytes", "busy_ps")]
    for number, (bytes_per_s, carried, busy_ps) in enumerate(zip(*columns, strict=True)):
        if carried * PS_PER_S > bytes_per_s * busy_ps:
            return (
                f"link {number} of {bytes_per_s} bytes/s carried {carried} bytes in the "
                f"{busy_ps} ps in which it was in use"
            )
    return OK
