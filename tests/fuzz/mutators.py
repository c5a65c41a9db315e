"""Damages sound inputs in the ways that real files are damaged, and in the ways that parsers
forget.

Every function takes a `random.Random` and returns a new value: the same seed gives the same bytes.
"""

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    4096,
    65537,
    2**31 - 1,
    2**31,
    2**32,
    2**50,
    2**60,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
)
REALS = (0.5, -0.0, 1e-320, 1e-300, 1e18, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "0",
    "ring",
    "direct3",
    "direct0",
    "oneRing",
    "doubleBinaryTree",
    "Switch",
    "\x00",
    "\ud7ff",
    "a" * 5000,
)
CONTROLS = ("\x1b]0;title\x07", "\x1b[2J", "\r", "\x85", "\u2028", "\u202e", "\ud800")
"""Texts that move a terminal's cursor, end a line, or cannot be encoded."""
NUMBER_TOKENS = (
    "inf",
    "-inf",
    "nan",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e308",
    "-1e308",
    "1e400",
    "1e-300",
    "1e-320",
    "-1",
    "-0",
    "-0.0",
    "0",
    "1",
    "0.5",
    "1.5",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1" + "0" * 400,
    "9" * 5000,
    "1_000",
    "0x10",
    "007",
    "\u00b2",
    "\u0663",
    "\uff11",
    "1,5",
    "1e",
    "--1",
    "",
    " ",
    "[]",
    "[[]]",
    "{}",
    "null",
    "true",
    "None",
    '""',
    '"a"',
    "[1, [2]]",
    "[" * 200 + "]" * 200,
    "[" * 100_000,
)
"""What may stand where a number stood: extremes, other notations, other types, and nestings."""
TEXT_TOKENS = (
    "",
    "a",
    "inf",
    "-1",
    "\u00b2",
    "\\ud800",
    "\\u0000",
    "\\u001b]0;x\\u0007",
    "\x1b[2J",
    "\u00e9" * 40,
    "x" * 70_000,
    "..",
    "/",
    "null",
    "1e999",
    "true",
)
"""What may stand between two quotes."""
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TEXT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_PIECE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\w.+-]+|\s+|[^\w\s]')


def extreme(rng: random.Random) -> Any:
    """A value that some field will not expect, or that it will take literally."""
    if rng.random() < 0.4:
        return rng.choice(INTEGERS)
    odd = [None, True, [], {}, [[]], [0], ["ring"] * 3, {"a": {}}]
    return rng.choice([*INTEGERS, *REALS, *TEXTS, *CONTROLS, *odd])


def damaged_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Changed, cut, doubled or inserted bytes."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 6)):
        if not data:
            break
        at, what = rng.randrange(len(data)), rng.randrange(5)
        if what == 0:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif what == 1:
            del data[at : at + rng.randint(1, 9)]
        elif what == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
        elif what == 3:
            data += data[at : at + 40]
        else:
            del data[at:]
    return bytes(data)


def damaged_value(rng: random.Random, value: Any) -> Any:
    """One place of a JSON value replaced, dropped or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: damaged_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        if rng.random() < 0.3:
            return [*value, *value[at:]] if rng.random() < 0.5 else value[:at]
        return [*value[:at], damaged_value(rng, value[at]), *value[at + 1 :]]
    return extreme(rng)


def _replaced(
    rng: random.Random, data: bytes, pattern: re.Pattern[bytes], group: int, words: tuple[str, ...]
) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return damaged_bytes(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        match = rng.choice(found)
        word = rng.choice(words).encode("utf-8", "surrogatepass")
        data = data[: match.start(group)] + word + data[match.end(group) :]
        found = list(pattern.finditer(data))
        if not found:
            break
    return data


def swapped_numbers(rng: random.Random, data: bytes) -> bytes:
    """Some numbers of a text replaced by what parsers of numbers forget."""
    return _replaced(rng, data, _NUMBER, 0, NUMBER_TOKENS)


def swapped_texts(rng: random.Random, data: bytes) -> bytes:
    """Some quoted texts, keys among them, replaced by odd ones."""
    return _replaced(rng, data, _TEXT, 1, TEXT_TOKENS)


def moved_pieces(rng: random.Random, data: bytes) -> bytes:
    """Words, numbers and signs of a text dropped, doubled or exchanged."""
    pieces = _PIECE.findall(data)
    for _ in range(rng.randint(1, 4)):
        if len(pieces) < 2:
            break
        at, other = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        what = rng.randrange(3)
        if what == 0:
            del pieces[at]
        elif what == 1:
            pieces.insert(at, pieces[other])
        else:
            pieces[at], pieces[other] = pieces[other], pieces[at]
    return b"".join(pieces)


def changed_lines(rng: random.Random, data: bytes) -> bytes:
    """Lines dropped, doubled, exchanged, emptied or joined."""
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, lines[other])
    elif what == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3:
        lines[at] = rng.choice((b"", b" ", b"\x00", b"{}", b"[]", b"null", b"1", b'"a"', b","))
    else:
        return data.replace(b"\n", b"", 1)
    return b"\n".join(lines)


def dressed(rng: random.Random, data: bytes) -> bytes:
    """The same text in another encoding, with other ends of lines, packed, or packed
    and damaged.
    """
    what = rng.randrange(8)
    if what == 0:
        return b"\xef\xbb\xbf" + data
    if what == 1:
        return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\n \n")))
    if what == 2:
        return data.decode("utf-8", "replace").encode(
            rng.choice(("utf-16", "utf-32", "utf-16-be")), "surrogatepass"
        )
    if what == 3:
        at = rng.randrange(len(data) + 1)
        return (
            data[:at]
            + rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x00", b"\xf5\x80\x80\x80"))
            + data[at:]
        )
    if what == 4:
        return gzip.compress(data, 1, mtime=0)
    if what == 5:
        packed = gzip.compress(data, 1, mtime=0)
        return packed[: rng.randrange(len(packed))]
    if what == 6:
        return damaged_bytes(rng, gzip.compress(data, 1, mtime=0))
    return data + data


def damaged_json(rng: random.Random, data: bytes) -> bytes:
    """JSON, or JSON Lines, with damaged values; anything else with damaged bytes."""
    try:
        values = [json.loads(data)]
    except (ValueError, RecursionError):
        try:
            values = [json.loads(line) for line in data.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return damaged_bytes(rng, data)
    if not values:
        return damaged_bytes(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(values))
        values[at] = damaged_value(rng, values[at])
    return "\n".join(json.dumps(value) for value in values).encode()  # a lone surrogate is escaped


Mutator = Callable[[random.Random, bytes], bytes]
TEXT_MUTATORS: tuple[tuple[Mutator, int], ...] = (
    (swapped_numbers, 8),
    (damaged_json, 6),
    (swapped_texts, 3),
    (moved_pieces, 3),
    (damaged_bytes, 3),
    (changed_lines, 2),
    (dressed, 2),
)
"""Mutator and weight."""


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A sound text after one to three mutations."""
    mutators, weights = zip(*TEXT_MUTATORS, strict=True)
    for mutator in rng.choices(mutators, weights, k=rng.choice((1, 1, 1, 2, 3))):
        data = mutator(rng, data)
        if len(data) > 1 << 20:
            break
    return data
