"""What a relay asks of an engine's server for the OpenAI API."""

from typing import Any, Protocol


class OpenAiApi(Protocol):
    """How an engine's server for the OpenAI API tells what has come of a client's request."""

    def body(self, asked: dict[str, Any], path: str, name: str, *, paired: bool) -> dict[str, Any]:
        """The JSON of the request that a client has sent to `path`, as the server gets it under
        our name. `paired`: a prefill and a decode server get it.
        """
        ...

    def tokens(self, event: bytes) -> int:
        """How many tokens an event of a streamed answer brings."""
        ...
