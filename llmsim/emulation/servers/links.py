"""The links over which the KV of prompts goes from one engine to another."""

from collections.abc import Callable

from llmsim import _native
from llmsim.lowering import LoweredDeployment


class Links:
    """Moves KV from prefill groups to decode groups, as in `llmsim run`."""

    def __init__(
        self,
        lowered: LoweredDeployment,
        input_tokens: Callable[[int], int],
        prefill_of: Callable[[int], int],
    ) -> None:
        """`input_tokens`: of a row's prompt; `prefill_of`: the group that computes it."""
        assert lowered.kv_transfers is not None, "engine_stages looked"
        assert lowered.network is not None, "KV moves on it"
        self._input_tokens, self._prefill_of = input_tokens, prefill_of
        self._cores: dict[int, tuple[int, int]] = {}
        """By row whose KV is on its way, where from and where to."""
        self._transfers = _native.OutsideTransfers(lowered.kv_transfers, lowered.network.config)

    @property
    def next_ps(self) -> int | None:
        """When something may land; None: nothing moves."""
        return self._transfers.next_event_ps()

    def reserved(self, core: int, row: int, cached: int, now_ps: int) -> int:
        """A decode engine has blocks for a prompt, of which it has `cached` tokens; how long its
        workers post the reads of the others, in ps.
        """
        self._cores[row] = self._prefill_of(row), core
        tokens = self._input_tokens(row)
        return self._transfers.reserved(row, self._cores[row], tokens, cached, now_ps)

    def landed(self, now_ps: int) -> list[tuple[int, tuple[int, ...]]]:
        """The requests whose KV has landed by now, and the groups at both ends."""
        return [(row, self._cores.pop(row)) for row in self._transfers.advance(now_ps)]
