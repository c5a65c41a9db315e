"""Finds the native module, and tells whether it was built from the sources that lie beside the
package.

CMake runs this file as a program: it writes the hash of the sources into a header of the native
module.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

NAME = "llmsim._native"
PACKAGE = Path(__file__).resolve().parent
PARTS = ("llmsim/native", "astra-sim/model", "astra-sim/engine", "astra-sim/python")
"""Folders whose C++ is in the module, from the root of the checkout."""
BUILD = "run `make run`, or `pip install -e .`"


class OtherCopy:
    """Finds the native module of an installed llmsim for a package without one: a checkout after
    `pip install .`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Asked last; ImportError, with what to do, where there is no copy."""
        if fullname != NAME:
            return None
        for candidate in _candidates():
            if candidate.is_file():
                return importlib.util.spec_from_file_location(NAME, candidate)
        python = f"Python {sys.version_info.major}.{sys.version_info.minor} ({sys.executable})"
        raise ModuleNotFoundError(
            f"the native module of llmsim is not built for {python}: {BUILD}, in {PACKAGE.parent}",
            name=NAME,
        )


def install_finder() -> None:
    """Python asks it where nothing else knows the native module."""
    if not any(isinstance(finder, OtherCopy) for finder in sys.meta_path):
        sys.meta_path.append(OtherCopy())


def _candidates() -> Iterator[Path]:
    for entry in sys.path:
        folder = Path(entry or os.getcwd()) / "llmsim"
        if folder.resolve() != PACKAGE:
            for suffix in importlib.machinery.EXTENSION_SUFFIXES:
                yield folder / f"_native{suffix}"


def why_stale(native: ModuleType, root: Path | None = None) -> str:
    """A sentence where the module was built from other sources than those in the checkout; else, or
    without, nothing.

    Sources are read only where one is newer than the module, or where the module belongs to another
    copy of llmsim.
    """
    root = root or PACKAGE.parent
    module = Path(native.__file__ or "")
    if not (root / PARTS[0]).is_dir() or not (root / PARTS[1]).is_dir():
        return ""  # an installed package has no sources
    if not _of_another_copy(module) and _newest_ns(root) <= module.stat().st_mtime_ns:
        return ""
    if getattr(native, "sources_sha256", "") == sources_sha256(root):
        return ""
    return (
        f"the native module {module} was built from other sources than those in {root}: {BUILD}, "
        "there"
    )


def _of_another_copy(module: Path) -> bool:
    """Whether the finder of this file found it, and not the one that an editable installation set
    up.
    """
    spec = sys.modules[NAME].__spec__ if NAME in sys.modules else None
    editable = any("editable" in type(finder).__module__ for finder in sys.meta_path)
    return spec is not None and module.parent != PACKAGE and not editable


def _newest_ns(root: Path) -> int:
    """Of the sources and their folders, in which files appear and vanish."""
    newest = 0
    for part in PARTS:
        for folder, _, names in os.walk(root / part):
            newest = max(newest, os.stat(folder).st_mtime_ns)
            for name in names:
                if name.endswith((".cpp", ".h")):
                    newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)
    return newest


def sources_sha256(root: Path) -> str:
    """A hash of the names and contents of the module's sources."""
    import hashlib

    digest = hashlib.sha256()
    for part in PARTS:
        paths = [path for path in (root / part).rglob("*") if path.suffix in (".cpp", ".h")]
        for path in sorted(paths):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def write_header(path: Path) -> None:
    """The header that the module's bindings include; not touched where it is as it should be."""
    text = (
        "#pragma once\n\ninline constexpr char kSourcesSha256[] = "
        f'"{sources_sha256(PACKAGE.parent)}";\n'
    )
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_header(Path(sys.argv[1]))
