"""Every option of `run` is read by its checks: one that is not would be ignored silently."""

import inspect
from pathlib import Path
from typing import Any, ClassVar

from llmsim.api.checked.given import Given
from llmsim.api.checked.run_options import checked
from llmsim.cli.commands.run import command
from llmsim.config.engine.options import command_line_options

IGNORED = {"enable_block_copy"}
"""Accepted for old command lines; equal blocks are always priced once."""


class Remembered(Given):
    """Remembers what was looked up."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        Remembered.read.add(name)
        return super().__getattribute__(name)


def test_every_option_is_read() -> None:
    rows = command_line_options()
    options = set(inspect.signature(command).parameters) - {"context"} - rows.keys() | {
        "engine_options"
    }
    assert options == set(Given.__struct_fields__)
    given = Remembered(
        cluster_config=Path("cluster.json"), dataset="trace.jsonl", engine_options={}
    )
    Remembered.read = set()
    checked(given)
    assert options - Remembered.read == IGNORED
