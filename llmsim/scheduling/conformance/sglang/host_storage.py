"""A stand-in of SGLang's storage behind the host (HiCache): names of pages instead of files, and
threads whose work takes given times.

Needs SGLang's Python packages. Writes, searches and reads are one thread each, as in SGLang; what
they do to its queues is restated here, and happens when the scheduler's clock has come that far.
"""

import json
from collections import deque
from queue import Queue
from typing import Any

from llmsim.scheduling.conformance.cases import Case
from llmsim.scheduling.conformance.sglang.host_copies import Clock
from llmsim.scheduling.conformance.sglang.ours import STORAGE_PAGE_BYTES, STORAGE_PS

_BATCH_PAGES = 128
"""Pages of one read or write (SGLang 0.5.23: STORAGE_BATCH_SIZE)."""


def arguments(config: Case) -> list[str]:
    """SGLang's command line for the storage of a configuration; empty without one."""
    if config.get("hicache_storage_backend") is None:
        return []
    extra: dict[str, int] = {"prefetch_threshold": config["prefetch_threshold"]}
    if config["storage_pages"] > 0:
        extra["max_size"] = config["storage_pages"] * STORAGE_PAGE_BYTES
    named = {
        "--hicache-storage-backend": config["hicache_storage_backend"],
        "--hicache-storage-prefetch-policy": config["hicache_storage_prefetch_policy"],
        "--hicache-storage-backend-extra-config": json.dumps(extra),
    }
    for name in ("poll_interval", "max_attempts"):
        option = f"hicache_storage_prefetch_retry_{name}"
        named[f"--{option.replace('_', '-')}"] = str(config[option])
    return [part for pair in named.items() for part in pair]


class _Thread:
    """Operations of one kind, one after the other."""

    def __init__(self, storage: "Storage") -> None:
        self._storage = storage
        self.queue: deque[tuple[int, Any]] = deque()
        self.busy = False
        self.until_ps = 0
        self.page = self.done = 0
        self.fails = False

    def put(self, operation: Any) -> None:
        """As of SGLang's queue; the thread sees it at once."""
        if operation is not None:
            self.queue.append((self._storage.put_ps(self), operation))

    def put_nowait(self, operation: Any) -> None:
        """As of SGLang's queue."""
        self.put(operation)

    @property
    def first(self) -> Any:
        """What it works on."""
        return self.queue[0][1]

    def next_ps(self) -> int | None:
        """When it begins or ends something next."""
        if self.busy:
            return self.until_ps
        return max(self.until_ps, self.queue[0][0]) if self.queue else None

    def begin(self) -> None:
        """The first operation of the queue begins."""
        self.until_ps = max(self.until_ps, self.queue[0][0])
        self.page = self.done = 0
        self.fails, self.busy = False, True

    def end(self) -> Any:
        """It has ended."""
        self.busy = False
        return self.queue.popleft()[1]


