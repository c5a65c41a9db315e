"""Algorithm 2 of Frontier's paper in plain Python, on a scheduler of its own: vLLM's two loops
without memory pressure, one batch at a time, every step a millisecond.

It shares no code with the simulator; comments name the lines of the algorithm.
"""

from dataclasses import dataclass, field
from typing import Any

MS = 10**9


@dataclass
class Slice:
    """A round of a session while its engine has it."""

    row: int
    session: int
    prompt: int
    answer: int
    arrival: int
    new: int = 0
    queue: str = "S"
    computed: int = 0
    emitted: int = 0

    @property
    def in_prefill(self) -> bool:
        return self.computed < self.prompt


@dataclass
class State:
    """z, H, T_last and c of a session."""

    z: int = 0
    served: int = 0
    last: int = 0
    c: int = 0


@dataclass
class Engine:
    """Runs sessions: lists of rounds (prompt, answer), all with the same tool time."""

    limits: tuple[int, int, int]
    budget: int
    most: int
    states: dict[int, State] = field(default_factory=dict)
    waiting: list[Slice] = field(default_factory=list)
    running: list[Slice] = field(default_factory=list)
    eta: int = 0

    def arrive(self, one: Slice) -> None:
        long_prompt, cap, _ = self.limits
        state = self.states.setdefault(one.session, State())  # line 4
        one.new = max(one.prompt - state.last, 0)  # line 5
        one.queue = "L" if state.z or state.served > cap or one.new > long_prompt else "S"  # 6-10
        self.waiting.append(one)  # line 11

    def before_pass(self) -> Slice | None:
        every = self.running + self.waiting
        age = lambda one: (one.arrival, one.row)  # noqa: E731
        pending = [one for one in every if self.states[one.session].c]
        released = min(pending, key=age, default=None)  # lines 17, 19
        short = [one.arrival for one in self.waiting if one.queue == "S"]
        if released is not None and short and released.arrival > min(short):
            released = None
        long = [one for one in every if one.queue == "L"]
        alive = min(long, key=age, default=None) if self.eta >= self.limits[2] else None  # 21-25

        def rank(one: Slice) -> Any:  # lines 26-27
            decode_first = (one.in_prefill, one.arrival, one.row)
            if one is released:
                return (-2, *decode_first)
            if one is alive:
                return (-1, *decode_first)
            if one.queue == "S":
                return (0, one.new, not one.in_prefill, one.arrival, one.row)
            return (1, *decode_first)

        self.running.sort(key=rank)
        self.waiting.sort(key=rank)
        return released

    def batch(self) -> list[tuple[Slice, int, int]]:
        """Running slices in their order, then waiting ones, within the budget and the slots."""
        left, chosen = self.budget, []
        for one in self.running:
            tokens = min(one.prompt + one.emitted - one.computed, left)
            if left > 0:
                chosen.append((one, tokens, one.computed))
                left -= tokens
        while self.waiting and left > 0 and len(self.running) < self.most:
            one = self.waiting.pop(0)
            tokens = min(one.prompt, left)
            chosen.append((one, tokens, 0))
            self.running.append(one)
            left -= tokens
        return chosen

    def complete(self, chosen: list[tuple[Slice, int, int]], released: Slice | None) -> None:
        for one, tokens, _ in chosen:
            state = self.states[one.session]
            was_prefill = one.in_prefill
            one.computed += tokens
            state.served += tokens  # line 33
            if not one.in_prefill:
                one.emitted += 1
            if one.emitted == one.answer:
                state.last = one.prompt  # line 35
            if was_prefill and one.in_prefill:
                state.z = state.c = 1  # line 38
                one.queue = "L"
            if one is released:
                state.c = 0  # line 41
        if any(one.queue == "L" for one, _, _ in chosen):  # lines 44-48
            self.eta = 0
        else:
            self.eta += len(chosen)


def schedule(
    rounds: list[tuple[int, int, int, int]],
    next_call: list[int],
    limits: tuple[int, int, int],
    budget: int,
    most: int,
) -> list[list[tuple[int, int, int]]]:
    """The batches of rows (arrival in ps or -1, prompt, answer, session), without tool times."""
    engine = Engine(limits, budget, most)
    arrivals = sorted((at, row) for row, (at, *_) in enumerate(rounds) if at >= 0)
    now, steps = 0, []
    while arrivals or engine.waiting or engine.running:
        if not engine.waiting and not engine.running:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            at, row = arrivals.pop(0)
            _, prompt, answer, session = rounds[row]
            engine.arrive(Slice(row, session, prompt, answer, at))
        released = engine.before_pass()
        chosen = engine.batch()
        steps.append([(one.row, tokens, before) for one, tokens, before in chosen])
        now += MS
        engine.complete(chosen, released)
        for one in [one for one in engine.running if one.emitted == one.answer]:
            engine.running.remove(one)
            if next_call[one.row] >= 0:
                arrivals.append((now, next_call[one.row]))
        arrivals.sort()
    return steps
