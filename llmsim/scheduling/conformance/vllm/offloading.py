"""vLLM's own OffloadingConnector, of which only the copies are ours: our run says when they end."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class Copy(NamedTuple):
    """What a step asks workers to copy, by vLLM's number of the job."""

    job: int
    name: str
    """Of its request."""
    tokens: int


class CopiesOfStep(NamedTuple):
    """All copies of a step, each kind in the order in which workers submit them."""

    loads: list[Copy]
    loads_in_step: list[Copy]
    """The step waits for them."""
    stores: list[Copy]
    flushed: list[int]
    """Jobs of stores that the step waits for."""


def copies_of(meta: Any, block_size: int) -> CopiesOfStep:
    """What the metadata of vLLM's connector asks for."""

    def copy(job: int, one: Any, end: int) -> Copy:
        return Copy(job, one.req_id, len(_ends(one)[end].block_ids) * block_size)

    loads = [
        (getattr(one, "sync", False), copy(job, one, _TO)) for job, one in meta.load_jobs.items()
    ]
    return CopiesOfStep(
        [one for waits, one in loads if not waits],
        [one for waits, one in loads if waits],
        [copy(job, one, _FROM) for job, one in meta.store_jobs.items()],
        sorted(meta.jobs_to_flush or ()),
    )


_FROM, _TO = 0, 1


def _ends(job: Any) -> tuple[Any, Any]:
    """From where to where a job copies."""
    if hasattr(job, "transfer_spec"):  # 0.24
        source, target = job.transfer_spec
        return source, target
    return job.src_spec, job.dst_spec


def _said_of_pool(vllm_config: Any, kv_cache_config: Any, said: dict[str, Any]) -> dict[str, Any]:
    """The options of a pool of `num_chunks` chunks of `blocks_per_chunk` blocks, in bytes."""
    copies, blocks = vllm_config.parallel_config.world_size, said["blocks_per_chunk"]
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
            build_offloading_config,
        )
    except ImportError:  # up to 0.25, which is told how many tokens a chunk has
        size = sum(one.size for one in kv_cache_config.kv_cache_tensors)
        size //= kv_cache_config.num_blocks
        parallel = vllm_config.parallel_config
        ranks = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
        more = {"block_size": blocks * vllm_config.cache_config.block_size * ranks}
    else:
        config = build_offloading_config(vllm_config, kv_cache_config)
        size, more = config.worker_kv_bytes_per_block, {}
        copies = 1 if getattr(config, "replicated_layout", False) else copies
    page = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
    chunk = -(-size * copies * blocks // page) * page
    budget = said["sync_load_tokens"] * (size // vllm_config.cache_config.block_size)
    more["cpu_bytes_to_use"] = said["num_chunks"] * chunk
    return more | {"sync_load_budget_bytes": budget}


class SizedOffloading(OffloadingConnector):  # type: ignore[misc]
    """`num_chunks` of `kv_connector_extra_config` says how many chunks the pool holds, and
    `sync_load_tokens` what a step loads and waits for, whatever their bytes.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        said = vllm_config.kv_transfer_config.kv_connector_extra_config
        said |= _said_of_pool(vllm_config, kv_cache_config, said)
        super().__init__(vllm_config, role, kv_cache_config)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """As vLLM, but those that have left since the last step in the order of their names: vLLM
        walks a set of them, in an order that differs between processes.
        """
        ended = sorted(scheduler_output.finished_req_ids)
        return super().build_connector_meta(replace(scheduler_output, finished_req_ids=ended))

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM, but the chunks of a copy that has ended in the order of the prompt: up to 0.30,
        vLLM gives up chunks in the order of a set of their keys, which differs between processes.
        """
        scheduler = self.connector_scheduler
        ended = getattr(connector_output.kv_connector_worker_meta, "completed_jobs", ())
        for job in filter(None, map(scheduler._jobs.get, ended)):
            states = scheduler._req_status[job.req_id].group_states
            places = {key: n for state in states for n, key in enumerate(state.offload_keys)}
            job.keys = sorted(job.keys, key=places.__getitem__)
        super().update_connector_output(connector_output)


class TimedOffloading(SizedOffloading):
    """Asks our run for the copies as soon as a step asks workers for them."""

    keeps_finished = False
    copies: Any = None
    """_native.CopiesBelow"""
    rows: Mapping[str, int]

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.rows = {}
        self.reserved: list[tuple[int, int]] = []
        self._block_size: int = vllm_config.cache_config.block_size
        self._jobs: dict[str, deque[tuple[int, bool]]] = {}

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        meta = super().build_connector_meta(scheduler_output)
        asked = copies_of(meta, self._block_size)
        for begin, copies, parks in (
            (self.copies.load_in_step, asked.loads_in_step, False),
            (self.copies.load, asked.loads, True),
            (self.copies.store, asked.stores, False),
        ):
            for job, name, tokens in copies:
                self._jobs.setdefault(name, deque()).append((job, parks))
                begin(job, self.rows[name], tokens)
        for job in asked.flushed:
            self.copies.flush(job)
        return meta

    def moved(self, name: str, blocks: Callable[[str], Any]) -> dict[str, Any]:
        """What vLLM is told when the oldest copy of a request has ended."""
        job, parked = self._jobs[name].popleft()
        ended = {"kv_connector_worker_meta": OffloadingWorkerMetadata(completed_jobs={job: 1})}
        return ended | ({"finished_recving": {name}} if parked else {})
