"""The links over which the KV of prompts goes from one engine to another."""

from collections.abc import Sequence

from llmsim import _native
from llmsim.lowering import LoweredDeployment


class Links:
    """Moves KV from the prefill group to the decode group, as in `llmsim run`."""

    def __init__(self, lowered: LoweredDeployment, input_tokens: Sequence[int]) -> None:
        """`input_tokens`: of each row's prompt."""
        assert lowered.kv_transfers is not None, "engine_servers looked"
        assert lowered.network is not None, "KV moves on it"
        roles = [group.native.role for group in lowered.groups]
        self.prefill = roles.index(_native.Role.PREFILL)
        self.decode = roles.index(_native.Role.DECODE)
        self._input_tokens = input_tokens
        self._transfers = _native.OutsideTransfers(lowered.kv_transfers, lowered.network.config)

    @property
    def next_ps(self) -> int | None:
        """When something may land; None: nothing moves."""
        return self._transfers.next_event_ps()

    def reserved(self, row: int, cached: int, now_ps: int) -> None:
        """The decode engine has blocks for a prompt, of which it has `cached` tokens."""
        pair = (self.prefill, self.decode)
        self._transfers.reserved(row, pair, self._input_tokens[row], cached, now_ps)

    def landed(self, now_ps: int) -> list[int]:
        """The requests whose KV has landed by now."""
        return self._transfers.advance(now_ps)
