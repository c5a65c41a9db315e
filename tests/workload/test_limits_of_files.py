"""A line, a value of a list, and a file that is read as a whole have a most number of bytes, packed
or not.
"""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from llmsim.config.errors import InputError
from llmsim.config.files import reading
from llmsim.validation import read_recording
from llmsim.workload.dataset import load_dataset
from llmsim.workload.formats.bench import vllm_bench

LONG = reading.MAX_LINE_BYTES + 5
GOOD = {
    "llmservingsim": (
        b'{"input_toks": 5, "output_toks": 2, "arrival_time_ns": 0}\n',
        b'{"input_toks": 5, "x": "',
    ),
    "mooncake": (
        b'{"timestamp": 0, "input_length": 5, "output_length": 2}\n',
        b'{"timestamp": 0, "x": "',
    ),
    "sharegpt": (
        b'{"id": "a", "conversations": []}\n',
        b'{"conversations": [{"from": "human", "value": "',
    ),
    "csv": (b"timestamp,input_tokens,output_tokens\n1,2,3\n", b"4,5,"),
}
"""Format -> a sound beginning, and how a line begins that never ends."""


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_line_without_an_end_is_refused_by_its_number_and_not_read(
    name: str, tmp_path: Path
) -> None:
    sound, endless = GOOD[name]
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(sound + endless)
        for _ in range(4):
            stream.write(b"1" * LONG)
    number = sound.count(b"\n") + 1
    tracemalloc.start()
    with pytest.raises(InputError, match=rf"bomb.gz:{number}:1: longer than the 64 MiB"):
        load_dataset(str(path), known_models=(), granularity=16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (
        peak < 6 * LONG
    )  # of the line's 4 * LONG bytes, and their copies, only a part was ever there


@pytest.mark.parametrize("name", ["mooncake", "llmservingsim"])
def test_a_long_line_that_ends_in_time_is_read(name: str, tmp_path: Path) -> None:
    sound, _ = GOOD[name]
    path = tmp_path / "trace"
    padding = b" " * (4 << 20)
    path.write_bytes(sound[:-1] + padding + b"\n" + sound)
    assert len(load_dataset(str(path), known_models=(), granularity=16)) == 2


def test_what_is_read_as_a_whole_has_a_limit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b'{"ttfts": [' + b"1," * 3000))
    for module in ("llmsim.validation.logs.files", "llmsim.config.files.reading"):
        monkeypatch.setattr(f"{module}.MAX_WHOLE_BYTES", 1000)
    with pytest.raises(InputError, match="holds more than the 0 MiB that are read as a whole"):
        read_recording(path)
    monkeypatch.setattr(vllm_bench, "MAX_WHOLE_BYTES", 100)
    bench = tmp_path / "bench.json"
    bench.write_text('{"input_lens": [1], "output_lens": [1], "errors": ["' + "x" * 200 + '"]}')
    with pytest.raises(InputError, match="holds more than"):
        load_dataset(str(bench), known_models=(), granularity=0)
