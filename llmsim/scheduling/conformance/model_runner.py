"""What an engine's model runner holds of its requests, without the model."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Answered(Protocol):
    """A request whose answer is known."""

    @property
    def input_tokens(self) -> int:
        """Tokens of its prompt."""
        ...

    @property
    def output(self) -> Callable[[int], int]:
        """The k-th token of its answer."""
        ...


class ModelRunner:
    """Counts as a model runner does, and samples the answers that are known; requests by row."""

    def __init__(self, requests: Sequence[Answered], speculation: Any) -> None:
        """`speculation`: the native `SpeculationConfig`, which says which drafts hold."""
        self._requests, self._speculation = requests, speculation
        self._computed = [0] * len(requests)
        """Accepted tokens only."""
        self._sampled = [0] * len(requests)
        self._known = [one.input_tokens for one in requests]

    def starts(self, row: int, computed: int, known: int | None = None) -> None:
        """A request runs for the first time, or again; with `known`, it holds so many tokens."""
        self._computed[row] = computed
        if known is not None:
            self._known[row] = known

    def forgets(self, row: int, known: int) -> None:
        """A request holds so many tokens, and what was sampled behind them has been dropped."""
        self._known[row] = known
        self._sampled[row] = known - self._requests[row].input_tokens

    def sampled(self, row: int) -> int:
        """Tokens that were sampled for a request."""
        return self._sampled[row]

    def sample(self, row: int, scheduled: int, drafts: int, *, holds: bool) -> list[int]:
        """What the model answers to a request of a batch: nothing before the end of the prompt,
        else a token and the accepted drafts; none is accepted unless it `holds` drafts.
        """
        one = self._requests[row]
        accepted = (
            self._speculation.acceptance.accepted(row, self._sampled[row], drafts) if holds else 0
        )
        self._computed[row] += scheduled - (drafts - accepted)
        if self._computed[row] < self._known[row]:
            return []
        first = self._sampled[row]
        self._sampled[row] += 1 + accepted
        self._known[row] += 1 + accepted
        return [one.output(first + k) for k in range(1 + accepted)]
