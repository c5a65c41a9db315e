"""TensorRT-LLM's published scheduler in plain Python: its two stages for one kind of KV cache, with
requests as counters. Nothing ends in eviction of cached blocks here: with a prefix cache the pool
has to be large.
"""

import random
from dataclasses import dataclass, field

from scheduling.tiny import Options, Step


@dataclass(eq=False)
class Sequence:
    """A request: in its context until `computed` has reached `context`, then in generation."""

    row: int
    arrival_ms: float
    prompt: int
    answer: int
    keys: list[int]
    emitted: int = 0
    computed: int = 0
    context: int = 0
    blocks: int = 0
    started: bool = False
    chunk: int = 0
    reusable: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt + self.emitted

    @property
    def generates(self) -> bool:
        return self.started and self.computed >= self.context

    @property
    def remaining(self) -> int:
        return self.tokens - self.computed if self.started else self.tokens

    def compute(self, chunk: int) -> int:
        """Tokens that the model runs for a chunk, which reused blocks push to the right."""
        if self.reusable + chunk < self.remaining:
            return chunk
        return self.remaining - self.reusable


@dataclass
class Twin:
    """A run: `steps` are its batches, and `paused` the steps and rows of pauses."""

    pool: int
    size: int
    budget: int
    max_seqs: int
    utilization: bool
    equal: bool
    chunked: bool
    reuse: bool
    steps: list[Step] = field(default_factory=list)
    paused: list[tuple[int, int]] = field(default_factory=list)
    cached: set[object] = field(default_factory=set)
    under_way: set[object] = field(default_factory=set)

    def run(self, requests: list[Sequence]) -> None:
        waiting, active, now = list(requests), list[Sequence](), 0.0
        while waiting or active:
            if not active:
                now = max(now, waiting[0].arrival_ms)
            while waiting and len(active) < self.max_seqs and waiting[0].arrival_ms <= now:
                active.append(waiting.pop(0))
            if self.step(active):
                now += 1
            active = [one for one in active if one.emitted < one.answer]

    def step(self, active: list[Sequence]) -> bool:
        self.under_way = set()
        for one in active:
            one.reusable = 0 if one.started else self.hits(one) * self.size
            if one.started and not one.generates:
                self.under_way.add(self.first_new(one))
        contexts, generations = self.schedule(active)
        items: Step = []
        for one in contexts:
            if not one.started:
                one.started, one.computed, one.context = True, one.reusable, one.tokens
                one.blocks = self.blocks(one.tokens)
            items.append((one.row, min(one.chunk, one.context - one.computed), one.computed))
        for one in generations:
            one.blocks = self.blocks(one.tokens)
            items.append((one.row, 1, one.computed))
        for one, (_, tokens, _) in zip([*contexts, *generations], items, strict=True):
            self.receive(one, tokens)
        if items:
            self.steps.append(items)
        return bool(items)

    def schedule(self, active: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Which prompts run, with their chunks, and which answers; who is paused is noted."""
        fitting = self.one_step(active) if self.utilization else self.to_the_end(active)
        return self.micro_batch(fitting)

    def receive(self, one: Sequence, tokens: int) -> None:
        one.computed += tokens
        if one.computed < one.context:
            return
        one.emitted += 1
        self.cached.update(self.key(one, i) for i in range(one.context // self.size))

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def key(self, one: Sequence, block: int) -> object:
        return one.keys[block] if block < len(one.keys) else (one.row, block)

    def hits(self, one: Sequence) -> int:
        most = (one.tokens - 1) // self.size if self.reuse else 0
        return next((i for i in range(most) if self.key(one, i) not in self.cached), most)

    def first_new(self, one: Sequence) -> object:
        block = self.hits(one)
        return self.key(one, block) if (block + 1) * self.size < one.tokens else None

    def skipped(self, one: Sequence) -> bool:
        """Another request is about to compute the first block that this one lacks."""
        new = None if one.started or not self.reuse else self.first_new(one)
        if new in self.under_way and new is not None:
            return True
        self.under_way.add(new)
        return False

    def free(self, active: list[Sequence]) -> int:
        return self.pool - sum(one.blocks for one in active)

    def to_come(self, one: Sequence) -> int:
        return self.blocks(one.prompt + one.answer) - one.blocks

    def to_the_end(self, active: list[Sequence]) -> list[Sequence]:
        fitting = [one for one in active if one.generates]
        free = self.free(active)
        free -= sum(map(self.to_come, fitting))
        for one in (one for one in active if not one.generates):
            if self.skipped(one):
                continue
            if self.to_come(one) > free:
                break
            free -= self.to_come(one)
            fitting.append(one)
        return fitting

    def one_step(self, active: list[Sequence]) -> list[Sequence]:
        fitting, taken, at, end = list[Sequence](), 0, 0, len(active)
        while at < end:
            one = active[at]
            if self.skipped(one):
                at += 1
                continue
            need = self.blocks(one.tokens) - one.blocks
            if taken + need <= self.free(active):
                taken, at = taken + need, at + 1
                fitting.append(one)
                continue
            started = [i for i in range(at, end) if active[i].started]
            if not started:
                break
            end = started[-1]
            self.pause(active[end])
        return fitting

    def pause(self, last: Sequence) -> None:
        """It gives its blocks back, and computes everything again."""
        last.started, last.blocks, last.computed = False, 0, 0
        self.paused.append((len(self.steps), last.row))

    def micro_batch(self, fitting: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        contexts, generations, used = list[Sequence](), list[Sequence](), 0
        for one in fitting:
            one.chunk = one.remaining
            tokens = 1 if one.generates else 0 if self.chunked else one.compute(one.chunk)
            if used + tokens > self.budget:
                break
            used += tokens
            (generations if one.generates else contexts).append(one)
        left = self.budget - used
        if self.chunked and sum(one.compute(one.chunk) for one in contexts) > left:
            (self.equal_progress if self.equal else self.in_order)(contexts, left)
            cut = [one for one in contexts if 0 < one.chunk < one.remaining]
            contexts = cut + [one for one in contexts if one.chunk == one.remaining]
        return contexts, generations

    def in_order(self, contexts: list[Sequence], left: int) -> None:
        for one in contexts:
            if one.compute(one.remaining) > left:
                one.chunk = left - left % self.size
            left -= one.compute(one.chunk) if one.chunk else 0

    def equal_progress(self, contexts: list[Sequence], left: int) -> None:
        chunks = dict.fromkeys(contexts, 0)
        while True:
            before = dict(chunks)
            for one in contexts:
                longer = min(chunks[one] + self.size, one.remaining)
                if longer > self.budget:  # of the chunk itself, whatever of it is reused
                    continue
                spent = sum(each.compute(n) for each, n in chunks.items() if n and each is not one)
                if spent + one.compute(longer) <= left:
                    chunks[one] = longer
            if chunks == before:
                break
        for one, chunk in chunks.items():
            one.chunk = chunk


def drawn(seed: int, kind: type[Twin] = Twin) -> tuple[list[Sequence], Twin]:
    """Random requests and a scheduler for them."""
    draw = random.Random(seed)
    size, reuse = draw.choice([1, 4, 16]), draw.random() < 0.4
    budget, longest = draw.choice([16, 24, 61, 400]), 200
    twin = kind(
        pool=10_000 if reuse else -(-(longest + 40) // size) + draw.randint(0, 40),
        size=size,
        budget=budget,
        max_seqs=draw.randint(1, 12),
        utilization=draw.random() < 0.5,
        equal=draw.random() < 0.5,
        chunked=budget < 400 or draw.random() < 0.5,
        reuse=reuse,
    )
    arrivals = sorted(draw.choice([0, draw.randint(0, 60)]) for _ in range(draw.randint(1, 25)))
    requests = []
    for row, arrival in enumerate(arrivals):
        prompt, first = draw.randint(1, longest), 1 + 100 * draw.randint(0, 2)
        keys = list(range(first, first + min(prompt // size, draw.randint(0, 9))))
        answer = draw.randint(1, 40)
        requests.append(Sequence(row, arrival + row / 1000, prompt, answer, keys))
    return requests, twin


def same(twin: Twin, requests: list[Sequence]) -> Options:
    """The options of our scheduler for the twin's run."""
    return Options(
        "tensorrt_llm",
        blocks=twin.pool + 1,
        block_size=twin.size,
        max_seqs=twin.max_seqs,
        budget=twin.budget,
        caching=twin.reuse,
        keys=[one.keys for one in requests],
        extra={
            "chunked_prefill": twin.chunked,
            "tensorrt_llm_capacity_policy": int(twin.utilization),
            "tensorrt_llm_chunking_policy": int(twin.equal),
        },
    )
