"""A request's exchange with the server that computes its prompt, beside the one that answers.

The answer of that server is discarded. KV that is pulled is there before the server that answers
gets the request; where KV is pushed, both servers get it at once.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from llmsim.emulation.servers.doors import Stage
from llmsim.emulation.servers.exchanges import At, ClientExchange, Exchange
from llmsim.emulation.servers.http_messages import refusal_of

_LENGTHS = ("max_completion_tokens", "min_tokens", "stream_options", "stop", "logprobs")
"""What a request that computes a prompt alone leaves out."""
_json = msgspec.json.Encoder()


class PromptClock(Protocol):
    """What these exchanges need of the keeper."""

    def refused(self, row: int) -> None:
        """A request has not reached an engine core, and will not."""
        ...

    def leaves(self, row: int) -> None:
        """An engine core is to hear that nobody wants a request any more."""
        ...

    def read(self, tokens: int) -> None:
        """So many tokens, or ends of answers, have come from the server."""
        ...


class Answering(Protocol):
    """Who passes requests on to servers, and answers to the client (`Relay`)."""

    reasons: list[str]
    """Why two emulations may differ."""

    def pass_on(self, one: Exchange) -> None:
        """A request comes to the servers of its stage."""
        ...

    def refuse(self, one: ClientExchange, why: str) -> None:
        """Its prompt is not computed: nobody waits for the answer."""
        ...

    def end_unsent(self, one: ClientExchange, refusal: str) -> None:
        """The same of a request that no server has been given to answer; empty: the client has left
        it.
        """
        ...


@dataclass(eq=False, kw_only=True)
class Prompt(Exchange):
    """The exchange with the server that computes a prompt."""

    answer: ClientExchange


class OwnPrompts:
    """Of servers that compute the prompts of their answers: there are no other ones."""

    at_once = False
    """Both servers get a request when it comes."""

    def __init__(self, relay: Answering) -> None:
        self._relay = relay

    def begin(self, answer: ClientExchange) -> None:
        """A request has come."""
        self._relay.pass_on(answer)

    def of(self, row: int) -> Prompt | None:
        """The exchange of a request's prompt, while it lasts."""
        return None

    def leave(self, row: int) -> None:
        """The server goes on without the client of a request that has been refused."""


class _PromptsApart(OwnPrompts):
    """Of servers that compute prompts alone."""

    def __init__(self, relay: Answering, clock: PromptClock, stage: Stage) -> None:
        """`stage`: the servers that compute prompts."""
        super().__init__(relay)
        self._clock, self._stage = clock, stage
        self._under_way: dict[int, Prompt] = {}
        """By row."""

    def of(self, row: int) -> Prompt | None:
        """The exchange of a request's prompt, while it lasts."""
        return self._under_way.get(row)

    def leave(self, row: int) -> None:
        """The server goes on without the client of a request that has been refused."""
        prompt = self.of(row)
        if prompt is None or prompt.task is None:
            return
        if prompt.at is At.ENGINE:
            self._clock.leaves(row)
        prompt.task.cancel()

    def _begin(self, answer: ClientExchange, body: bytes) -> None:
        prompt = Prompt(answer.head, body, self._stage, self._ask, row=answer.row, answer=answer)
        self._under_way[answer.row] = prompt
        self._relay.pass_on(prompt)

    async def _ask(self, one: Prompt) -> None:
        raise NotImplementedError

    async def _refusal(self, one: Prompt) -> str:
        """What the server says instead of a computed prompt; empty: it has computed it."""
        try:
            async with one.sent(closes=True) as reader:
                return await refusal_of(reader)
        except OSError as error:
            why = f"llmsim emulate: the server has not answered: {type(error).__name__}"
            self._relay.reasons.append(why)
            return why

    def _end(self, one: Prompt) -> None:
        """Its server has said all of it."""
        reached = one.at is At.ENGINE
        one.at = At.ENDED
        one.moved.set()
        self._clock.read(one.tokens_at_server)
        one.tokens_at_server = 0
        if not reached:
            self._clock.refused(one.row)

    def _leave_server(self, one: Prompt) -> None:
        self._under_way.pop(one.row, None)
        one.leave_door()


class PulledPrompts(_PromptsApart):
    """The server that answers gets a request when its prompt is computed, and pulls the KV."""

    def begin(self, answer: ClientExchange) -> None:
        """A request has come, whose prompt is computed first."""
        self._begin(answer, _prompt_alone(answer.body))

    async def _ask(self, one: Prompt) -> None:
        try:
            said = await self._refusal(one)
            self._leave_server(one)
            if said:
                self._relay.end_unsent(one.answer, said)
            else:
                self._relay.pass_on(one.answer)  # before the clock moves
        except BaseException:
            self._leave_server(one)
            self._relay.end_unsent(one.answer, "")
            raise
        finally:
            self._end(one)


class PushedPrompts(_PromptsApart):
    """Both servers get a request at once, and the one that computes the prompt pushes the KV."""

    at_once = True

    def begin(self, answer: ClientExchange) -> None:
        """A request has come; the server of its prompt gets it first."""
        self._begin(answer, answer.body)
        self._relay.pass_on(answer)

    async def _ask(self, one: Prompt) -> None:
        said = ""
        try:
            said = await self._refusal(one)
        finally:
            self._leave_server(one)
            self._end(one)
        if said:
            self._relay.refuse(one.answer, said)


def _prompt_alone(body: bytes) -> bytes:
    """The same request with an answer of one token, in a stream."""
    asked: dict[str, Any] = msgspec.json.decode(body)
    kept = {name: value for name, value in asked.items() if name not in _LENGTHS}
    more = {"max_tokens": 1, "stream": True, "return_token_ids": True}
    return _json.encode(kept | more)
