"""Every option of `run` is read by its checks: one that is not would be ignored silently."""

import inspect
from typing import Any

from llmsim.cli.checked import checked
from llmsim.cli.run import command

IGNORED = {"enable_block_copy"}
"""Accepted for old command lines; equal blocks are always priced once."""


class Given(dict[str, Any]):
    """Remembers what was looked up."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def test_every_option_is_read() -> None:
    options = {name: option.default for name, option in inspect.signature(command).parameters.items()}
    del options["context"]
    given = Given({**options, "cluster_config": "cluster.json", "dataset": "trace.jsonl"})
    checked(given)
    assert set(options) - given.read == IGNORED