class Storage:
    """What SGLang's controller finds instead of its threads, once clock and cache are set."""

    clock: Clock
    _controller: Any
    _cache: Any

    def __init__(self, config: Case) -> None:
        self._token_ps: int = config["storage_ps"]
        self._timeouts_ps = config["storage_timeout_ps"], config["storage_timeout_per_page_ps"]
        self._writes, self._searches, self._reads = (_Thread(self) for _ in range(3))

    def use(self, cache: Any, clock: Clock) -> None:
        """The scheduler's cache, and its clock."""
        from sglang.srt.utils import poll_timer

        self.clock, self._cache = clock, cache
        poll_timer.time = self  # of the times that requests wait
        cache.prefetch_timeout_base, cache.prefetch_timeout_per_page = self._timeouts_ps
        pool = self._controller.storage_host_pool
        pool.get_data_page = pool.set_from_flat_data_page = lambda *_: None
        pool.get_dummy_flat_data_page = object

    def perf_counter(self) -> int:
        """As of `time`, in ps."""
        return self.clock.now_ps

    def put_ps(self, thread: _Thread) -> int:
        """When an operation is handed over; writes follow copies that the scheduler waits for."""
        if thread is self._writes:
            return max(self.clock.now_ps, self.clock.blocked_ps)
        return self.clock.now_ps

    def start(self, controller: Any) -> None:
        """In place of starting threads."""
        self._controller = controller
        controller.prefetch_queue, controller.backup_queue = self._searches, self._writes
        controller.prefetch_buffer = self._reads
        for name in ("sync", "hit"):
            setattr(controller, f"prefetch_{name}_queue", Queue())
        controller.ack_prefetch_queue, controller.ack_backup_queue = Queue(), Queue()
        controller.host_mem_release_queue = Queue()

    def advance(self, now_ps: int) -> None:
        """All that happens until then; of several at one time writes first, then searches."""
        steps = {
            self._writes: self._step_writes,
            self._searches: self._step_searches,
            self._reads: self._step_reads,
        }
        while True:
            ahead = [(at, t) for t in steps if (at := t.next_ps()) is not None and at <= now_ps]
            if not ahead:
                return
            steps[min(ahead, key=lambda one: one[0])[1]]()

    def next_ps(self) -> int | None:
        """When something may happen next."""
        cache, now = self._cache, self.clock.now_ps
        if self._controller.host_mem_release_queue.qsize() > 0:
            return now
        times = [at for t in (self._writes, self._searches, self._reads) if (at := t.next_ps())]
        for handle, wait in cache._storage_prefetch_wait.items():
            if handle in cache.ongoing_prefetch and wait.timer.running and not wait.expired:
                end = wait.timer.started_at + wait.timeout_s + 1
                times += [end] if end > now else []
        return min(times, default=None)

    def _tokens_ps(self, pages: int) -> int:
        page_size: int = self._controller.page_size
        return STORAGE_PS + self._token_ps * pages * page_size

    def _batch(self, thread: _Thread) -> list[str]:
        hashes: list[str] = thread.first.hash_value[thread.page : thread.page + _BATCH_PAGES]
        return hashes

    def _begin_write(self) -> None:
        exists = self._controller.storage_backend.exists
        missing = sum(not exists(name) for name in self._batch(self._writes))
        self._writes.until_ps += self._tokens_ps(missing) if missing > 0 else 0

    def _step_writes(self) -> None:
        thread, controller = self._writes, self._controller
        if not thread.busy:
            thread.begin()
            return self._begin_write()
        names = self._batch(thread)
        indices = self._indices(thread, len(names))
        fails = not controller.page_set_func(names, indices, None)
        thread.page += len(names)
        if not fails and thread.page < len(thread.first.hash_value):
            return self._begin_write()
        controller.ack_backup_queue.put(thread.end())

    def _step_searches(self) -> None:
        thread, controller = self._searches, self._controller
        operation = thread.first
        if not thread.busy:
            thread.begin()
            thread.fails = operation.is_terminated()
            if not thread.fails and not operation.assume_stored:
                thread.until_ps += STORAGE_PS
            return
        names, tokens = ([], 0) if thread.fails else controller._storage_hit_query(operation)
        tokens = controller._sync_prefetch_hit_query(operation, tokens)
        operation.hash_value = names[: tokens // controller.page_size]
        operation.storage_hit_count = tokens
        controller.prefetch_hit_queue.put(thread.end())

    def _begin_read(self) -> None:
        thread = self._reads
        thread.fails = thread.fails or thread.first.is_terminated()
        if not thread.fails:
            thread.until_ps += self._tokens_ps(len(self._batch(thread)))

    def _step_reads(self) -> None:
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

        thread, controller = self._reads, self._controller
        if not thread.busy:
            thread.begin()
            return self._begin_read()
        operation, names = thread.first, self._batch(thread)
        if not thread.fails:
            indices, nothing = self._indices(thread, len(names)), HiCacheStorageExtraInfo()
            hits = controller._page_transfer_kv_batch(operation, names, indices, nothing, [])
            thread.done += hits
            thread.fails = hits != len(names)
        thread.page += len(names)
        self._acknowledge(operation, completed_tokens=thread.done * controller.page_size)
        if thread.page < len(operation.hash_value):
            return self._begin_read()
        thread.end()
        self._acknowledge(operation, completed_req=True)

    def _acknowledge(self, operation: Any, **what: Any) -> None:
        from sglang.srt.managers.cache_controller import PrefetchAck

        ack = PrefetchAck(rid=operation.request_id, operation=operation, **what)
        self._controller._reduce_prefetch_ack(ack)
        self._controller.ack_prefetch_queue.put(ack)

    def _indices(self, thread: _Thread, pages: int) -> Any:
        page = self._controller.page_size
        return thread.first.host_indices[thread.page * page : (thread.page + pages) * page]


def use_stand_in(config: Case) -> Storage:
    """From now on SGLang's cache controllers start with the stand-in."""
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    class Names(HiCacheFile):  # type: ignore[misc]
        """Files of which only the names are kept; SGLang's evictor says which."""

        def __init__(self, storage_config: Any) -> None:
            super().__init__(storage_config)
            self._names: set[str] = set()
            self._evictor._on_evict = self._names.discard

        def exists(self, key: str) -> bool:
            return self._get_suffixed_key(key) in self._names

        def get(self, key: str, target_location: Any, target_sizes: Any = None) -> Any:
            name = self._get_suffixed_key(key)
            if name not in self._names:
                return None
            self._evictor.touch(name, "")
            return target_location

        def set(self, key: str, *_: Any, **__: Any) -> bool:
            name = self._get_suffixed_key(key)
            if self.exists(key):
                self._evictor.touch(name, "")
                return True
            if not self._evictor.reserve(name, STORAGE_PAGE_BYTES, key=key):
                return False
            self._evictor.commit(name)
            self._names.add(name)
            return True

    storage = Storage(config)

    def create(_: str, storage_config: Any, *__: Any, **___: Any) -> Names:
        return Names(storage_config)

    StorageBackendFactory.create_backend = staticmethod(create)
    HiCacheController._start_storage_threads = lambda controller: storage.start(controller)
    return storage
