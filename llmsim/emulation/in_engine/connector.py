"""The scheduler's half of a KV connector between two servers: `llmsim emulate` moves the KV."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.request import RequestStatus

from llmsim.emulation.in_engine.channel import current, row_of
from llmsim.scheduling.conformance.vllm.connector import SimulatedConnector


class _Rows(Mapping[str, int]):
    """The row of each request, which its name says."""

    def __getitem__(self, name: str) -> int:
        return row_of(name)

    def __iter__(self) -> Any:
        raise TypeError("names of requests are not known before they come")

    def __len__(self) -> int:
        raise TypeError("names of requests are not known before they come")


@dataclass
class Dropped(KVConnectorMetadata):  # type: ignore[misc]
    """What the workers of a step are told."""

    held: dict[str, int]
    """Tokens of requests that start again, where vLLM drops what batches in flight give them."""


class VirtualConnector(SimulatedConnector):
    """Asks for the KV of a prompt as soon as blocks are reserved for it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.rows = _Rows()
        self._writes = bool(vllm_config.kv_transfer_config.kv_connector_extra_config["writes"])
        self._requests: dict[str, Any] = {}
        """Those that have not ended, by name."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        self._requests[request.request_id] = request
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Up to 0.26, a release drops nothing."""
        resumed = scheduler_output.scheduled_cached_reqs.resumed_req_ids
        again = [self._requests[name] for name in sorted(resumed)]
        dropped = [one for one in again if getattr(one, "drop_stale_output", False)]
        return Dropped({one.request_id: one.num_tokens for one in dropped})

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        channel = current()
        assert channel is not None, "the executor is made before the scheduler"
        for _, cached in self.reserved:
            channel.reserved(request.request_id, cached)
        self.reserved.clear()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        self._requests.pop(request.request_id, None)
        keeps, nothing = super().request_finished(request, block_ids)
        channel = current()
        if channel is None:
            return keeps, nothing
        if keeps and self._writes:
            channel.sent(row_of(request.request_id), 0, "its end")
        if self.remote and request.status == RequestStatus.FINISHED_ABORTED:
            channel.withdrawn(row_of(request.request_id))
        return keeps, nothing
