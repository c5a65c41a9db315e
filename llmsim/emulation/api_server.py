"""The work of an API server on prompts and answers, where an endpoint gives it times."""

from dataclasses import dataclass, field

from llmsim import _native


@dataclass(frozen=True)
class Chunk:
    """What a step gave to a request."""

    row: int
    tokens: int


@dataclass
class Round:
    """What a process works on, which leaves at the end."""

    prompts: list[int] = field(default_factory=list)
    """Rows."""
    answers: list[Chunk] = field(default_factory=list)
    joined: set[int] = field(default_factory=set)
    """Rows of `answers`: their tokens are one chunk each."""
    work_ps: int = 0

    @property
    def is_empty(self) -> bool:
        """Nothing waits in it."""
        return not (self.prompts or self.answers)


class ApiServer:
    """A process, which works in rounds as the core's (`native/group/api/api_server.h`): it takes
    all that waits, and what comes meanwhile waits for the next round.
    """

    def __init__(self, config: "_native.ApiServerConfig") -> None:
        self._config = config
        self._waiting, self._round = Round(), Round()
        self.end_ps: int | None = None
        """When its round ends; None: it has nothing to do."""

    def tokenize(self, row: int, tokens: int, now_ps: int) -> None:
        """A request has come, whose prompt has so many tokens."""
        self._waiting.prompts.append(row)
        self._waiting.work_ps += self._config.request_ps + self._config.prompt_token_ps * tokens
        self._begin_if_idle(now_ps)

    def stream(self, chunks: list[Chunk], now_ps: int) -> None:
        """What a step has given to its requests."""
        fresh = {one.row for one in chunks} - self._waiting.joined
        self._waiting.joined |= fresh
        self._waiting.answers += chunks
        self._waiting.work_ps += self._config.chunk_ps * len(fresh)
        self._begin_if_idle(now_ps)

    def finish(self, now_ps: int) -> Round:
        """The round that ends now."""
        done, self.end_ps = self._round, None
        if not self._waiting.is_empty:
            self._begin_if_idle(now_ps)
        return done

    def _begin_if_idle(self, now_ps: int) -> None:
        if self.end_ps is None:
            self._round, self._waiting = self._waiting, Round()
            self.end_ps = now_ps + self._round.work_ps
