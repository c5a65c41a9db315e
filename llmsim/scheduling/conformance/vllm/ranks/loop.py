"""The busy loop of a data-parallel rank's engine core, which pauses where it would block."""

from typing import Any

from llmsim._native import EngineTurn
from llmsim.scheduling.conformance.vllm.core_loop import CoreLoop
from llmsim.scheduling.conformance.vllm.known_model import Call, KnownModel
from llmsim.scheduling.conformance.vllm.ranks.exchange import Rank


class RankLoop(CoreLoop):
    """Runs `run_busy_loop` of a rank's engine core, which decides what the rank does next.

    The core calls `pause` of its `dp_group` with where it stands, and `tell` with what it has for
    others; its `hear_*` methods take what others have for it.
    """

    def __init__(self, core: Any, model: KnownModel, rank: Rank) -> None:
        """The rank joins its group, and its loop begins to look for requests."""
        super().__init__(core, model, core.run_busy_loop)
        self._group, self._rank = rank
        self.turn = EngineTurn.LOOKS
        """Where the loop stands."""
        self.now_ps = 0
        """Set before `next_call`."""
        self.taken_from_ps = 0
        """When it made the call whose output it takes."""
        self._batches.pause = self._await_output
        core.dp_group = self
        self._group.joins(self)
        self._resume()

    def _await_output(self) -> None:
        self.pause(EngineTurn.AWAITS)

    def pause(self, turn: EngineTurn) -> None:
        """Called by the core, which goes on when the simulator says so."""
        self.turn = turn
        self._turns.pause()

    def take(self, made_ps: int) -> None:
        """Called by the core when it takes the output of a call that gave no batch."""
        self.taken_from_ps = made_ps
        self.pause(EngineTurn.TAKES)

    def agree(self, *, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
        """Called by the core in place of an all-reduce (`RankGroup.agreed`)."""
        self._group.say(has_unfinished=has_unfinished, pending_pause=pending_pause)
        self.pause(EngineTurn.AGREES)
        return self._group.agreed

    def tell(self, client: int, outputs: Any) -> None:
        """Called by the core with what it has for a front-end, or for the coordinator (-1)."""
        if client < 0:
            self._group.hear(self._rank, outputs)
        else:
            self._outputs += outputs.outputs

    def has_work(self) -> bool:
        """Whether a loop that looks runs a step."""
        return bool(self._core.has_work())

    def next_call(self) -> Call | None:
        """The next call of vLLM's scheduler by a loop that looks; None: it has no requests."""
        return self._next_launched()

    def next_outputs(self) -> list[Any]:
        """What the oldest batch gave, which has ended and for which the loop waits."""
        self._batches.oldest_ends()
        self._resume()
        return self._take_outputs()

    def go_on(self) -> None:
        """The dummy runs for which the loop waits, it has been told of what has moved, or all ranks
        have asked whether work is left.
        """
        self._resume()

    def add(self, request: Any) -> None:
        """A request has arrived, and may begin a wave."""
        self._core.hear_request(request, self._group.wave)
        self._group.first_request(self._rank)

    def abort(self, name: str) -> None:
        """The client of a request has gone."""
        self._core.hear_abort(name)

    def wake(self, wave: int, begun_by: int) -> None:
        """A wave begins."""
        self._core.hear_wave(wave, begun_by)
