"""Hyper-connections from the silicon database: the kernels in front of and behind a half layer, by
tokens. A row is the time of `num_sites` half layers.
"""

from __future__ import annotations

import numpy as np

from llmsim.costs.source import Curve, curve_from_points
from llmsim.costs.sources.silicon.database import TablePath, read_columns
from llmsim.model import StreamMix

COLUMNS = ["op_name", "num_tokens", "num_sites", "hc_mult", "hidden_size", "latency"]
NAMES = {"in": "pre", "out": "post"}


def streams_curve(tables: list[TablePath], op: StreamMix, last: int) -> Curve | None:
    """Times for 0..last tokens; None without rows of as many streams and as wide a hidden state, as
    for streams that are not mixed.
    """
    if not op.mixed:
        return None
    for table in tables:
        rows = read_columns(table.path, COLUMNS)
        keep = (rows["hc_mult"] == op.streams) & (rows["hidden_size"] == op.hidden)
        keep &= rows["op_name"] == NAMES[op.side]
        points, owner = np.unique(rows["num_tokens"][keep].astype(np.float64), return_inverse=True)
        if len(points) < 2:
            continue
        us = np.full(len(points), np.inf)
        sites = rows["num_sites"][keep].astype(np.float64)
        np.minimum.at(us, owner, rows["latency"][keep].astype(np.float64) * 1e3 / sites)
        return curve_from_points(points, np.maximum.accumulate(us), last, table.label)
    return None
