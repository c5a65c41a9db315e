"""What SGLang's requests hold of its pool of states of linear attention and Mamba layers."""

import math

from llmsim.config.engine.sglang.rows import rows_of_transfers

STATES_PER_REQUEST = 3
"""Slots that SGLang counts on for each running request beside its prefix cache, without spare ones
(MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO): its own, the one that its prefix ends with, and the
one that it gives to the cache.
"""
TRACK_INTERVAL = 256
"""SGLang's default of `mamba_track_interval`."""
KERNEL_CHUNK = 64
"""Tokens from one state to the next that kernels hand out, unless config.json has its own
`mamba_chunk_size` (FLA_CHUNK_SIZE).
"""


LAZY = "extra_buffer_lazy"
"""The strategy by which a second spare slot is taken for the step alone that writes to it."""


def spare_states(strategy: str | None, *, overlaps: bool) -> int:
    """Slots of each running request that kernels write states into (`get_mamba_tracking_slots`)."""
    return 2 if overlaps and strategy != LAZY else 1


def states_of_request(spare: int, *, caches: bool) -> int:
    """Slots that SGLang counts on for each running request (`_calculate_mamba_ratio`)."""
    return STATES_PER_REQUEST + spare if caches else 1


def states_of_decodes(requests: int, spare: int, states: int) -> int:
    """Slots of a decode server's pool, of which `states` were set aside: at least what so many
    running requests take, and those whose KV is coming (`HybridMambaDecodeReqToTokenPool`).
    """
    return max(states, (requests + rows_of_transfers(requests)) * (1 + spare))


def prompt_interval(kernel_chunk: int, page: int) -> int:
    """Tokens of a prompt from one state that the prefix cache can get to the next
    (`mamba_checkpoint_grid`).
    """
    return math.lcm(max(kernel_chunk, page), page)


def answer_interval(kernel_chunk: int, page: int, track_interval: int) -> int:
    """Tokens of an answer from one state that the prefix cache can get to the next
    (`mamba_track_grid`).
    """
    return math.lcm(prompt_interval(kernel_chunk, page), track_interval)
