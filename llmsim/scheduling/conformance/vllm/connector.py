"""The scheduler's half of a KV connector for the installed vLLM: our run says what other groups and
pools hold, and when it is there.

vLLM makes the connector itself, by the name in `kv_transfer_config`, as it makes any other.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.request import RequestStatus

from llmsim import _native


class SimulatedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """`kv_connector_extra_config` says what it is for.

    `remote`: another group computes every prompt, once, as for vLLM's NIXL connector.
    `keeps_finished`: another group reads what ended here. `all_but_last`: longer prompts come
    without their last token. Else it knows pools of KV, `below` (`_native.PoolsBelow`). `rows` are
    those of requests by name.
    """

    below: Any = None
    rows: Mapping[str, int]
    loses_all = False
    """Nothing of a request is of use where a load of it has failed."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        said = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.remote, self.keeps_finished = said["remote"], said["keeps_finished"]
        self._all_but_last = said["all_but_last"]
        self._block_size = vllm_config.cache_config.block_size
        self.rows = {}
        self.failures = _native.LoadFailures(_native.LoadFailuresConfig())
        self.lost: dict[str, tuple[int, int]] = {}
        """First token that does not come, and the end of what was to come, by request."""
        self.reserved: list[tuple[int, int]] = []
        self._once: set[str] = set()
        self._found: dict[str, int] = {}

    @property
    def requires_kv_delivery(self) -> bool:
        """As of connectors that hand KV over, and not of those of pools."""
        return bool(self.remote or self.keeps_finished)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        if self.remote and request.request_id not in self._once:
            self._found[request.request_id] = num_computed_tokens
            tokens = request.num_prompt_tokens
            return tokens - (self._all_but_last and tokens > 1) - num_computed_tokens, True
        if self.below is None:
            return 0, False
        self._found[request.request_id] = num_computed_tokens
        tokens = self.below.find(self.rows[request.request_id], num_computed_tokens)
        return tokens, tokens > 0 and self.below.parks

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        name = request.request_id
        cached = self._found.pop(name, None)
        if cached is None:
            return  # its KV has come, and it runs
        row, end = self.rows[name], cached + num_external_tokens
        if self.remote and name not in self._once:
            self._once.add(name)
            self.reserved.append((row, cached))
            self._draw(name, cached, end, end)
        elif self.below is not None:
            self.below.load(row, cached, num_external_tokens)
            if self.below.parks:
                self._draw(name, cached, end, self.below.chunk_tokens)

    def _draw(self, name: str, first: int, end: int, piece: int) -> None:
        """Notes whether this load of the tokens [first, end) fails."""
        known = self.failures.next(self.rows[name], first, end, piece)
        if known < end:
            self.lost[name] = known, end

    def moved(self, name: str, blocks: Callable[[str], Any]) -> dict[str, Any]:
        """What vLLM is told when a request's transfer has ended; `blocks` are the request's."""
        if self.keeps_finished:
            return {"finished_sending": {name}}
        arrived: dict[str, Any] = {"finished_recving": {name}}
        if name not in self.lost:
            return arrived
        first, end = self.lost.pop(name)
        if self.loses_all:
            return arrived | {"failed_recving": {name}}
        size = self._block_size
        return arrived | {"invalid_block_ids": set(blocks(name)[first // size : -(-end // size)])}

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Whose client has gone is not read, as with NIXL."""
        ended = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        return self.keeps_finished and ended, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.request_finished(request, block_ids)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Of workers, which there are none."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Of workers, which there are none."""

    def save_kv_layer(self, *arguments: Any, **kwargs: Any) -> None:
        """Of workers, which there are none."""

    def wait_for_save(self) -> None:
        """Of workers, which there are none."""
