"""What SGLang's loops of prefill and decode servers share. Needs SGLang's Python packages."""

from typing import Any

from llmsim.scheduling.conformance.sglang.live import Loop

FIRST_ROOM = 1
"""Of the first request; SGLang takes 0 for metadata that has not come."""


class RoleLoop(Loop):
    """One run of a prefill or decode server."""

    _skips_finishing = False

    def _role(self, index: int) -> dict[str, Any]:
        """SGLang's own host for bootstraps that are none would leave a prompt out of the prefix
        cache.
        """
        return {"bootstrap_host": "localhost", "bootstrap_room": index + FIRST_ROOM}
