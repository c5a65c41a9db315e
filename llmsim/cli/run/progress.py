"""Progress with ETA and heartbeat lines, both on stderr: stdout belongs to the results."""

import sys
from typing import TYPE_CHECKING

from llmsim.cli.run.terminal_bar import TerminalBar

if TYPE_CHECKING:
    from llmsim import _native
    from llmsim.api.checked.run_options import RunOptions
    from llmsim.lowering import LoweredDeployment


class Progress(TerminalBar):
    """A bar on a terminal, heartbeat lines with --log-level INFO, otherwise silence."""

    def __init__(
        self, num_requests: int, deployment: "LoweredDeployment", options: "RunOptions"
    ) -> None:
        self._total = num_requests
        self._interval_ps = options.log_interval_ps
        self._heartbeats = options.log_level != "WARNING" and not options.quiet
        self._quiet = options.quiet
        self._blocks = [group.info.num_blocks for group in deployment.groups]

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty() and not self._heartbeats and not self._quiet:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

            columns = (
                BarColumn(),
                TextColumn("{task.completed}/{task.total} requests"),
                TextColumn("{task.fields[simulated]}"),
                TimeRemainingColumn(),
            )
            self._start(*columns)
            self._task = self._bar.add_task("", total=self._total, simulated="")
        return self

    def update(self, simulation: "_native.Simulation") -> None:
        """Called between two slices of the run."""
        if self._bar is not None:
            done = simulation.num_finished + simulation.num_rejected
            self._bar.update(
                self._task, completed=done, simulated=f"{simulation.now_ps / 1e12:.1f} s simulated"
            )
        if self._heartbeats:
            self._print_heartbeats(simulation)

    def _print_heartbeats(self, simulation: "_native.Simulation") -> None:
        from llmsim.results.printed.text import heartbeat

        series = simulation.series()  # since it was last taken, which is after every call
        for i in range(len(series["time_ps"])):
            row = {name: int(column[i]) for name, column in series.items()}
            line = heartbeat(
                row, interval_ps=self._interval_ps, total_blocks=self._blocks[row["group"]]
            )
            try:
                print(line, file=sys.stderr)
            except OSError:  # nobody can read them: the run matters more
                self._heartbeats = False
                return
