"""A bar of progress on the terminal of stderr."""

import sys
from types import TracebackType
from typing import Any


class TerminalBar:
    """Nothing until it is started, and gone from the screen after its `with` block."""

    _bar: Any = None

    def _start(self, *columns: Any, **options: Any) -> None:
        """Shows columns of rich."""
        from rich.console import Console
        from rich.progress import Progress

        from llmsim.cli.streams import raw

        console = Console(file=raw(sys.stderr))
        self._bar = Progress(*columns, console=console, transient=True, **options)
        self._bar.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
