"""Reasoning: sessions of hidden planning rounds and one visible answer, of a few templates."""

import numpy as np
from msgspec import Struct

from llmsim.config.errors import InputError, nearest
from llmsim.core import Int64, Workload
from llmsim.workload.generators.parts import Parts
from llmsim.workload.limits import MAX_REQUESTS
from llmsim.workload.synthetic.workload import arrivals_ns, content_of, rows_of

KEYS = ("n", "rate", "arrivals", "template", "rounds", "new", "output", "tool_ms", "seed")
REQUIRED = ("n",)
EXAMPLE = (
    "synthetic:reasoning,n=200,rate=2,rounds=uniform:2-8,new=lognormal:1500,output=lognormal:90,"
    "tool_ms=200"
)

TEMPLATES: dict[str, tuple[tuple[int, int], ...]] = {
    "short": ((4096, 96), (1024, 64), (512, 64), (512, 64), (256, 192)),
    "heavy": ((32768, 96), (16384, 64), (8192, 64), (4096, 64), (256, 192)),
}
"""New prompt tokens and answer tokens of each round (Frontier, arXiv:2605.21312, table 7)."""
MOST_ROUNDS = 10_000


class _Rounds(Struct, frozen=True):
    """New prompt tokens and answer tokens of all rounds, session after session."""

    calls: Int64
    new_tokens: Int64
    output: Int64


def generate(parts: Parts) -> Workload:
    """n sessions of rounds, of which all but the last are hidden. A round's prompt is all that its
    session has said and new tokens; it comes `tool_ms` (0) after the answer before it.

    `template` (short:0.8|heavy:0.2) draws each session's rounds from table 7 of Frontier's paper;
    or `rounds`, `new` and `output` give rounds of your own: their number, and the lengths of their
    new prompt tokens and answers.
    """
    n = parts.integer("n", None, 1)
    own = parts.given("rounds", "new", "output")
    if own and parts.given("template"):
        raise InputError(f'{parts.text}: "template" and "{own[0]}" both give rounds; keep one')
    rounds = _own(parts, n) if own else _of_templates(parts, n)
    heads = np.cumsum(rounds.calls) - rounds.calls
    said = np.cumsum(rounds.new_tokens + rounds.output)
    said -= np.repeat(said[heads] - rounds.new_tokens[heads] - rounds.output[heads], rounds.calls)
    rows = len(said)
    arrival = np.full(rows, -1, dtype=np.int64)
    arrival[heads] = arrivals_ns(parts.arrivals(), n, parts.text, parts.stream(5))
    hidden = np.ones(rows, dtype=np.bool_)
    hidden[heads + rounds.calls - 1] = False
    line = np.repeat(np.arange(n), rounds.calls)
    no_prefix = np.full(n, -1, dtype=np.int64)
    return parts.workload(
        arrival,
        said - rounds.output,
        rounds.output,
        content_of(None, parts.granularity, no_prefix, rounds.calls, said),
        tool_ms=parts.lengths("tool_ms", "0", 0).draw(parts.stream(4), rows),
        session_id=[f"session-{number}" for number in line.tolist()],
        hidden=hidden,
    )


def _own(parts: Parts, n: int) -> _Rounds:
    calls = parts.lengths("rounds", "5").draw(parts.stream(0), n)
    if int(calls.max()) > MOST_ROUNDS:
        raise InputError(f'{parts.text}: "rounds" gives {int(calls.max())}, above {MOST_ROUNDS}')
    rows = rows_of(calls, parts.text)
    new_tokens = parts.lengths("new", "lognormal:1024").draw(parts.stream(1), rows)
    output = parts.lengths("output", "lognormal:96").draw(parts.stream(2), rows)
    return _Rounds(calls, new_tokens, output)


def _of_templates(parts: Parts, n: int) -> _Rounds:
    names, shares = _mix(parts)
    chosen = np.searchsorted(np.cumsum(shares), parts.stream(3).random(n) * sum(shares), "right")
    tables = [np.array(TEMPLATES[name], dtype=np.int64) for name in names]
    calls = np.array([len(table) for table in tables], dtype=np.int64)[chosen]
    if int(calls.sum()) > MAX_REQUESTS:
        rows_of(calls, parts.text)
    lengths = np.concatenate([tables[index] for index in chosen.tolist()])
    return _Rounds(calls, lengths[:, 0], lengths[:, 1])


def _mix(parts: Parts) -> tuple[list[str], list[float]]:
    """Templates and their shares, as `short:0.8|heavy:0.2`; a template alone has all of it."""
    text = parts.word("template", "short:0.8|heavy:0.2")
    names, shares = [], []
    for part in text.split("|"):
        name, _, share = part.partition(":")
        if name not in TEMPLATES:
            raise InputError(
                f'{parts.text}: "template" has no {name!r:.40}{nearest(name, TEMPLATES)}; known: '
                f"{', '.join(TEMPLATES)}, as in short:0.8|heavy:0.2"
            )
        try:
            value = float(share or "1")
        except ValueError:
            value = 0.0
        if not 1e-9 <= value <= 1e9:
            raise InputError(
                f'{parts.text}: "template" gives {name} the share {share!r:.40}, but a number '
                "above 0 is needed, as in short:0.8|heavy:0.2"
            )
        names.append(name)
        shares.append(value)
    if len(set(names)) < len(names):
        raise InputError(f'{parts.text}: "template" names a template twice; give each one share')
    return names, shares
