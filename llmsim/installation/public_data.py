"""Public logs and traces that accuracy is measured with: where they are, and their checksums."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmsim.config.errors import InputError, nearest
from llmsim.presets import PRESETS_DIR

CATALOGUE = PRESETS_DIR / "public_data.json"
TIMEOUT_S = 30
CHUNK = 1 << 20


@dataclass(frozen=True)
class PublicFile:
    """One public file: its origin is fixed by a commit, its content by a SHA-256."""

    name: str
    what: str
    url: str
    sha256: str
    bytes: int
    license: str

    @property
    def file_name(self) -> str:
        """The name that `fetch` gives it."""
        return f"{self.name}{Path(self.url).suffix}"


def catalogue(path: Path = CATALOGUE) -> tuple[PublicFile, ...]:
    """Every file that can be fetched."""
    return tuple(PublicFile(**fields) for fields in json.loads(path.read_text(encoding="utf-8")))


def find(name: str, path: Path = CATALOGUE) -> PublicFile:
    """The file of that name; raises InputError for any other."""
    found = {one.name: one for one in catalogue(path)}
    if name not in found:
        raise InputError(
            f'"{name}" is no public file that llmsim knows{nearest(name, found)}; there are '
            f"{', '.join(found)}",
            field="NAME",
            value=name,
        )
    return found[name]


def fetch(wanted: PublicFile, folder: Path) -> tuple[Path, bool]:
    """The path of the file in `folder`, and whether it was downloaded now.

    A file that is there with the right content stays. Nothing else is ever replaced or left half
    written. Raises InputError where the network or the content is not what it should be.
    """
    from llmsim.export.files import atomic_writer, check_writable_folder

    path = folder / wanted.file_name
    if path.exists():
        if _sha256(path) == wanted.sha256:
            return path, False
        raise InputError(
            f"{path} has another content than {wanted.name}; remove it, or give --to DIR",
            file=str(path),
        )
    check_writable_folder(folder)
    digest, size = hashlib.sha256(), 0
    with atomic_writer(path, "wb") as out:
        for chunk in _chunks(wanted):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
        if digest.hexdigest() != wanted.sha256:
            raise InputError(
                f"{wanted.url} gave {size} bytes with SHA-256 {digest.hexdigest()}, expected "
                f"{wanted.bytes} with {wanted.sha256}; nothing was written",
                field="NAME",
                value=wanted.name,
            )
    return path, True


def _chunks(wanted: PublicFile) -> Iterator[bytes]:
    """The content from the network, at most one chunk more than it should have."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(wanted.url, timeout=TIMEOUT_S) as answer:
            left = wanted.bytes + CHUNK
            while left > 0 and (chunk := answer.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{wanted.url} cannot be fetched ({reason}); fetch it where there is a network, and "
            f"put it here as {wanted.file_name}",
            field="NAME",
            value=wanted.name,
        ) from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", file=str(path)) from None
    return digest.hexdigest()
