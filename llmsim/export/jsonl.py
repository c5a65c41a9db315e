"""Writes a workload as a JSONL trace that reads back as the same workload."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llmsim.core import PS_PER_NS, UInt64, Workload
from llmsim.export.files import packed_writer

_UNIQUE = np.uint64(1 << 63)
"""Marks tokens that belong to one request only."""


def write_jsonl(
    workload: Workload, path: str | Path, *, token_ids: bool = False, vocabulary: int = 32_000
) -> None:
    """Writes requests and sessions, one line each, times in ns.

    With `token_ids`, ids below `vocabulary` are made up such that blocks with equal content keys,
    and only those, hold equal tokens: the trace then has the workload's prefix sharing at its
    granularity. Raises InputError where `path` cannot be written.
    """
    successor = workload.next_call.tolist()
    with packed_writer(path) as stream:
        for row in np.flatnonzero(workload.arrival_ps >= 0).tolist():
            stream.write(
                msgspec.json.encode(_line(workload, row, successor, vocabulary if token_ids else 0))
                + b"\n"
            )


def _line(workload: Workload, row: int, successor: list[int], vocabulary: int) -> dict[str, Any]:
    arrival = {"arrival_time_ns": int(workload.arrival_ps[row]) // PS_PER_NS}
    name = workload.session_id[row] if workload.session_id else ""
    session = {"session_id": name} if name else {}
    if successor[row] < 0 and not session:
        return {**_call(workload, row, vocabulary, arrival), **_model(workload, row)}
    calls = [_call(workload, row, vocabulary, {})]
    while successor[row] >= 0:
        calls[-1]["tool_duration_ns"] = int(workload.tool_delay_ps[row]) // PS_PER_NS
        row = successor[row]
        calls.append(_call(workload, row, vocabulary, {}))
    return {**session, **arrival, **_model(workload, row), "sub_requests": calls}


def _model(workload: Workload, row: int) -> dict[str, str]:
    model = int(workload.model[row])
    return {"model": workload.models[model]} if model >= 0 else {}


def _call(workload: Workload, row: int, vocabulary: int, arrival: dict[str, int]) -> dict[str, Any]:
    split = int(workload.input_tokens[row])
    call: dict[str, Any] = {
        "input_toks": split,
        "output_toks": int(workload.output_tokens[row]),
        **arrival,
    }
    if workload.request_id:
        call["request_id"] = workload.request_id[row]
    if workload.priority is not None and workload.priority[row]:
        call["priority"] = int(workload.priority[row])
    if workload.timeout_ps is not None and workload.timeout_ps[row] >= 0:
        call["cancel_after_ns"] = int(workload.timeout_ps[row]) // PS_PER_NS
    if workload.cancel_after_tokens is not None and workload.cancel_after_tokens[row]:
        call["cancel_after_toks"] = int(workload.cancel_after_tokens[row])
    if workload.draft_depth is not None and workload.draft_depth[row] >= 0:
        call["num_speculative_tokens"] = int(workload.draft_depth[row])
    for name in ("slo_class", "adapter", "acceptance_rate", "accepted_drafts"):
        values = getattr(workload, name)
        if values is not None and values[row]:
            call[name] = values[row]
    if workload.encoder_inputs is not None and workload.encoder_inputs[row]:
        call["encoder_inputs"] = [
            {"offset": offset, "tokens": tokens, **({"id": name} if name else {})}
            for offset, tokens, name in workload.encoder_inputs[row]
        ]
    if workload.hidden is not None and workload.hidden[row]:
        call["hidden"] = True
    if workload.extends is not None and workload.extends[row] and not vocabulary:
        call["extends"] = True
    if vocabulary:
        stream = _tokens(workload, row, vocabulary).tolist()
        call |= {"input_tok_ids": stream[:split], "output_tok_ids": stream[split:]}
    return call


def _tokens(workload: Workload, row: int, vocabulary: int) -> UInt64:
    """The whole stream of a request: a token mixes its block's key and place, or its
    row and place.
    """
    total = int(workload.input_tokens[row]) + int(workload.output_tokens[row])
    seeds = np.arange(total, dtype=np.uint64) | (np.uint64(row) << np.uint64(31)) | _UNIQUE
    keys = _keys(workload, row)
    following = (
        _keys(workload, int(workload.next_call[row])) if workload.next_call[row] >= 0 else keys
    )
    if len(following) > len(keys) and np.array_equal(following[: len(keys)], keys):
        # A session's next call repeats this one: the block that is partial here is whole there.
        keys = following[: len(keys) + 1]
    width = np.uint64(max(workload.granularity, 1))
    keyed = (keys[:, None] * width + np.arange(width, dtype=np.uint64)).ravel()[:total]
    seeds[: len(keyed)] = keyed
    return _mixed(seeds) % np.uint64(vocabulary)


def _keys(workload: Workload, row: int) -> UInt64:
    return workload.keys[workload.key_offsets[row] : workload.key_offsets[row + 1]]


def _mixed(values: UInt64) -> UInt64:
    """SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    2014).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
