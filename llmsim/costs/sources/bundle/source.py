"""Cost source: the user's own profile bundle (dense, per_sequence, attention, moe and
skew tables).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.core import Provenance
from llmsim.costs.source import (
    AttentionCost,
    CostRequest,
    CostSource,
    Curve,
    MixedAttention,
    curve_from_points,
    to_ps,
)
from llmsim.costs.sources.bundle.attention import (
    complete_grid,
    read_attention,
    skew_ps_per_token_q20,
)
from llmsim.costs.sources.bundle.eager_and_graph import both_families, by_family
from llmsim.costs.sources.bundle.files import BundleFiles
from llmsim.costs.sources.csv_tables import Table, read_table, refuse_duplicates
from llmsim.costs.sources.plausibility import LowerBoundWarnings
from llmsim.model import Collective, IndexerScores, Moe, StateSpace

if TYPE_CHECKING:
    from llmsim.model import Attention, Operator

Floats = NDArray[np.float64]

INSIDE_MOE = ("router", "shared_experts")
"""Operators that a bundle's `moe` rows contain where it has no rows of theirs: published profiles
time the whole block, `python -m llmsim.profiler` times them apart.
"""
UPDATE = "linear_state"
"""Rows of per_sequence.csv: one token of each sequence, from its state to its state."""
TILE_ROWS = 64
"""Query heads that one thread block of a latent attention's kernel takes (FlashAttention 3,
FlashMLA).
"""


class BundleSource(CostSource):
    """Times measured by the user for exactly this device, model, precision and tensor-parallel
    degree.
    """

    name = "bundle"
    kind = "bundle"

    def __init__(self, request: CostRequest, files: BundleFiles) -> None:
        self._request = request
        self._files = files
        self._notes: list[str] = []
        self._peak_rates = LowerBoundWarnings(request)
        self._tables: dict[Path, dict[str, tuple[Floats, Floats]]] = {}
        self._families: dict[Path, dict[str, tuple[Floats, Floats, Floats]]] = {}
        self._attention_table = read_attention(files.folder / "attention.csv")

    def operator(self, op: Operator, last: int) -> Curve | None:
        """Linear interpolation over tokens or sequences; None for collectives, which bundles do not
        hold.
        """
        if isinstance(op, Collective):
            return None
        if isinstance(op, Moe):
            return self._moe(op, last)
        if (
            op.block in INSIDE_MOE
            and self._moe_path() is not None
            and not self._measured_apart(op.name)
        ):
            self._note(f"{op.name}: its time is inside the bundle's moe rows")
            zero = np.zeros(last + 1, dtype=np.int64)
            return Curve(
                zero,
                np.zeros(last + 1, dtype=np.uint8),
                "inside the moe rows of the profile bundle",
            )
        name = "dense.csv" if op.feature == "tokens" else "per_sequence.csv"
        feature = "tokens" if op.feature == "tokens" else "sequences"
        path, rows = self._rows(name, feature, op.name)
        if rows is None:
            self._note(
                f"the bundle has no {op.name} rows in {path}; they come from the next cost source"
            )
            return None
        points, times_us = rows
        self._peak_rates.dense(op, path, feature, points, times_us)
        label = self._files.label(path)
        families = self._both(path).get(op.name) if name == "dense.csv" else None
        if families is None:
            curve = curve_from_points(points, times_us, last, label)
        else:
            points, graph_us, eager_us = families
            graph, eager = (
                curve_from_points(points, us, last, label) for us in (graph_us, eager_us)
            )
            curve = by_family(graph, eager, max(self._request.cuda_graph_sizes, default=0))
        return self._of_prompts(curve) if isinstance(op, StateSpace) else curve

    def _of_prompts(self, curve: Curve) -> Curve:
        """The recurrence over one prompt's tokens, as measured, which a step runs for the tokens of
        its prompts alone: decodes are the rows of `UPDATE`. Those count the step's prompts too, so
        one sequence is taken off here.
        """
        path, rows = self._rows("per_sequence.csv", "sequences", UPDATE)
        if rows is None:
            return replace(curve, feature="prefills")
        once = curve_from_points(*rows, 1, "").ps[1]
        label = f"{curve.source}, without one sequence's update of {self._files.label(path)}"
        return replace(curve, ps=np.maximum(curve.ps - once, 0), source=label, feature="prefills")

    def _measured_apart(self, layer: str) -> bool:
        folders = (self._files.folder, self._files.folder_tp1)
        paths = [folder / "dense.csv" for folder in folders if folder is not None]
        return any(
            input_files.is_file(path) and layer in self._layers(path, "tokens") for path in paths
        )

    def _both(self, path: Path) -> dict[str, tuple[Floats, Floats, Floats]]:
        if path not in self._families:
            self._families[path] = both_families(path, "tokens")
        return self._families[path]

    def experts_us(self, op: Moe) -> Callable[[Floats, Floats], Floats]:
        """Microseconds of a rank whose experts get so many (token, expert) pairs and of which so
        many are touched.
        """
        path = self._moe_path()
        assert path is not None, "the curve came from it"
        table = read_table(path, text=(), numbers=("tokens", "activated_experts", "time_us"))
        layout = self._request.layout
        cut = layout.expert_ranks // layout.ep
        divisor = cut if cut > 1 and (layout.dp > 1 or path.parent != self._files.folder) else 1

        def price(pairs: Floats, touched: Floats) -> Floats:
            us = moe_us(table, (pairs / op.topk).ravel(), touched.ravel()).reshape(pairs.shape)
            return np.where(pairs > 0, us / divisor, 0.0)

        return price

    def attention(self, op: Attention) -> AttentionCost | None:
        """The measured four-dimensional grid, completed; skew from skew.csv where there is one.

        An indexer's rows are those of a table of its own, and its kernels spread tokens evenly;
        None without it.
        """
        if isinstance(op, IndexerScores):
            return self._indexer(op)
        path = self._files.folder / "attention.csv"
        table = self._attention_table
        self._peak_rates.attention(op, path, table)
        skew_path = self._files.folder / "skew.csv"
        if input_files.is_file(skew_path):
            sms = self._request.hardware.num_sms if self._request.hardware else 0
            kappa, how = skew_ps_per_token_q20(skew_path, self._streams(op), sms)
            how = f"{self._files.label(skew_path)}: {how}"
        else:
            kappa, how = 0, "none: the bundle has no skew.csv"
            self._note(
                f"{skew_path} does not exist: decode batches of unequal lengths cost as much as "
                "equal ones"
            )
        return self._grid(op, path, table, kappa, how)

    def _indexer(self, op: Attention) -> AttentionCost | None:
        path = self._files.folder / "indexer.csv"
        if not input_files.is_file(path):
            if self._request.source == "bundle":
                raise InputError(
                    f"{self._files.folder}: there is no indexer.csv; profile the indexer or use "
                    "source auto"
                )
            self._note(
                f"the bundle {self._files.folder} has no indexer.csv; the indexer comes from the "
                "next cost source"
            )
            return None
        table = read_attention(path)
        self._peak_rates.attention(op, path, table)
        return self._grid(op, path, table, 0, "none: its kernels deal tokens out evenly")

    def _streams(self, op: Attention) -> int:
        """Thread blocks that read a decode's cache where it is not cut: one for each KV head, or
        for each tile of the query heads that all share a latent.
        """
        return op.kv_heads if self._request.model.latent is None else -(-op.heads // TILE_ROWS)

    def _grid(self, op: Attention, path: Path, table: Table, kappa: int, how: str) -> AttentionCost:
        """With latents that prompts expand, and short prompts do not, pairs alone say too little of
        several prompts.
        """
        label, grid = self._files.label(path), None
        if self._request.predict_attention:
            from llmsim.costs.sources.bundle.attention_regression import fitted_grid

            grid, sentence = fitted_grid(table)
            self._note(sentence)
            label += ", regressor"
        apart = op.flops_per_context_token != op.decode_flops_per_context_token
        grid = complete_grid(table) if grid is None else grid
        return MixedAttention(
            repeat=op.repeat,
            grid=grid,
            skew_ps_per_token_q20=kappa,
            source=label,
            skew_source=how,
            prompts_apart=apart,
        )

    def notes(self) -> list[str]:
        """Rows faster than light first, then what was assumed."""
        return self._peak_rates.sentences() + self._notes

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def _rows(
        self, file_name: str, feature: str, layer: str
    ) -> tuple[Path, tuple[Floats, Floats] | None]:
        """Rows of a layer at this degree, else at tp1 (layers that every rank repeats in full are
        profiled once).
        """
        folders = [self._files.folder]
        if self._files.folder_tp1 is not None and self._files.folder_tp1 != self._files.folder:
            folders.append(self._files.folder_tp1)
        for folder in folders:
            layers = self._layers(folder / file_name, feature)
            if layer in layers:
                if folder != self._files.folder:
                    self._note(
                        f"{layer}: {self._files.folder / file_name} has no rows, those of tp1 "
                        "are used"
                    )
                return folder / file_name, layers[layer]
        if self._request.source == "bundle":
            known = sorted(self._layers(folders[0] / file_name, feature))
            raise InputError(
                f'{folders[0] / file_name}: no rows for layer "{layer}"{nearest(layer, known)}; '
                "it has "
                f'{", ".join(known)}; profile the layer, or use cost source "auto"'
            )
        return folders[0] / file_name, None

    def _layers(self, path: Path, feature: str) -> dict[str, tuple[Floats, Floats]]:
        if path.name == "per_sequence.csv" and not input_files.is_file(path):
            return {}  # imported profiles may know nothing of the head
        if path not in self._tables:
            self._tables[path] = split_layers(
                read_table(path, text=("layer",), numbers=(feature, "time_us")), feature
            )
        return self._tables[path]

    def _moe_path(self) -> Path | None:
        folders = (self._files.folder, self._files.folder_tp1)
        return next(
            (
                f / "moe.csv"
                for f in folders
                if f is not None and input_files.is_file(f / "moe.csv")
            ),
            None,
        )

    def _moe(self, op: Moe, last: int) -> Curve | None:
        path = self._moe_path()
        if path is None:
            if self._request.source == "bundle":
                raise InputError(
                    f"{self._files.folder}: there is no moe.csv; profile the experts or use "
                    "source auto"
                )
            self._note(
                f"the bundle {self._files.folder} has no moe.csv; experts come from the next "
                "cost source"
            )
            return None
        table = read_table(path, text=(), numbers=("tokens", "activated_experts", "time_us"))
        refuse_duplicates(
            table, [table.number["tokens"].tolist(), table.number["activated_experts"].tolist()]
        )
        layout = self._request.layout
        cut = layout.expert_ranks // layout.ep
        sharded = cut > 1 and (layout.dp > 1 or path.parent != self._files.folder)
        if sharded:
            self._note(
                f"{path} was measured with whole experts; its times are divided by the {cut} "
                "ranks of each"
            )
        counts = np.arange(last + 1, dtype=np.float64)
        self._peak_rates.moe(op, path, table, cut if sharded else 1)
        times = expected_moe_us(table, op, counts) / (cut if sharded else 1)
        ps = to_ps(times)
        ps[0] = 0
        beyond = counts > table.number["tokens"].max() * op.experts_total / max(op.experts_local, 1)
        inside = Provenance.SCALED if sharded else Provenance.INTERPOLATED
        provenance = np.where(beyond, Provenance.EXTRAPOLATED, inside)
        return Curve(
            ps, provenance.astype(np.uint8), f"{self._files.label(path)}, expected active experts"
        )


def split_layers(table: Table, feature: str) -> dict[str, tuple[Floats, Floats]]:
    """Layer name -> (points ascending, microseconds)."""
    refuse_duplicates(table, [table.text["layer"], table.number[feature].tolist()])
    names = np.array(table.text["layer"])
    layers: dict[str, tuple[Floats, Floats]] = {}
    for layer in dict.fromkeys(table.text["layer"]):
        rows = np.flatnonzero(names == layer)
        rows = rows[np.argsort(table.number[feature][rows], kind="stable")]
        layers[layer] = (table.number[feature][rows], table.number["time_us"][rows])
    return layers


def expected_moe_us(table: Table, op: Moe, counts: Floats) -> Floats:
    """Microseconds of the experts at each token count, with the expected number of experts that
    tokens activate.

    T tokens choosing k of E at random touch E_local * (1 - (1 - k/E)^T) of a rank's experts; a rank
    that holds 1/ep of them computes 1/ep of the (token, expert) pairs, as T/ep tokens would.
    Bilinear in the table's (tokens, activated experts), whose rows of equal tokens need not have
    the same experts.
    """
    touched = np.minimum(op.touched(counts), op.held)
    as_many = counts * op.experts_local / op.experts_total + counts * op.always / op.topk
    return moe_us(table, as_many, touched)


def moe_us(table: Table, tokens: Floats, touched: Floats) -> Floats:
    """Bilinear in the table's (tokens, activated experts); one entry per entry of both."""
    counts = tokens
    axis = np.unique(table.number["tokens"])
    by_tokens = np.empty((len(axis), len(counts)))
    for index, value in enumerate(axis):
        rows = np.flatnonzero(table.number["tokens"] == value)
        rows = rows[np.argsort(table.number["activated_experts"][rows], kind="stable")]
        by_tokens[index] = np.interp(
            touched, table.number["activated_experts"][rows], table.number["time_us"][rows]
        )
    if len(axis) == 1:
        return np.asarray(by_tokens[0])
    low = np.clip(np.searchsorted(axis, tokens, side="right") - 1, 0, len(axis) - 2)
    share = np.maximum((tokens - axis[low]) / (axis[low + 1] - axis[low]), 0.0)
    columns = np.arange(len(counts))
    start, end = by_tokens[low, columns], by_tokens[low + 1, columns]
    return np.asarray(np.maximum(start + share * (end - start), start))
