"""Logs of OpenAI's answers in JSON Lines, requests to its API, and block ids that contradict a
block size.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.core import Severity, Workload, severity_of
from llmsim.workload import load_dataset
from llmsim.workload.formats import Trace, read_trace
from llmsim.workload.options import TraceOptions

SAMPLES = Path(__file__).parent / "samples"
NS = 1000


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def told(path: Path, **options: Any) -> Trace:
    return read_trace(path, known_models=(), granularity=16, options=TraceOptions(**options))


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return list(zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True))


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        told(path, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        {"created": 5, "prompt_tokens": 7, "completion_tokens": 3},
        {"timestamp_ms": 5000, "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
        {"created_at": "2024-05-01T12:00:05Z", "usage": {"input_tokens": 7, "output_tokens": 3}},
        {"startTime": "2024-05-01 12:00:05", "response": {"usage": {"prompt_tokens": 7,
         "completion_tokens": 3}}},
        {"created": 5, "usage.prompt_tokens": 7, "usage.completion_tokens": 3},
        {"Time": "5", "Prompt_Tokens": 7, "OSL": 3},
    ],
)  # fmt: skip
def test_usual_names_of_a_log_are_known(row: dict[str, Any], tmp_path: Path) -> None:
    later = json.loads(json.dumps(row).replace("00:05", "00:06.5"))
    for name, value in row.items():
        if value in (5, 5000, "5"):
            later[name] = type(value)(float(value) * 1.3) if value == 5000 else 6.5
    trace = told(written(tmp_path, row, later))
    assert trace.format == "jsonl"
    assert trace.workload.arrival_ps.tolist() == [0, 1_500_000_000 * NS]
    assert lengths(trace.workload) == [(7, 3), (7, 3)]


def test_keys_may_be_named_and_lie_in_objects(tmp_path: Path) -> None:
    rows = [{"when": 5 * n, "n": {"in": 7 + n, "out": {"all": 3}}, "session_id": n} for n in (0, 1)]
    path = written(tmp_path, *rows)
    assert "(keys when, n.in, n.out.all, session_id; 'trace:FILE,columns=" in refused(path)
    text = f"trace:{path},columns=when|n.in|n.out.all,unit=ms"
    made = load_dataset(text, known_models=(), granularity=0)
    assert made.arrival_ps.tolist() == [0, 5_000_000 * NS]
    assert lengths(made) == [(7, 3), (8, 3)]
    assert made.session_id == ["0", "1"]
    untimed = told(path, columns=("", "n.in", "n.out.all")).workload
    assert untimed.arrival_ps.tolist() == [0, 0]
    assert any("no arrivals are named" in note for note in untimed.notes)
    assert ' no line has a number under "n.inn" (did you mean "n.in"?); the first has' in refused(
        path, columns=("when", "n.inn", "n.out.all")
    )
    assert '"n.out" cannot be the key of a value here' in refused(
        path, columns=("when", "n.out", "n.out.all")
    )
    assert '"n.in" is named twice' in refused(path, columns=("n.in", "n.in", "n.out.all"))


def test_failures_are_requests_without_tokens_and_need_no_time(tmp_path: Path) -> None:
    answer = {"created": 9, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    path = written(tmp_path, answer, {"error": "x"}, {"usage": {"prompt_tokens": 4}}, answer)
    notes = told(path).workload.notes
    assert any("2 requests without prompt or answer tokens are left out" in note for note in notes)
    path = written(tmp_path, answer, {"usage": answer["usage"]})
    assert ':2:1: "created" is missing' in refused(path)
    path = written(tmp_path, answer, {**answer, "created": "soon"})
    assert ':2:1: "created" is "soon", but must be a time of at most' in refused(path)
    path = written(tmp_path, answer, {**answer, "usage": {"prompt_tokens": "7"}})
    assert ":2:1" not in refused(path) and '"usage.prompt_tokens": expected "int' in refused(path)


def test_batches_and_single_rows_of_a_log_agree(tmp_path: Path) -> None:
    """A row with a blank in front is read alone, and so are its neighbours."""
    rows = [
        {"created": 1e9 + n / 3 if n % 3 else 10**9 + n, "usage": {"prompt_tokens": n % 7,
         "completion_tokens": 4}, "model": "m" * (n % 2) or None, "request_id": n, "session_id": n}
        for n in range(40)
    ]  # fmt: skip
    path = written(tmp_path, *rows)
    together = told(path).workload
    path.write_text(" " + path.read_text())
    alone = told(path).workload
    assert together.arrival_ps.tolist() == alone.arrival_ps.tolist()
    assert lengths(together) == lengths(alone)
    assert together.request_id == alone.request_id and together.request_id[0] == "1"
    assert together.session_id == alone.session_id
    assert len(told(path, limit=5).workload) == 5


def test_names_of_other_formats_keep_their_format(tmp_path: Path) -> None:
    row = {"timestamp": 5, "input_tokens": 7, "output_tokens": 3}
    assert told(written(tmp_path, row)).format == "mooncake"
    assert told(written(tmp_path, row), format="jsonl").format == "jsonl"
    assert "format=jsonl reads it as such" in refused(written(tmp_path, row), unit="s")
    text = {"prompt": "x" * 8, "timestamp": 0, "input_length": 9, "output_length": 3}
    assert told(written(tmp_path, text)).format == "mooncake"
    counted = {"prompt": "x" * 8, "created": 0, "prompt_tokens": 9, "completion_tokens": 3}
    assert told(written(tmp_path, counted)).format == "jsonl"
    texts = {"input": "Say hello.", "output": "Hello."}
    assert "not a trace that is known" in refused(written(tmp_path, texts))
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"created": 1, "prompt_tokens": 2, "completion_tokens": 3}]))
    assert "one JSON array; write each of them as a line of its own" in refused(path)


def test_requests_of_a_batch_have_the_length_of_their_limit(tmp_path: Path) -> None:
    made = told(SAMPLES / "openai_batch.jsonl").workload
    assert made.request_id == ["request-1", "request-2", "request-3"]
    assert any("answers are as long as max_tokens allows" in note for note in made.notes)
    assert any("their token counts are estimates" in note for note in made.notes)
    custom = told(SAMPLES / "vllm_custom.jsonl").workload
    assert not any("max_tokens" in note for note in custom.notes)
    body = {"prompt": "abc", "max_tokens": 4}
    path = written(tmp_path, {"created": 1.5, **body}, {"created": 2, **body})
    timed = told(path).workload
    assert timed.arrival_ps.tolist() == [0, 500_000_000 * NS]
    said = [{"role": "user", "content": "a" * (1 << 19)}]
    request = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
    path = written(tmp_path, {**request, "body": {"messages": said, "max_tokens": 4}})
    assert lengths(told(path).workload) == [(1 << 17, 4)]
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    path = written(tmp_path, asked, asked)
    assert "format=openai takes lines with max_tokens as requests" in refused(path)
    assert lengths(told(path, format="openai").workload) == [(2, 4)] * 2
    assert lengths(told(path, format="openai", limit=1).workload) == [(2, 4)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": {"prompt": "a"}}, ':2:1: "body.max_tokens" is missing, the length of the'),
        ({"prompt": "a"}, ':2:1: "output_tokens" is missing, the length of the'),
        ({"body": {"max_tokens": 3}}, ":2:1: no prompt: a request has body.prompt, a text or"),
        ({"body": {"prompt": ["a", "b"], "max_tokens": 3}}, ":2:1: no prompt: "),
        ({"body": {"prompt": "a", "max_tokens": 2.5}}, ':2:1: "body.max_tokens" is 2.5, but'),
        ({"body": 3}, '"body": expected "object | null", got "int"'),
    ],
)
def test_requests_that_cannot_be_read(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    sound = {"custom_id": "x", "body": {"prompt": "a", "max_tokens": 3}}
    assert said in refused(written(tmp_path, sound, row))


def test_what_changes_the_meaning_of_figures_is_shown_by_every_run(tmp_path: Path) -> None:
    talk = tmp_path / "t.json"
    talk.write_text((SAMPLES / "sharegpt.json").read_text())
    row = {"input_length": 3, "output_length": 4}
    for path, sentences in (
        (talk, ("token counts are estimates", "conversations have no times")),
        (
            SAMPLES / "openai_batch.jsonl",
            ("no arrivals are", "answers are as", "prompts are given"),
        ),
        (written(tmp_path, row), ("no timestamps, so all requests begin at 0",)),
    ):
        shown = [n for n in told(path).workload.notes if severity_of(n) is Severity.DECISION]
        assert len(shown) == len(sentences)
        assert all(any(sentence in note for note in shown) for sentence in sentences)
    spread = told(talk, rate=2.0).workload.notes
    assert sum(severity_of(note) is Severity.DECISION for note in spread) == 1


def hashed(tokens: int, ids: int) -> dict[str, Any]:
    return {
        "timestamp": 1, "input_length": tokens, "output_length": 1, "hash_ids": [*range(ids)]
    }  # fmt: skip


def test_block_ids_of_another_size_are_refused_with_the_size(tmp_path: Path) -> None:
    path = written(tmp_path, hashed(40, 1), hashed(1000, 63), hashed(65, 5), hashed(64, 4))
    path = written(tmp_path, *[hashed(16 * n + 3, n + 1) for n in (0, 40, 3)])
    assert refused(path).endswith(
        "t.jsonl:2:1: has 41 hash_ids, but a prompt of 643 tokens has 2 blocks of 512; every line "
        "fits blocks of 16, which block=16 says"
    )
    assert not [note for note in told(path, block=16).workload.notes if "hash_ids" in note]
    full_blocks_only = written(tmp_path, *[hashed(64 * n + 3, n) for n in (1, 40, 3)])
    assert "block=64 says" in refused(full_blocks_only)


def test_more_block_ids_than_blocks_are_noted_with_their_number(tmp_path: Path) -> None:
    path = written(tmp_path, hashed(512, 1), hashed(1000, 6), hashed(1000, 2), hashed(600, 3))
    notes = [note for note in told(path).workload.notes if "hash_ids" in note]
    assert notes == [
        f"{path}:2: has 6 hash_ids, but a prompt of 1000 tokens has 2 blocks of 512; 2 such lines, "
        "whose last ids are not used; block= names the block size"
    ]
    fewer = written(tmp_path, hashed(6755, 4), hashed(4096, 0), hashed(600, 1))
    assert not [note for note in told(fewer).workload.notes if "hash_ids" in note]
    rows = [{**hashed(40, 4), "chat_id": n, "timestamp": n} for n in range(3)]
    assert any(
        "has 4 hash_ids, but a prompt of 40 tokens has 3 blocks of 16; 3 such lines" in note
        for note in told(written(tmp_path, *rows)).workload.notes
    )
