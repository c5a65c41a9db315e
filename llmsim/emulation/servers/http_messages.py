"""What goes over a connection to a server for the OpenAI API, and comes from it, as bytes."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from llmsim.emulation.requests import request_name
from llmsim.emulation.servers.doors import Door

LONGEST_LINE = 1 << 24
ERROR = '{"error":'
"""How an error begins within a stream."""
_OURS = (b"content-length:", b"x-request-id:", b"expect:", b"connection:")
_json = msgspec.json.Encoder()


async def read_head(reader: asyncio.StreamReader) -> list[bytes]:
    """The lines before the empty one; none at the connection's end."""
    lines = []
    with suppress(ConnectionError):
        while (line := await reader.readline()) not in (b"\r\n", b""):
            lines.append(line)
    return lines


def header(head: list[bytes], name: str) -> str | None:
    """The value of a header, or None."""
    wanted = name.encode() + b":"
    for line in head[1:]:
        if line.lower().startswith(wanted):
            return line[len(wanted) :].decode("latin-1").strip()
    return None


async def refusal_of(reader: asyncio.StreamReader) -> str:
    """What a server has said instead of an answer; empty: it has answered."""
    status = await reader.readline()
    said = b""
    while part := await reader.read(LONGEST_LINE):
        said += part
    text = said.split(b"\r\n\r\n", 1)[-1][:4096].decode(errors="replace")
    is_error = b" 200 " not in status or ERROR in text
    return " ".join(text.split()) if is_error else ""


def request(head: list[bytes], body: bytes, row: int, door: Door, *, closes: bool = False) -> bytes:
    """As the client has sent it, with a name that says its row, and the rank that is chosen;
    `closes`: the connection ends with the answer. -1 in place of a row: it has no name.
    """
    lines = [head[0], *(line for line in head[1:] if not line.lower().startswith(_OURS))]
    lines.append(f"Content-Length: {len(body)}\r\n".encode())
    if closes:
        lines.append(b"Connection: close\r\n")
    if row >= 0:
        lines.append(f"X-Request-Id: {request_name(row)}\r\n".encode())
        if door.rank is not None:
            lines.append(f"X-data-parallel-rank: {door.rank}\r\n".encode())
    return b"".join(lines) + b"\r\n" + body


def failed(status: str, why: str) -> bytes:
    """An answer that says why there is none."""
    body = _json.encode({"error": {"message": why, "code": int(status[:3])}})
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def prompt_tokens(asked: dict[str, Any]) -> int:
    """Tokens of a prompt: one for each word (`llmsim.emulation.words`)."""
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt.split())
    messages = asked.get("messages")
    said = [_text_of(one) for one in messages or () if isinstance(one, dict)]
    return sum(len(text.split()) for text in said)


def _text_of(message: dict[str, Any]) -> str:
    """What is said in a message: a text, or parts of which some are texts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [one.get("text") for one in parts if isinstance(one, dict)]
    return " ".join(text for text in texts if isinstance(text, str))
