"""Generates workloads from a seed: arrivals, lengths, shared prefixes and sessions, as columns, in
milliseconds.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.random import PCG64, Generator, SeedSequence

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_MS, PS_PER_NS, Int64, UInt64, Workload
from llmsim.workload.columns import next_calls
from llmsim.workload.limits import MAX_REQUESTS, MAX_TIME_NS, MAX_TOKENS
from llmsim.workload.models import ModelNames
from llmsim.workload.synthetic.classes import ByClass, ClassMix, drawn
from llmsim.workload.synthetic.distributions import Arrivals, Lengths


class SharedPrefixes(Struct, frozen=True):
    """A request begins, with probability `share`, with one of `count` equally likely prefixes of
    `tokens` tokens; the prefix comes on top of the drawn input length.
    """

    count: int
    tokens: int
    share: float = 1.0


class Sessions(Struct, frozen=True):
    """Every line is a conversation of `calls` calls, whose prompts repeat all that was said before
    plus the drawn input length; `tool_ms` milliseconds pass between an answer and the next call.
    """

    calls: Lengths
    tool_ms: Lengths


class SyntheticSpec(Struct, frozen=True):
    """All that determines a synthetic workload (together with numpy's generators); n counts lines,
    so sessions.
    """

    n: int
    arrivals: Arrivals
    input_lengths: Lengths | ByClass
    output_lengths: Lengths | ByClass
    seed: int = 0
    prefixes: SharedPrefixes | None = None
    sessions: Sessions | None = None
    models: tuple[str, ...] = ()
    classes: ClassMix | None = None

    @property
    def text(self) -> str:
        """The specification in full: what `parse_synthetic` reads, with every default
        written out.
        """
        lengths = [f"input={self.input_lengths.text}", f"output={self.output_lengths.text}"]
        classes = [f"classes={self.classes.text}"] if self.classes else []
        parts = [f"n={self.n}", self.arrivals.text, *classes, *lengths]
        if self.prefixes:
            parts.append(
                f"prefixes={self.prefixes.count}:tokens={self.prefixes.tokens}:share={self.prefixes.share!r}"
            )
        if self.sessions:
            parts += [f"calls={self.sessions.calls.text}", f"tool_ms={self.sessions.tool_ms.text}"]
        if self.models:
            parts.append("model=" + "|".join(self.models))
        return "synthetic:" + ",".join([*parts, f"seed={self.seed}"])


def generate(
    spec: SyntheticSpec, *, known_models: Sequence[str] = (), granularity: int = 16, limit: int = 0
) -> Workload:
    """The workload of `spec`, in order of arrival, times in whole nanoseconds.

    Every quantity has a random stream of its own (PCG64 from the seed), so changing one leaves the
    others as they were. Only blocks that can be shared get content keys: a shared prefix's full
    blocks of `granularity` tokens (0: none), and all of a session's; the rest of a request is its
    own. `limit` keeps the first lines (0: all). Raises InputError where a time or a prompt leaves
    the range that a trace may use.
    """
    n = min(spec.n, limit) if limit > 0 else spec.n
    refuse_endless(spec.arrivals, n, spec.text)
    streams = [Generator(PCG64(child)) for child in SeedSequence(spec.seed).spawn(8)]
    calls = spec.sessions.calls.draw(streams[3], n) if spec.sessions else np.ones(n, dtype=np.int64)
    prefix = _prefix_of_line(spec, n, streams[4])
    class_of = np.zeros(n, np.int64)
    if spec.classes:
        class_of = spec.classes.of_lines(streams[7], n)
    rows_of(calls, spec.text)
    class_of = np.repeat(class_of, calls)
    input_tokens, output_tokens = _lengths(spec, calls, prefix, class_of, (streams[1], streams[2]))
    arrival_ps = np.full(len(input_tokens), -1, dtype=np.int64)
    arrival_ps[np.cumsum(calls) - calls] = (
        arrivals_ns(spec.arrivals, n, spec.text, streams[0]) * PS_PER_NS
    )
    following = next_calls(arrival_ps)
    tool_ps = np.zeros_like(arrival_ps)
    if spec.sessions:
        tool_ps = np.where(
            following >= 0, spec.sessions.tool_ms.draw(streams[5], len(tool_ps)) * PS_PER_MS, 0
        )
    offsets, keys = content_of(
        spec.prefixes, granularity, prefix, calls, input_tokens + output_tokens
    )
    names = ModelNames(known_models)
    return Workload(
        arrival_ps=arrival_ps,
        input_tokens=input_tokens.astype(np.int32),
        output_tokens=output_tokens.astype(np.int32),
        model=np.repeat(_model_of_line(spec, n, names, streams[6]), calls).astype(np.int16),
        models=tuple(names.names),
        next_call=following,
        tool_delay_ps=tool_ps,
        key_offsets=offsets,
        keys=keys,
        granularity=granularity,
        source=spec.text,
        session_id=[f"session-{line}" for line in np.repeat(np.arange(n), calls).tolist()]
        if spec.sessions
        else None,
        slo_class=[spec.classes.names[index] for index in class_of.tolist()]
        if spec.classes
        else None,
    )


def rows_of(calls: Int64, where: str) -> int:
    """Requests of sessions with so many `calls`; InputError, beginning with `where`, for more than
    fit a run.
    """
    rows = int(calls.sum())
    if rows > MAX_REQUESTS:
        raise InputError(
            f"{where}: its sessions have {rows} calls, but at most {MAX_REQUESTS} requests are "
            "possible"
        )
    return rows


def refuse_endless(arrivals: Arrivals, n: int, where: str) -> None:
    """InputError, before anything is drawn, where n arrivals take ten times as long as a run can
    last.
    """
    rate_per_s = getattr(arrivals, "rate_per_s", None)
    if rate_per_s and n / rate_per_s * 1e9 > 10 * MAX_TIME_NS:
        days = n / rate_per_s / 86400
        raise InputError(
            f"{where}: the last request would arrive beyond the 53 days that a run can last ({n} "
            "requests at "
            f"{rate_per_s:g} per second take {days:.4g} days); lower n or raise the rate"
        )


def arrivals_ns(arrivals: Arrivals, n: int, where: str, random: Generator) -> Int64:
    """n arrival times, ns; raises InputError, beginning with `where`, for a time that no run
    reaches.
    """
    with np.errstate(all="ignore"):  # what does not fit int64 is refused just below
        times_ns = arrivals.times_ns(random, n)
    if n and not 0 <= int(times_ns[-1]) <= MAX_TIME_NS:
        most = f"the {MAX_TIME_NS} ns (53 days) that a run can last"
        raise InputError(f"{where}: the last request would arrive beyond {most}")
    return times_ns


def _lengths(
    spec: SyntheticSpec,
    calls: Int64,
    prefix: Int64,
    class_of: Int64,
    random: tuple[Generator, Generator],
) -> tuple[Int64, Int64]:
    """Prompt and answer of every call; a session's prompt holds all of its earlier prompts and
    answers.
    """
    heads = np.cumsum(calls) - calls
    new_tokens = drawn(spec.input_lengths, class_of, random[0], spec.seed, 1)
    output_tokens = drawn(spec.output_lengths, class_of, random[1], spec.seed, 2)
    if spec.prefixes:
        new_tokens[heads] += np.where(prefix >= 0, spec.prefixes.tokens, 0)
    grown = np.cumsum(new_tokens + output_tokens)
    before_session = np.repeat(grown[heads] - new_tokens[heads] - output_tokens[heads], calls)
    input_tokens = grown - before_session - output_tokens
    longest = int(input_tokens.max(initial=0))
    if longest > MAX_TOKENS:
        raise InputError(
            f"{spec.text}: a prompt would have {longest} tokens, but at most {MAX_TOKENS} are "
            "possible"
        )
    return input_tokens, output_tokens


def _prefix_of_line(spec: SyntheticSpec, n: int, random: Generator) -> Int64:
    """Index of the prefix that each of the first `n` lines begins with, -1 for none."""
    if spec.prefixes is None:
        return np.full(n, -1, dtype=np.int64)
    which = random.integers(0, spec.prefixes.count, size=spec.n, dtype=np.int64)
    return np.where(random.random(spec.n) < spec.prefixes.share, which, -1)[:n]


def _model_of_line(spec: SyntheticSpec, n: int, names: ModelNames, random: Generator) -> Int64:
    """Index of the model of each of the first `n` lines, drawn evenly from those that the
    specification names.
    """
    if not spec.models:
        return np.full(n, names.unnamed(spec.text), dtype=np.int64)
    indices = np.array([names.index(name, spec.text) for name in spec.models], dtype=np.int64)
    return indices[random.integers(0, len(indices), size=spec.n)][:n]


def content_of(
    prefixes: SharedPrefixes | None,
    granularity: int,
    prefix: Int64,
    calls: Int64,
    stream_tokens: Int64,
) -> tuple[Int64, UInt64]:
    """Content keys (offsets, keys) of all rows: shared prefixes have the first ids, then every
    conversation of several calls has ids of its own. `prefix` and `calls` are per line,
    `stream_tokens` (prompt and answer) per row.
    """
    rows = len(stream_tokens)
    offsets = np.zeros(rows + 1, dtype=np.int64)
    if granularity == 0 or (prefixes is None and rows == len(calls)):
        return offsets, np.zeros(0, dtype=np.uint64)
    prefix_blocks = prefixes.tokens // granularity if prefixes else 0
    row_prefix = np.repeat(prefix, calls)
    shared = np.where(row_prefix >= 0, prefix_blocks, 0)
    talk = np.repeat(calls > 1, calls)
    blocks = np.where(talk, stream_tokens // granularity, shared)
    np.cumsum(blocks, out=offsets[1:])
    last_rows = np.cumsum(calls) - 1
    line_blocks = np.where(calls > 1, blocks[last_rows], 0)
    line_base = (
        np.cumsum(line_blocks)
        - line_blocks
        + 1
        + prefix_blocks * (prefixes.count if prefixes else 0)
    )
    block = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    own_base = np.repeat(np.repeat(line_base, calls), blocks)
    prefix_base = np.repeat(1 + row_prefix * prefix_blocks, blocks)
    keys = block + np.where(block < np.repeat(shared, blocks), prefix_base, own_base)
    return offsets, keys.astype(np.uint64)
