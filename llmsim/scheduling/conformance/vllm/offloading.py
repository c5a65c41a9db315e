"""vLLM's own OffloadingConnector, of which only the copies are ours: our run says when they end."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


class TimedOffloading(OffloadingConnector):  # type: ignore[misc]
    """`num_chunks` of `kv_connector_extra_config` says how many chunks the pool holds, and
    `sync_load_tokens` what a step loads and waits for, whatever their bytes.
    """

    keeps_finished = False
    copies: Any = None
    """_native.CopiesBelow"""
    rows: Mapping[str, int]

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        said = vllm_config.kv_transfer_config.kv_connector_extra_config
        config = build_offloading_config(vllm_config, kv_cache_config)
        size = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk
        page = SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT
        said["cpu_bytes_to_use"] = said["num_chunks"] * -(-size // page) * page
        per_token = config.worker_kv_bytes_per_block // vllm_config.cache_config.block_size
        said["sync_load_budget_bytes"] = said["sync_load_tokens"] * per_token
        super().__init__(vllm_config, role, kv_cache_config)
        self.rows = {}
        self.reserved: list[tuple[int, int]] = []
        self._block_size: int = vllm_config.cache_config.block_size
        self._jobs: dict[str, deque[tuple[int, bool]]] = {}

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """As vLLM, but those that have left since the last step in the order of their names: vLLM
        walks a set of them, in an order that differs between processes.
        """
        ended = sorted(scheduler_output.finished_req_ids)
        meta = super().build_connector_meta(replace(scheduler_output, finished_req_ids=ended))
        for job, load in meta.load_jobs.items():
            begin = self.copies.load_in_step if load.sync else self.copies.load
            row = self._asked(load.req_id, job, not load.sync)
            begin(job, row, self._tokens(load.dst_spec))
        for job, store in meta.store_jobs.items():
            row = self._asked(store.req_id, job, False)
            self.copies.store(job, row, self._tokens(store.src_spec))
        for job in meta.jobs_to_flush:
            self.copies.flush(job)
        return meta

    def _asked(self, name: str, job: int, parks: bool) -> int:
        self._jobs.setdefault(name, deque()).append((job, parks))
        row: int = self.rows[name]
        return row

    def _tokens(self, spec: Any) -> int:
        return len(spec.block_ids) * self._block_size

    def moved(self, name: str, blocks: Callable[[str], Any]) -> dict[str, Any]:
        """What vLLM is told when the oldest copy of a request has ended."""
        job, parked = self._jobs[name].popleft()
        ended = {"kv_connector_worker_meta": OffloadingWorkerMetadata(completed_jobs={job: 1})}
        return ended | ({"finished_recving": {name}} if parked else {})
