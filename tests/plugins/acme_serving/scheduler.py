"""A whole scheduler: one request after the other, its prompt in one step."""

from typing import Any


class OneByOne:
    """Runs the oldest request alone until its answer is complete."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.prompts: dict[int, int] = {}
        self.started: int | None = None

    def add(self, request: int, tokens: int) -> None:
        self.prompts[request] = tokens

    def build(self, now_ps: int) -> tuple[list[tuple[int, int]], list[int]]:
        if self.started is not None:
            return [(self.started, 1)], []
        if not self.prompts:
            return [], []
        self.started = next(iter(self.prompts))
        return [(self.started, self.prompts[self.started])], []

    def complete(self, received: list[tuple[int, int, bool]]) -> None:
        for request, _tokens, finished in received:
            if finished:
                self.abort(request)

    def abort(self, request: int) -> None:
        self.prompts.pop(request, None)
        if self.started == request:
            self.started = None
