"""SGLang's loop while it runs nothing: it passes without end, and here a pass takes no time.

At one time it passes until it finds nothing new, and time goes on to whatever happens next.

Needs SGLang's Python packages.
"""

from typing import Any


class IdlePasses:
    """Says of each pass whether the next one finds something new, though nothing happens."""

    def __init__(self, scheduler: Any) -> None:
        from sglang.srt.managers import schedule_policy

        self._scheduler = scheduler
        self._interval: int = schedule_policy.WAITING_PREFIX_REFRESH_INTERVAL
        self._refreshes_before: int = 0
        self._retracted_before: int = 0
        self._leaves_out = False
        self._looks_again = scheduler._prefetch_after_device_hit_loss
        scheduler._prefetch_after_device_hit_loss = self._note_loss

    def begin(self, retracted: int) -> None:
        """A pass begins; so many were retracted since the last batch."""
        self._retracted_before = retracted
        self._refreshes_before = self._refreshes
        self._leaves_out = False

    def find_more(self, retracted: int) -> bool:
        """Whether the pass that has just ended without a batch leaves something to the next one."""
        return self.find_new(retracted) or self.refreshes_later()

    def find_new(self, retracted: int) -> bool:
        """The same, but for what SGLang does once in several passes."""
        return (
            retracted > self._retracted_before
            or self._leaves_out
            or self._asks_for_writes()
            or self._counts_retries()
        )

    def _note_loss(self, request: Any) -> bool:
        """Who looks in storage again is left out of one pass."""
        left_out = bool(self._looks_again(request))
        self._leaves_out |= left_out
        return left_out

    def _asks_for_writes(self) -> bool:
        """Copies to the host begin with the next pass."""
        controller = getattr(self._scheduler.tree_cache, "cache_controller", None)
        return controller is not None and len(controller.write_queue) > 0

    def _counts_retries(self) -> bool:
        """Somebody counts passes until it looks in storage again."""
        if not self._scheduler.enable_hicache_storage:
            return False
        pending = self._scheduler.tree_cache.storage_prefetch_retries._pending
        return any(request.rid in pending for request in self._scheduler.waiting_queue)

    @property
    def _refreshes(self) -> int:
        """How often SGLang has thought of counting what the queue holds of the cache as used."""
        return int(self._scheduler.policy._waiting_prefix_refresh_calls)

    def refreshes_later(self) -> bool:
        """It thinks of it in each pass, and does it once in several; without an end, it has."""
        due = -(-self._refreshes_before // self._interval) * self._interval
        refreshes = self._refreshes
        return self._refreshes_before < refreshes <= due
