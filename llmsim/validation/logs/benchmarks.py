"""Logs of benchmark clients: GuideLLM's report and Inference-Perf's records of single requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.plurals import counted
from llmsim.validation.logs.fields import count_of, finite_number, partitioned
from llmsim.validation.logs.findings import backwards_findings, failed_findings
from llmsim.validation.logs.recording import UNKNOWN, FailedRequests, Recording, counts_of


def read_guidellm(path: Path, data: Mapping[str, Any]) -> Recording:
    """The successful requests of GuideLLM's `benchmarks.json`, which must hold one benchmark.

    A request arrives when the client sent it. Raises InputError for another number of benchmarks,
    and for one without single requests.
    """
    benchmarks = data["benchmarks"]
    if not isinstance(benchmarks, list) or len(benchmarks) != 1:
        found = len(benchmarks) if isinstance(benchmarks, list) else "no list of"
        raise InputError(
            f"{path}: it holds {found} benchmarks; give a report of one, such as that of one rate",
            file=str(path),
        )
    requests = _object(f"{path}: benchmarks[0].requests", benchmarks[0], "requests")
    rows, where = requests.get("successful"), f"{path}: benchmarks[0].requests.successful"
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{where} has no requests; run GuideLLM without a sample size of 0")
    failed = [row for name in ("errored", "incomplete") for row in _listed(requests.get(name))]
    start = _column(where, rows, "request_start_time")
    end = _column(where, rows, "request_end_time")
    ttft = _column(where, rows, "time_to_first_token_ms") / 1e3
    return Recording(
        source=str(path),
        kind="GuideLLM report",
        request_id=tuple(str(row.get("request_id", number)) for number, row in enumerate(rows)),
        arrival_s=start - start.min(),
        ttft_s=ttft,
        latency_s=end - start,
        input_tokens=_counts(where, rows, "prompt_tokens"),
        output_tokens=_counts(where, rows, "output_tokens", needed=True),
        findings=(
            *failed_findings(len(failed), len(failed) + len(rows)),
            *backwards_findings(ttft, end - start),
        ),
        failed=FailedRequests.of(
            (
                (str(row["request_id"]), row.get("request_start_time"))
                for row in failed
                if _value(row, "request_id") is not None
            ),
            float(start.min()),
        ),
    )


def read_inference_perf(path: Path, rows: Sequence[Any]) -> Recording:
    """Inference-Perf's `per_request_lifecycle_metrics.json`; stamps in seconds.

    Raises InputError where no request streamed its tokens.
    """
    good, failed = partitioned(enumerate(rows), lambda one: _succeeded(one[1]))
    if not good:
        raise InputError(
            f"{path}: none of its {counted(len(rows), 'request')} succeeded", file=str(path)
        )
    start, end, first, gaps, inputs, outputs = [], [], [], [], [], []
    for number, row in good:
        where = f"{path}: [{number}]"
        times, tokens_in, tokens_out = _info(where, row)
        start.append(finite_number(f"{where}.start_time", row.get("start_time")))
        end.append(finite_number(f"{where}.end_time", row.get("end_time")))
        first.append(times[0])
        gaps.append(np.diff(times))
        inputs.append(tokens_in)
        outputs.append(tokens_out)
    begin = np.array(start)
    ttft, latency = np.array(first) - begin, np.array(end) - begin
    pooled = np.concatenate(gaps)
    return Recording(
        source=str(path),
        kind="Inference-Perf records",
        request_id=tuple(str(number) for number, _ in good),
        arrival_s=begin - begin.min(),
        ttft_s=ttft,
        latency_s=latency,
        input_tokens=np.array(inputs, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        itl_s=pooled if len(pooled) else None,
        itl_counts=counts_of(gaps),
        findings=(
            *failed_findings(len(failed), len(rows)),
            *backwards_findings(ttft, latency),
        ),
        failed=FailedRequests.of(
            ((str(number), _value(row, "start_time")) for number, row in failed),
            float(begin.min()),
        ),
    )


def _succeeded(row: Any) -> bool:
    return isinstance(row, dict) and not row.get("error") and bool(row.get("info"))


def _info(where: str, row: Mapping[str, Any]) -> tuple[list[float], int, int]:
    """Token times, prompt tokens and output tokens, in the older or the newer layout."""
    info = _object(f"{where}.info", row, "info")
    answer = info.get("response_metrics")
    answer = answer if isinstance(answer, dict) else info
    asked = info.get("request_metrics")
    text = asked.get("text") if isinstance(asked, dict) else None
    prompt = text.get("input_tokens") if isinstance(text, dict) else info.get("input_tokens")
    times = answer.get("output_token_times")
    if not isinstance(times, list) or not times:
        raise InputError(
            f"{where}.info has no output_token_times; let Inference-Perf stream the answers"
        )
    stamps = [finite_number(f"{where}.output_token_times", time) for time in times]
    return (
        stamps,
        UNKNOWN if prompt is None else count_of(f"{where}.input_tokens", prompt),
        count_of(f"{where}.output_tokens", answer.get("output_tokens")),
    )


def _object(where: str, holder: Any, name: str) -> Mapping[str, Any]:
    found = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(found, dict):
        raise InputError(f"{where} must be an object")
    return found


def _column(where: str, rows: Sequence[Any], name: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array(
        [
            finite_number(f"{where}[{number}].{name}", _value(row, name))
            for number, row in enumerate(rows)
        ]
    )


def _counts(
    where: str, rows: Sequence[Any], name: str, *, needed: bool = False
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    values = []
    for number, row in enumerate(rows):
        value = _value(row, name)
        unknown = value is None and not needed
        values.append(UNKNOWN if unknown else count_of(f"{where}[{number}].{name}", value))
    return np.array(values, dtype=np.int64)


def _listed(rows: Any) -> list[Any]:
    return rows if isinstance(rows, list) else []


def _value(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, dict) else None
