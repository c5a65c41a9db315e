"""What an emulation asks of an engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.emulation.servers.of_instances import EngineServer
from llmsim.emulation.servers.openai_api import OpenAiApi
from llmsim.scheduling.conformance.vllm.request import LiveRequest


class RefusedError(Exception):
    """The server says within its answer that it refuses the request."""


class Endpoint(Protocol):
    """How clients talk to an engine's server."""

    path: str
    """Of requests that stream their answers."""

    def body(
        self, one: LiveRequest, model: str, *, prompt_alone: bool, rank: int | None = None
    ) -> dict[str, Any]:
        """The JSON of a request; `prompt_alone` asks for one token of its answer, and `rank` for
        a data-parallel rank, which a header names, too.
        """
        ...

    def tokens(self, event: bytes) -> int:
        """How many tokens an event of the answer brings; RefusedError where it is an error."""
        ...


class Engine(Protocol):
    """A serving engine whose server runs in virtual time."""

    name: str
    """As on the command line."""
    title: str
    """As its makers write it."""
    before_client: str
    """What a client runs before its program, as lines of Python."""

    @property
    def openai(self) -> OpenAiApi:
        """For a client of its own."""
        ...

    def options(self) -> list[str]:
        """Options of `llmsim run` that hold unless others are given."""
        ...

    def check(self, prepared: Prepared, engine_args: Sequence[str]) -> None:
        """Raises InputError or NotYetError where the engine does not run as the options say;
        `engine_args` are options of the server itself.
        """
        ...

    def version(self, python: Path) -> str:
        """The release that this interpreter has; InputError where it has none."""
        ...

    def release_options(self, version: str, server: EngineServer) -> list[str]:
        """Options of a server that depend on the release; NotYetError for a release that does
        not run as the simulation does.
        """
        ...

    def endpoint(self, server: EngineServer) -> Endpoint:
        """How clients talk to such a server."""
        ...

    def ranks_requests(self, server: EngineServer) -> bool:
        """Whether the server reads the priorities of a trace."""
        ...

    def drafts_after(self, speculation: "_native.SpeculationConfig", items: list[list[Any]]) -> int:
        """How many drafts of each sequence follow a step of these items (`Channel.step`)."""
        ...

    def settings(self, server: EngineServer) -> dict[str, object]:
        """What the server's processes have to know beside the clock."""
        ...

    def program(self, name: str, python: Path) -> list[str]:
        """The words in place of a program of the engine's own; none: it has no such program."""
        ...

    def environment(
        self, server: EngineServer, settings: dict[str, object], folder: Path
    ) -> dict[str, str]:
        """The environment of the server's processes; `folder` is made, with what they import."""
        ...

    def command(self, python: Path, server: EngineServer, model: Path, port: int) -> list[str]:
        """The command line of a server; the folder `model` gets what it reads of its model."""
        ...
