"""Compares what workloads say about content without caring for the names of keys."""


def blocks(workload):
    """Keys of every request as a list."""
    return [
        workload.keys[low:high].tolist()
        for low, high in zip(workload.key_offsets[:-1], workload.key_offsets[1:], strict=True)
    ]


def sharing(rows):
    """The same lists with names replaced by their order of first appearance."""
    names = {}
    return [[names.setdefault(name, len(names)) for name in row] for row in rows]
