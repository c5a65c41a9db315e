"""The field of a cluster that an error is about, and its value, for programs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmsim.api.cluster import Cluster
from llmsim.config.cluster_file.loading import parse_text
from llmsim.config.errors import InputError

_FIELD = r"(?::\d+)*: (?P<field>[A-Za-z_]\w*(?:\[\d+\]|\.\w+)*)"
"""What follows the file in the sentences of the cluster file: a line, and the path of a field."""


@contextmanager
def culprits_named(cluster: Cluster) -> Iterator[None]:
    """Errors within that begin with a position in the cluster carry it as `file`, `field` and
    `value`, where they carry none.
    """
    try:
        yield
    except InputError as error:
        head = re.match(re.escape(cluster.name) + _FIELD, str(error))
        if head is not None and error.field is None:
            known, value = _found(cluster, head["field"])
            if known:
                error.file, error.field, error.value = cluster.name, head["field"], value
        if error.file is None and str(error).startswith(cluster.name):
            error.file = cluster.name
        raise


def _found(cluster: Cluster, path: str) -> tuple[bool, Any]:
    """Whether the cluster has what a path begins with, and the value at its end; None without."""
    keys = [int(key) if key.isdecimal() else key for key in re.findall(r"\w+", path)]
    try:
        inside: Any = parse_text(cluster.text, cluster.name).data
    except InputError:  # the text is no JSON, which the error is about
        return False, None
    known = isinstance(inside, dict) and keys[0] in inside
    try:
        for key in keys:
            inside = inside[key]
    except (KeyError, IndexError, TypeError):
        inside = None
    return known, inside
