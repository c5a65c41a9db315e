"""The messages of every collective from its definition, and when they arrive where messages never
wait for links.

Written from the descriptions in astra-sim/README.md, not from the C++: ranks, sizes as fractions of
the vector, and what has to have arrived before a message leaves.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Message:
    """From rank to rank (n: the switch); `part` of the vector; leaves after the
    arrival of `after`.
    """

    source: int
    target: int
    part: Fraction
    after: list[int]


@dataclass
class Line:
    """Ranks that communicate in one phase, each on `part` of the vector (its own, where parts are
    gathered).
    """

    ranks: list[int]
    part: Fraction
    root: int = 0
    window: int = 0
    arrived: dict[int, list[int]] = field(default_factory=dict)  # by rank: of the phases before
    out: list[Message] = field(default_factory=list)

    def send(self, source: int, target: int, part: Fraction, after: Sequence[int] = ()) -> int:
        """Positions on the line; what a rank sends waits for all that it received before this
        phase.
        """
        rank = self.ranks[source]
        waits = sorted({*after, *self.arrived.get(rank, [])})
        self.out.append(Message(rank, self.ranks[target], part, waits))
        return len(self.out) - 1


def ring(line: Line, kind: str) -> None:
    """Message k of a rank leaves when k have come in."""
    n = len(line.ranks)
    steps = n * (n - 1) // 2 if kind == "all_to_all" else n - 1
    part = line.part if kind == "all_gather" else line.part / n
    before: list[list[int]] = [[] for _ in range(n)]
    for _ in range(steps):
        sent = [line.send(at, (at + 1) % n, part, before[at]) for at in range(n)]
        before = [[sent[at - 1]] for at in range(n)]


def direct(line: Line, kind: str) -> None:
    """To everybody; with a window w the k-th waits for the (k - w)-th that comes in."""
    n = len(line.ranks)
    part = line.part if kind == "all_gather" else line.part / n
    sent: dict[tuple[int, int], int] = {}
    for k in range(1, n):
        for at in range(n):
            credit = k - line.window if line.window else 0
            after = [sent[credit, (at - credit) % n]] if credit > 0 else []
            sent[k, at] = line.send(at, (at + k) % n, part, after)


def halving(line: Line, kind: str) -> None:
    """The first ranks go in pairs, of which the even one acts for both, so that a power of two is
    left.
    """
    n = len(line.ranks)
    heads = 1 << (n.bit_length() - 1)
    pairs = n - heads
    place = [2 * h if h < pairs else h + pairs for h in range(heads)]
    chunks = [2 if h < pairs else 1 for h in range(heads)]
    scatters, gathers = kind != "all_gather", kind != "reduce_scatter"
    chunk = line.part / n if scatters else line.part
    got: list[list[int]] = [[] for _ in range(n)]
    first = [line.send(2 * p + 1, 2 * p, chunk * n if scatters else chunk) for p in range(pairs)]
    for p, message in enumerate(first):
        got[2 * p].append(message)
    halvings = [heads >> k for k in range(1, heads.bit_length())] if scatters else []
    doublings = [1 << k for k in range(heads.bit_length() - 1)] if gathers else []
    for distance, theirs in [(d, True) for d in halvings] + [(d, False) for d in doublings]:
        sent = []
        for h in range(heads):
            of = h ^ distance if theirs else h  # halving: what belongs to the other half
            begin = of // distance * distance
            part = chunk * sum(chunks[begin : begin + distance])
            sent.append(
                (h ^ distance, line.send(place[h], place[h ^ distance], part, got[place[h]]))
            )
        for h, message in sent:
            got[place[h]].append(message)
    for p in range(pairs):
        line.send(2 * p, 2 * p + 1, chunk * n if gathers else chunk, got[2 * p])


def rooted(line: Line, kind: str, algorithm: str) -> None:
    """A chain (ring), a star (direct) or a binomial tree, outward or inward; by places behind the
    root.
    """
    n = len(line.ranks)
    parent = {
        "ring": lambda v: v - 1,
        "direct": lambda _: 0,
        "halving_doubling": lambda v: v & (v - 1),
    }[algorithm]
    below = {v: [v] for v in range(n)}  # who gets his part by way of v
    for v in range(n - 1, 0, -1):
        below[parent(v)] += below[v]
    outward, grows = kind in ("broadcast", "scatter"), kind in ("gather", "scatter")
    unit = line.part / n if kind == "scatter" else line.part
    heard: dict[int, list[int]] = defaultdict(list)
    order = range(1, n) if outward else range(n - 1, 0, -1)
    for v in order:
        ends = (parent(v), v) if outward else (v, parent(v))
        source, target = ((line.root + end) % n for end in ends)
        part = unit * len(below[v]) if grows else unit
        heard[ends[1]].append(line.send(source, target, part, heard[ends[0]]))


def balanced(n: int) -> dict[int, int]:
    """Parents of a balanced search tree over 1 .. n - 1 below 0."""
    up: dict[int, int] = {}

    def grow(centre: int, above: int, reach: int) -> None:
        up[centre] = above
        if reach > 0:
            grow(centre - reach, centre, reach // 2)
        while reach > 0 and centre + reach >= n:
            reach //= 2
        if reach > 0:
            grow(centre + reach, centre, reach // 2)

    if n > 1:
        top = 1 << ((n - 1).bit_length() - 1)
        grow(top, 0, top // 2)
    return up


def two_trees(line: Line, kind: str) -> None:
    """Half of the vector over each tree; the second one is the first one mirrored, or turned by
    one.
    """
    n = len(line.ranks)
    inner = n if kind == "all_reduce" else n - 1
    for second in (False, True):
        place = list(range(inner))
        if second:
            place = [inner - 1 - at if inner % 2 == 0 else (at + 1) % inner for at in range(inner)]
        up = {place[v]: place[p] for v, p in balanced(inner).items()}
        if kind != "all_reduce":
            up = {(line.root + 1 + v) % n: (line.root + 1 + p) % n for v, p in up.items()}
            if inner > 0:
                up[(line.root + 1 + place[0]) % n] = line.root
        depth = {}
        for v in up:
            depth[v], above = 0, v
            while above in up:
                depth[v], above = depth[v] + 1, up[above]
        heard: dict[int, list[int]] = defaultdict(list)
        for v in sorted(up, key=lambda v: -depth[v]) if kind != "broadcast" else ():
            heard[up[v]].append(line.send(v, up[v], line.part / 2, heard[v]))
        for v in sorted(up, key=lambda v: depth[v]) if kind != "reduce" else ():
            heard[v] = [line.send(up[v], v, line.part / 2, heard[up[v]])]


def barrier(line: Line) -> None:
    """In round k, to the rank 2^k further."""
    n, distance = len(line.ranks), 1
    got: list[list[int]] = [[] for _ in range(n)]
    while distance < n:
        sent = [line.send(at, (at + distance) % n, line.part, got[at]) for at in range(n)]
        for at in range(n):
            got[(at + distance) % n].append(sent[at])
        distance *= 2


def in_switch(line: Line, kind: str, switch: int) -> None:
    """Up to the switch, and down again when all are there."""
    n = len(line.ranks)
    line.ranks = [*line.ranks, switch]
    senders = {"broadcast": [line.root], "reduce": [at for at in range(n) if at != line.root]}.get(
        kind, range(n)
    )
    hearers = {"reduce": [line.root], "broadcast": [at for at in range(n) if at != line.root]}.get(
        kind, range(n)
    )
    heard = [line.send(at, n, line.part) for at in senders]
    factor = {"reduce_scatter": Fraction(1, n), "all_gather": Fraction(n)}.get(kind, Fraction(1))
    for at in hearers:
        line.send(n, at, line.part * factor, heard)


def lay(line: Line, kind: str, algorithm: str, switch: int) -> None:
    """One line of one phase."""
    if len(line.ranks) == 1:
        return
    if algorithm == "in_switch":
        in_switch(line, kind, switch)
    elif kind == "barrier":
        barrier(line)
    elif algorithm == "double_binary_tree":
        two_trees(line, kind)
    elif kind in ("broadcast", "reduce", "gather", "scatter"):
        rooted(line, kind, algorithm)
    else:
        {"ring": ring, "direct": direct, "halving_doubling": halving}[algorithm](line, kind)


def phases(kind: str, dims: Sequence[int], in_two: bool) -> list[tuple[int, str, Fraction]]:
    """Dimension, kind and part of the vector; `in_two`: an all-reduce in the last dimension there
    and back.
    """
    whole, last = Fraction(1), len(dims) - 1
    if kind == "all_reduce":
        there: list[tuple[int, str, Fraction]] = []
        back: list[tuple[int, str, Fraction]] = []
        for dim in range(last):
            there.append((dim, "reduce_scatter", whole))
            whole /= dims[dim]
            back.insert(0, (dim, "all_gather", whole))
        turn = [(last, "reduce_scatter", whole), (last, "all_gather", whole / dims[last])]
        return there + (turn if in_two else [(last, "all_reduce", whole)]) + back
    out = []
    part = whole / math.prod(dims) if kind in ("all_gather", "gather") else whole
    for dim in (
        range(last, -1, -1) if kind in ("all_gather", "broadcast", "scatter") else range(last + 1)
    ):
        out.append((dim, kind, part))
        if kind in ("reduce_scatter", "scatter"):
            part /= dims[dim]
        if kind in ("all_gather", "gather"):
            part *= dims[dim]
    return out


def messages(
    kind: str,
    dims: Sequence[int],
    algorithms: Sequence[str],
    root: int = 0,
    windows: Sequence[int] = (),
    switch: int = -1,
) -> list[Message]:
    """A plan of one or more dimensions; dimension 0 is the fastest in the number of a rank."""
    strides = [math.prod(dims[:dim]) for dim in range(len(dims))]
    out: list[Message] = []
    arrived: dict[int, list[int]] = defaultdict(list)
    for dim, what, part in phases(kind, dims, algorithms[-1] in ("ring", "direct")):
        first = len(out)
        for head in range(math.prod(dims)):
            if head // strides[dim] % dims[dim]:
                continue
            if (
                kind in ("broadcast", "reduce", "gather", "scatter")
                and (head - root) % strides[dim]
            ):
                continue
            members = [head + at * strides[dim] for at in range(dims[dim])]
            window = windows[dim] if windows else 0
            line = Line(members, part, root // strides[dim] % dims[dim], window, arrived, out)
            lay(line, what, algorithms[dim], switch)
        for number, message in enumerate(out[first:], start=first):
            arrived[message.target].append(number)
    return out


def ends_ps(
    plan: list[Message],
    num_bytes: int,
    starts_ps: Sequence[int],
    way: Callable[[int, int, int], tuple[int, int]],
) -> list[int]:
    """End of every rank; `way(source, target, bytes)` gives how long the bytes leave, and the
    latency after that.
    """
    arrivals: list[int] = []
    departed: dict[tuple[int, int], int] = {}  # messages of one pair leave in order
    ends = list(starts_ps)
    for message in plan:
        start = starts_ps[message.source] if message.source < len(starts_ps) else 0
        at = max(
            [
                start,
                departed.get((message.source, message.target), 0),
                *(arrivals[i] for i in message.after),
            ]
        )
        departed[message.source, message.target] = at
        size = -(-num_bytes * message.part.numerator // message.part.denominator)
        leaving_ps, latency_ps = way(message.source, message.target, size)
        arrivals.append(at + leaving_ps + latency_ps)
        if message.source < len(ends):
            ends[message.source] = max(ends[message.source], at + leaving_ps)
        if message.target < len(ends):
            ends[message.target] = max(ends[message.target], arrivals[-1])
    return ends
