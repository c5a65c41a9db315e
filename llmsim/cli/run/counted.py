"""Progress of commands that simulate many times, on stderr: stdout belongs to the answer."""

import sys
from typing import Any, Self

from llmsim.cli.run.terminal_bar import TerminalBar


class Counted(TerminalBar):
    """A bar on a terminal with what is done of what is known, and the time that is left; silence
    elsewhere, or where somebody asks for it.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._quiet:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.table import Column

            def whole(**options: Any) -> Column:
                return Column(no_wrap=True, **options)

            columns = (
                TextColumn("{task.description}", table_column=whole(min_width=6)),
                BarColumn(20, table_column=whole(min_width=20)),
                MofNCompleteColumn(table_column=whole(min_width=9)),
                TimeElapsedColumn(table_column=whole(min_width=7)),
                TextColumn("left", table_column=whole(min_width=4)),
                TimeRemainingColumn(table_column=whole(min_width=7)),
                TextColumn("{task.fields[last]}", markup=False, table_column=whole(ratio=1)),
            )
            self._start(*columns, expand=True)
        return self

    def begin(self, what: str, total: int | None = None) -> None:
        """From here on `total` more of something are counted; None: nobody knows how many."""
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, last="")

    def done(self, last: str = "") -> None:
        """One more is done; `last` says what it was."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, last=last)
