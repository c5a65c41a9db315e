"""What the workers of an engine copy to host memory and back, in virtual time."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput

from llmsim.emulation.in_engine.channel import Channel
from llmsim.emulation.in_engine.kv_workers import Looked
from llmsim.scheduling.conformance.vllm.offloading import CopiesOfStep, Copy, copies_of


class OffloadingWorkers:
    """Stands for vLLM's OffloadingConnectorWorker (`kv_workers.KvWorkers`)."""

    def __init__(self, channel: Channel, calls: int, workers: int, block_size: int) -> None:
        """`workers`: how many report each copy."""
        self._channel, self._calls = channel, calls
        self._workers, self._block_size = workers, block_size
        self._parked: dict[int, str] = {}
        """Requests that wait for a load, by its job."""

    def begin(self, scheduler_output: Any) -> None:
        """Submits the copies, and waits for those that the step waits for."""
        asked = copies_of(scheduler_output.kv_connector_metadata, self._block_size)
        self._parked |= {copy.job: copy.name for copy in asked.loads}
        runs = scheduler_output.total_num_scheduled_tokens > 0
        waits = bool(asked.loads_in_step or asked.flushed)
        self._channel.copies(_message(asked), runs=runs, waits=waits)

    def launched(self, looked: Looked) -> None:
        """Whoever looks next hears of a copy that has ended."""

    def computed(self, known: dict[str, int]) -> None:
        """Nothing is written to others."""

    def moved(self, looked: Looked | None) -> KVConnectorOutput | None:
        """Copies that have ended."""
        jobs = self._channel.arrived(self._calls, None if looked is None else looked())
        if not jobs:
            return None
        ended = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, self._workers))
        loaded = {self._parked.pop(job) for job in jobs if job in self._parked}
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=ended)


def _message(asked: CopiesOfStep) -> dict[str, list[Any]]:
    """As `llmsim.emulation.servers.copies.HostCopies.asked` reads it."""

    def sizes(copies: list[Copy]) -> list[list[int]]:
        return [[one.job, one.tokens] for one in copies]

    return {
        "load": sizes(asked.loads),
        "load_in_step": sizes(asked.loads_in_step),
        "store": sizes(asked.stores),
        "flush": [[job] for job in asked.flushed],
    }
