"""Values that were made of files, kept for as long as those files stay as they were."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from llmsim.config.files import input_files

T = TypeVar("T")


class KeptWithFiles(Generic[T]):
    """The newest values by key; threads may share it.

    A value counts while every file that its making read has the size, time of change and inode that
    it had then. Its files are noted again with every use (`llmsim.config.files.input_files`).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[T, input_files.InputFiles]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T], *, keep: bool = True) -> T:
        """The value of a key; made now where the key is new or one of its files has changed."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and kept[1].unchanged():
            kept[1].note_again()
            return kept[0]
        with input_files.recorded() as files:
            value = make()
        if keep:
            self._keep(key, value, files)
        return value

    def _keep(self, key: Hashable, value: T, files: input_files.InputFiles) -> None:
        with self._lock:
            self._kept[key] = value, files
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
