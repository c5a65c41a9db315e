"""Calls the code of plug-ins.

What it prints goes to stderr, the files that it opens are recorded, and its exceptions name file
and line.
"""

import inspect
import io
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import CodeType
from typing import Any, TextIO

from llmsim.config.errors import InputError, LlmsimError
from llmsim.config.files import input_files

_INSIDE: ContextVar[bool] = ContextVar("llmsim_inside_plugin", default=False)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Stdout:
    """Sends `sys.stdout` to stderr while any thread is inside of a plug-in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._saved: TextIO | None = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._saved, sys.stdout = sys.stdout, sys.stderr
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._saved is not None:
                sys.stdout, self._saved = self._saved, None


_STDOUT = _Stdout()


@contextmanager
def foreign_code() -> Iterator[None]:
    """Code of a plug-in runs within the block: it prints to stderr, and the files that it opens are
    recorded.
    """
    _hook_once()
    _STDOUT.enter()
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)
        _STDOUT.leave()


@cache
def _hook_once() -> None:
    """Python calls the hook for every file that is opened; a hook cannot be removed."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _INSIDE.get():
        return
    path, _, flags = arguments
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or (isinstance(flags, int) and flags & _WRITES):
        return
    own = os.path.abspath(path)
    if not in_library(own) and "__pycache__" not in own:
        input_files.note(own)


_HELD: ContextVar[list[list[Callable[..., Any]]] | None] = ContextVar("llmsim_held", default=None)


@contextmanager
def released_after() -> Iterator[None]:
    """Methods that are held within the block are released at its end.

    The core keeps the callables of a run, and Python's garbage collector does not see through it:
    a class of a notebook, whose globals hold the result, would never be freed.
    """
    held: list[list[Callable[..., Any]]] = []
    token = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(token)
        for one in held:
            one.clear()


def hold(method: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A list with the method, empty after `released_after`."""
    one = [method]
    held = _HELD.get()
    if held is not None:
        held.append(one)
    return one


def guarded(where: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a plug-in, whose exceptions become an InputError that begins with `where`."""
    held = hold(method)

    def call(*arguments: Any) -> Any:
        try:
            return held[0](*arguments)
        except LlmsimError:
            raise
        except Exception as error:
            raise InputError(f"{where} failed: {said(error)}") from error

    return call


def said(error: BaseException) -> str:
    """An exception on one line, with the line of the plug-in that it comes from."""
    words = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    position = position_of(error)
    return f"{words} ({position})" if position and position not in words else words


def position_of(error: BaseException) -> str:
    """`file:line` of the innermost code of a plug-in on the error's way; empty where
    there is none.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    position, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if os.path.isabs(name) and not in_library(name):
            position = f"{_shown(name)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return position


def defined_at(method: object) -> str:
    """`file:line` where a method is written; empty where that is not Python."""
    function: Any = getattr(method, "__func__", method)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def in_library(name: str) -> bool:
    """Whether a file is the package's own, Python's, or an installed library's."""
    return name.startswith(
        (*_library_folders(), f"{input_files.PACKAGE}{os.sep}")
    ) or name.startswith("<")


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    named = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{path}{os.sep}" for path in sorted({*named, os.path.dirname(io.__file__)}))


def _shown(name: str) -> str:
    """A path below the working directory as seen from there."""
    here = os.getcwd() + os.sep
    return name.removeprefix(here)
