"""Says where collectives cross from one server to another at the rate of the links
inside a server.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsim.config import Deployment

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup


def server_notes(deployment: Deployment, lowered: "Sequence[LoweredGroup]") -> tuple[str, ...]:
    """One sentence for each domain of ranks that talks over several servers at the
    rate inside one.
    """
    notes: dict[str, list[str]] = {}
    for group, one in zip(deployment.groups, lowered, strict=True):
        for note in one.links.nominal_notes(deployment, group, one.hardware):
            paths = notes.setdefault(note.sentence, [])
            if note.of_group:
                paths.append(group.field_path)
    return tuple(_named(paths) + note for note, paths in notes.items())


def _named(paths: list[str]) -> str:
    """The groups that a sentence is about; the sentence names its own where there are none."""
    if not paths:
        return ""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}: "
