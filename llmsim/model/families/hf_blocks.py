"""Reads `block_configs`, in which models of a neural architecture search (Nemotron-NAS, DeciLM) say
what each layer has, into lists with an entry for each layer.
"""

from typing import Any

from llmsim.config.errors import InputError, NotYetError
from llmsim.model.families.fields import Reader, shown

BLOCKS = "block_configs"
FFN_LAYERS = "ffn_layers"
"""The list that says whether a layer has an FFN."""
MULTIPLE = 256
"""Widths of MLPs are rounded up to it (vLLM: nemotron_nas)."""


def with_lists(read: Reader) -> Reader:
    """The config with `layer_types`, `num_key_value_heads`, `intermediate_size` and `ffn_layers` in
    place of `block_configs`; as it is without them.

    A layer attends by groups of query heads or not at all, and has an MLP or none. NotYetError for
    linear layers in their place, and for windows.
    """
    if not read.fields.get(BLOCKS):
        return read
    blocks = read.fields[BLOCKS]
    heads, hidden = read.count("num_attention_heads"), read.count("hidden_size")
    if not isinstance(blocks, list) or len(blocks) != read.count("num_hidden_layers"):
        raise InputError(
            f'{read.source}: field "{BLOCKS}" must be a list with one object for each of '
            f"{read.count('num_hidden_layers')} layers"
        )
    kinds, kv_heads, widths, with_ffn = [], [], [], []
    for number, block in enumerate(blocks):
        source = f"{read.source}: {BLOCKS}[{number}]"
        attention, ffn = _half(block, "attention", source), _half(block, "ffn", source)
        absent = attention.flag("no_op", False)
        group = 1 if absent else attention.count("n_heads_in_group", most=heads)
        if heads % group:
            raise InputError(
                f'{attention.source}: field "n_heads_in_group" is {group}; it must divide the '
                f"{heads} heads"
            )
        kinds.append("none" if absent else "full_attention")
        kv_heads.append(heads // group)
        with_ffn.append(int(not ffn.flag("no_op", False)))
        widths.append(_width(ffn, hidden) if with_ffn[-1] else MULTIPLE)
    lists = {
        "layer_types": kinds,
        "num_key_value_heads": kv_heads,
        "intermediate_size": widths,
        FFN_LAYERS: with_ffn,
    }
    fields = {name: value for name, value in read.fields.items() if name != BLOCKS}
    return Reader({**fields, **lists}, read.source)


def _half(block: Any, name: str, source: str) -> Reader:
    """One half of a layer; NotYetError where it has something else than attention or an MLP."""
    half = block.get(name) if isinstance(block, dict) else None
    if not isinstance(half, dict):
        raise InputError(f'{source}: "{name}" is missing; it must be an object')
    read = Reader(half, f"{source}.{name}")
    other = ("replace_with_linear", "window_length", "sparsify", "num_sink_tokens")
    for field in other:
        if read.fields.get(field):
            raise NotYetError(
                f'{read.source}: field "{field}" is {shown(read.fields[field])}, which this '
                "version does not run"
            )
    return read


def _width(ffn: Reader, hidden: int) -> int:
    """Of an MLP: given, or two thirds of a multiple of the hidden size, rounded up."""
    if not ffn.present("ffn_mult"):
        return ffn.count("intermediate_size")
    times = ffn.fields["ffn_mult"]
    if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times <= MULTIPLE:
        raise InputError(
            f'{ffn.source}: field "ffn_mult" is {shown(times)}; it must be a number above 0'
        )
    return -(-int(2 * times * hidden / 3) // MULTIPLE) * MULTIPLE
