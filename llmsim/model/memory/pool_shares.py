"""How an engine divides memory that has pools apart for layers with a window and for states."""

from msgspec import Struct

from llmsim.model.memory.sizes import KvGroup


class PoolBytes(Struct, frozen=True):
    """Bytes on one rank: of a block of the layers that see everything, the drafter's included, of
    one of those with a window, and of a state.
    """

    block: int
    window_block: int = 0
    state: int = 0


class PoolShares(Struct, frozen=True):
    """SGLang's division of what KV and states have.

    Source: SGLang 0.5.6 to 0.5.23, `HybridSWAPoolConfigurator`, `SWARequestCapPoolConfigurator` and
    `_handle_max_mamba_cache` (`model_executor/pool_configurator.py`,
    `mem_cache/kv_cache_configurator.py`).
    """

    window_ratio: float = 1.0
    """Tokens in the pool of layers with a window, for each token in that of the others; 1: all
    layers keep whole sequences.
    """
    window_tokens: int | None = None
    """Tokens in that pool, where they do not follow from the others'."""
    state_ratio: float = 0.0
    """Bytes of states for each byte of KV, where the model has states and `states` is None."""
    states: int | None = None
    states_per_sequence: int = 1
    """Slots that the engine counts on for each running sequence."""
    verified: int = 0
    """Tokens that a step verifies of each sequence, each with a state of its own; 0: no drafts."""

    def block_tokens_bytes(self, groups: tuple[KvGroup, ...]) -> int:
        """Bytes that one token of the pool of layers that see everything takes, with its share of
        the pool of those with a window.
        """
        everything = sum(group.bytes_per_token for group in groups if not group.window)
        windows = sum(group.bytes_per_token for group in groups if group.window)
        if self.window_tokens is not None:
            return everything
        return everything + int(self.window_ratio * windows)

    def fixed_window_bytes(self, groups: tuple[KvGroup, ...]) -> int:
        """Of a pool of windows whose size does not follow from the others'; 0: it does."""
        windows = sum(group.bytes_per_token for group in groups if group.window)
        return (self.window_tokens or 0) * windows

    def window_blocks(self, blocks: int, block_size: int) -> int:
        """Blocks of the pool of windows beside so many of the other layers'."""
        tokens = int(blocks * block_size * self.window_ratio)
        if self.window_tokens is not None:
            tokens = min(self.window_tokens, blocks * block_size)
        return tokens // block_size

    def state_slots(self, room: int, state_bytes: int) -> int:
        """States that fit beside KV into `room` bytes, with those of verified tokens; one more is
        padding.
        """
        if self.states is not None:
            return self.states
        share = int(room * self.state_ratio / (1 + self.state_ratio))
        padding = state_bytes * (1 + self.verified)
        if self.verified == 0:
            return max(0, (share - padding) // state_bytes)
        of_state = state_bytes * (1 + self.verified / self.states_per_sequence)
        return max(0, int((share - padding) // of_state))

    def verified_states(self, states: int, sequences: int) -> int:
        """Of verified tokens, beside so many states and at most so many running sequences; those of
        one more are padding.
        """
        running = min(sequences, states // self.states_per_sequence)
        return (running + 1) * self.verified
