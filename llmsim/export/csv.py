"""The per-request CSV that LLMServingSim's tools read: one row per finished request,
times in ns.
"""

import csv
from pathlib import Path

import numpy as np

from llmsim.core import PS_PER_NS, Int64, Results
from llmsim.export.files import atomic_writer
from llmsim.results.requests.metrics import finished_rows

COLUMNS = (
    "instance id", "request id", "model", "input", "output", "arrival", "end_time",
    "latency", "queuing_delay", "TTFT", "TPOT", "ITL",
)  # fmt: skip
HANDOVER_COLUMNS = ("prefill instance id", "KV transfer", "KV bytes")
"""Behind the others, where groups have roles; empty, 0 and 0 for requests that one group served."""
CLASS_COLUMN = "SLO class"
"""Behind all others, where the trace has classes; empty for requests that are in none."""


def write_csv(results: Results, path: str | Path) -> None:
    """Writes the finished requests by instance and, within one, by finish time (then row).

    Time stamps are rounded to whole ns, halves up, and every duration is a difference of rounded
    stamps: TTFT plus the ITLs is the latency exactly. `queuing_delay` ends when the request is
    first scheduled. TPOT is (latency - TTFT) / (output - 1), rounded; empty for one token. ITL is a
    Python list of output - 1 integers. In a disaggregated run `instance id` decodes, and
    HANDOVER_COLUMNS say where the prompt was computed, how long the request waited for its KV
    (`kv_transfer_ps` of the blame), and how much of it was moved. Raises InputError where `path`
    cannot be written.
    """
    requests, workload = results.requests, results.workload
    rows = finished_rows(requests)
    rows = rows[np.lexsort((rows, requests.finish_ps[rows], requests.group[rows]))]
    arrival, scheduled, first, finish = (
        _to_ns(column[rows]).tolist()
        for column in (
            requests.arrival_ps,
            requests.scheduled_ps,
            requests.first_token_ps,
            requests.finish_ps,
        )
    )
    with atomic_writer(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        handover = () if results.kv_transfers is None else HANDOVER_COLUMNS
        classes = () if workload.slo_class is None else (CLASS_COLUMN,)
        writer.writerow((*COLUMNS, *handover, *classes))
        for index, row in enumerate(rows.tolist()):
            emitted = int(requests.emitted_tokens[row])
            latency, ttft = finish[index] - arrival[index], first[index] - arrival[index]
            group = int(requests.group[row])
            writer.writerow(
                (
                    group,
                    workload.request_id[row] if workload.request_id else row,
                    results.groups[group].model_name,
                    int(workload.input_tokens[row]),
                    emitted,
                    arrival[index],
                    finish[index],
                    latency,
                    scheduled[index] - arrival[index],
                    ttft,
                    (2 * (latency - ttft) + emitted - 1) // (2 * (emitted - 1))
                    if emitted > 1
                    else "",
                    _itl_ns(int(requests.first_token_ps[row]), results.itl_of(row)),
                    *_kv_transfer(results, row),
                    *(() if workload.slo_class is None else (workload.slo_class[row],)),
                )
            )


def _kv_transfer(results: Results, row: int) -> tuple[int | str, ...]:
    h = results.kv_transfers
    if h is None:
        return ()
    group = int(h.prefill_group[row])
    waited_ps = results.blame["kv_transfer_ps"][row : row + 1]
    return group if group >= 0 else "", int(_to_ns(waited_ps)[0]), int(h.kv_transfer_bytes[row])


def _itl_ns(first_token_ps: int, itl_ps: Int64) -> list[int]:
    stamps_ps = first_token_ps + np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(itl_ps)))
    itl: list[int] = np.diff(_to_ns(stamps_ps)).tolist()
    return itl


def _to_ns(times_ps: Int64) -> Int64:
    return (times_ps + PS_PER_NS // 2) // PS_PER_NS
