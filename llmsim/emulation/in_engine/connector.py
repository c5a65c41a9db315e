"""The scheduler's half of a KV connector between two servers: `llmsim emulate` moves the KV."""

from collections.abc import Mapping
from typing import Any

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


class VirtualConnector(SimulatedConnector):
    """Asks for the KV of a prompt as soon as blocks are reserved for it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.rows = _Rows()
        self._writes = bool(vllm_config.kv_transfer_config.kv_connector_extra_config["writes"])

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        channel = current()
        assert channel is not None, "the executor is made before the scheduler"
        for _, cached in self.reserved:
            channel.reserved(request.request_id, cached)
        self.reserved.clear()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        keeps, nothing = super().request_finished(request, block_ids)
        channel = current()
        if keeps and self._writes and channel is not None:
            channel.sent(row_of(request.request_id), 0, "its end")
        return keeps, nothing
