"""`python -m bench.readers [FORMAT...]`: a trace of each format is made up, and `llmsim trace
inspect` reads it.

Wall and processor seconds of the whole process, Python start included, and its peak memory; a
million lines unless `--lines` says otherwise. The files (up to 0.7 GB each) are made in a temporary
folder, one after the other.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser

WORDS = (
    "the quick brown fox jumps over the lazy dog ",
    "what is the answer to this question, please explain ",
)
BLOCKS = 12
"""Block ids of a prompt, where a format has them."""


@dataclass(frozen=True)
class Line:
    """What one line says: arrival in seconds, tokens, and random bits for everything else."""

    number: int
    at_s: float
    prompt: int
    answer: int
    bits: int

    @property
    def date(self) -> str:
        """The arrival as a date of November 2023."""
        day, rest = divmod(self.at_s, 86400)
        return (
            f"2023-11-{1 + int(day):02d} "
            f"{int(rest // 3600):02d}:{int(rest // 60) % 60:02d}:{rest % 60:010.7f}"
        )

    @property
    def ids(self) -> str:
        """Names of neighbouring blocks."""
        first = self.bits % 200_000
        return ", ".join(map(str, range(first, first + BLOCKS)))


def lines_of(count: int) -> Iterator[Line]:
    """The same lines every time: Poisson arrivals, uniform lengths."""
    source, at_s = random.Random(1), 0.0
    for number in range(count):
        at_s += source.expovariate(100)
        yield Line(
            number, at_s, source.randint(10, 400), source.randint(2, 300), source.getrandbits(128)
        )


def _aiperf(line: Line) -> str:
    start = 1_700_000_000_000_000_000 + int(line.at_s * 1e9)
    metadata = {
        "session_num": line.number,
        "x_request_id": f"{line.bits:032x}",
        "x_correlation_id": f"{line.bits ^ 1:032x}",
        "turn_index": 0,
        "request_start_ns": start,
        "request_end_ns": start + 10**9,
        "worker_id": "worker_1",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    metrics = {"input_sequence_length": {"value": line.prompt, "unit": "tokens"},
               "output_sequence_length": {"value": line.answer, "unit": "tokens"},
               "time_to_first_token": {"value": 18.2, "unit": "ms"}}  # fmt: skip
    return json.dumps({"metadata": metadata, "metrics": metrics, "error": None})


def _tracelab(line: Line) -> str:
    session, turn = divmod(line.number, 20)
    date = line.date.replace(" ", "T")[:23] + "Z"
    return json.dumps(
        {
            "provider": "a",
            "session_id": f"s-{session}",
            "round_index": turn,
            "round_id": f"r{line.number}",
            "model": "m",
            "input_tokens_total": 300 * turn + line.prompt,
            "prefix_tokens": 300 * turn,
            "newly_append_tokens": line.prompt,
            "output_tokens": line.answer,
            "timing_events": [{"event": what, "timestamp": date} for what in ("a", "b", "c")],
            "tools": [{"name": "bash", "tool_wall_latency_ms": 123.5 + line.prompt}],
        }
    )


def _weka(line: Line) -> str:
    call = (
        f'{{"t": 0.0, "type": "s", "model": "m", "in": {768 + line.prompt % 60}, "out": '
        f"{line.answer}, "
        f'"hash_ids": [{line.ids}], "stop": "end_turn", "api_time": 1.5}}'
    )
    return f'{{"id": "c{line.number}", "models": ["m"], "block_size": 64, "requests": [{call}]}}'


def _sharegpt(line: Line) -> str:
    said = [
        ("human", WORDS[line.prompt % 2] * (1 + line.prompt // 40)),
        ("gpt", WORDS[0] * (1 + line.answer // 40)),
    ]
    said += [("human", "and then?"), ("gpt", "café " + WORDS[1])] * (line.number % 3 == 0)
    turns = [{"from": who, "value": what} for who, what in said]
    return json.dumps(
        {"id": f"id{line.number}", "conversations": turns}, ensure_ascii=line.number % 2 == 0
    )


def _openai(line: Line) -> str:
    said = [
        {"role": "system", "content": WORDS[0] * 2},
        {"role": "user", "content": WORDS[line.prompt % 2] * (1 + line.prompt // 40)},
    ]
    body = {"model": "m", "messages": said, "max_tokens": line.answer}
    request = {"custom_id": f"r{line.number}", "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps({**request, "body": body})


FORMATS: dict[str, tuple[str, Callable[[Line], str]]] = {
    "llmservingsim": (
        "",
        lambda x: (
            f'{{"input_toks":{x.prompt},"output_toks":{x.answer},"arrival_time_ns":{int(x.at_s * 1e9)}}}'  # noqa: E501
        ),
    ),
    "mooncake": (
        "",
        lambda x: (
            f'{{"timestamp": {int(x.at_s * 1e3)}, "input_length": {x.prompt + 5800}, '
            f'"output_length": {x.answer}, "hash_ids": [{x.ids}]}}'
        ),
    ),
    "bailian": (
        "",
        lambda x: (
            f'{{"chat_id": {x.number}, "parent_chat_id": {x.number - 1 if x.number % 4 else -1}, '
            f'"timestamp": {x.at_s:.3f}, "input_length": {180 + x.prompt % 12}, "output_length": '
            f"{x.answer}, "
            f'"type": "text", "turn": {x.number % 4 + 1}, "hash_ids": [{x.ids}]}}'
        ),
    ),
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        lambda x: f"{x.date},{x.prompt},{x.answer}",
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        lambda x: (
            f"{x.at_s:.3f},ChatGPT,{x.prompt},{x.answer},{x.prompt + x.answer},Conversation log"
        ),
    ),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        lambda x: f"{x.at_s:.6f},{x.prompt},{x.answer}",
    ),
    "aiperf": ("", _aiperf),
    "tracelab": ("", _tracelab),
    "weka": ("", _weka),
    "sharegpt": ("", _sharegpt),
    "csv": (
        "created,prompt_tokens,completion_tokens",
        lambda x: f"{x.at_s:.3f},{x.prompt},{x.answer}",
    ),
    "jsonl": (
        "",
        lambda x: (
            f'{{"id": "chatcmpl-{x.bits:032x}", "created": {1_700_000_000 + x.at_s:.3f}, "model": '
            f'"m", "usage": {{"prompt_tokens": {x.prompt}, "completion_tokens": {x.answer}, '
            f'"total_tokens": {x.prompt + x.answer}}}}}'
        ),
    ),
    "openai": ("", _openai),
}
"""Format -> first line of its file, and each other one."""


def measured(path: Path) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak MB of `llmsim trace inspect` on a file."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "llmsim", "trace", "inspect", str(path)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(
            f"llmsim trace inspect {path.name} failed with exit code {child.returncode}"
        )
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def main() -> None:
    """The command."""
    parser = OneSentenceParser(prog="python -m bench.readers", description=__doc__)
    parser.add_argument(
        "formats", nargs="*", metavar="FORMAT", help=f"{', '.join(FORMATS)}; all by default"
    )
    parser.add_argument("--lines", type=int, default=1_000_000, help="of each trace")
    options = parser.parse_args()
    if unknown := [name for name in options.formats if name not in FORMATS]:
        parser.error(f'FORMAT is "{unknown[0]}"; it may be {", ".join(FORMATS)}')
    print(f"{'format':<14} {'MB':>6} {'wall s':>7} {'CPU s':>7} {'peak MB':>8}")
    for name in options.formats or FORMATS:
        first, written = FORMATS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            with path.open("w", encoding="utf-8") as stream:
                stream.write(first + "\n" * bool(first))
                stream.writelines(written(line) + "\n" for line in lines_of(options.lines))
            wall, cpu, peak = measured(path)
            print(
                f"{name:<14} {path.stat().st_size / 1e6:6.0f} {wall:7.1f} {cpu:7.1f} {peak:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
