"""A model server that is never the bottleneck: one asyncio protocol in a process of its own.

The path says how it behaves: `/d<milliseconds>/<fan-out>/v1`. A request whose transcript has a
tool result is answered with text. Otherwise the model's name decides: `fan` delegates to
`<fan-out>` children by `task`, `nest` to one, `ask` calls the tool that asks, `stream` streams
`PIECES` pieces of text (an HTTP chunk for each, or with a fan-out of 1 in chunks of 16 KB), any
other name calls `add` twice. `steps` calls `look_up` over and over, once in a reply, with some
text, until the transcript has `<fan-out>` results.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import socket
from multiprocessing.connection import Connection

USAGE = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}


def _reply(message: dict[str, object]) -> bytes:
    body = json.dumps(
        {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}
    )
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return f"{head}\r\n{body}".encode()


def _calls(
    name: str, *arguments: dict[str, object], content: str | None = None, first: int = 0
) -> bytes:
    calls = [
        {
            "id": f"c{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(args)},
        }
        for index, args in enumerate(arguments, first)
    ]
    return _reply({"role": "assistant", "content": content, "tool_calls": calls})


def _step(count: int) -> bytes:
    content = (
        f"Step {count}: what is known so far is not enough, so I look up the next part. " * 2
    )
    query = f"everything about customer {count}, with the open orders of the last year"
    return _calls("look_up", {"query": query, "limit": 10}, content=content, first=count)


TEXT = _reply({"role": "assistant", "content": "All done."})
ADD = _calls("add", {"a": 1, "b": 2}, {"a": 3, "b": 4})
ASK = _calls("charge", {"amount": 500})


PIECES = 10_000


def _stream(chunk_bytes: int) -> bytes:
    """Return a streamed reply, an HTTP chunk for each event or for so many bytes."""
    events = []
    for number in range(PIECES):
        choice = {
            "index": 0,
            "delta": {"content": f"word{number % 10} "},
            "finish_reason": None,
        }
        frame = {
            "id": "chatcmpl-9x8y7z",
            "object": "chat.completion.chunk",
            "created": 1790000000,
            "model": "stream",
            "choices": [choice],
        }
        events.append(f"data: {json.dumps(frame)}\n\n".encode())
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events.append(f"data: {json.dumps(last)}\n\n".encode())
    events.append(f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\n".encode())
    events.append(b"data: [DONE]\n\n")
    if chunk_bytes:
        whole = b"".join(events)
        events = [whole[at : at + chunk_bytes] for at in range(0, len(whole), chunk_bytes)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return b"".join([head, b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"])


STREAMS = {0: _stream(0), 1: _stream(16_384)}


class ModelProtocol(asyncio.Protocol):
    """Answers each request by its bytes alone; nothing is parsed that need not be."""

    def __init__(self) -> None:
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end]
            at = head.lower().index(b"content-length:") + 15
            line = head.find(b"\r\n", at)
            length = int(head[at : line if line >= 0 else len(head)])
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            path = head.split(b" ", 2)[1].split(b"/")
            reply = self._choose(body, int(path[2]))
            delay = int(path[1][1:])
            if delay:
                asyncio.get_running_loop().call_later(delay / 1000, self._write, reply)
            else:
                self._write(reply)

    def _choose(self, body: bytes, fan_out: int) -> bytes:
        if b'"steps"' in body:
            count = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
            return TEXT if count >= fan_out else _step(count)
        if b'"role":"tool"' in body or b'"role": "tool"' in body:
            return TEXT
        if b'"stream"' in body and b'"model":"stream"' in body.replace(b": ", b":"):
            return STREAMS[fan_out]
        if b'"ask"' in body:
            return ASK
        if b'"fan"' in body:
            return _calls(
                "task", *({"agent": "leaf", "prompt": f"p{n}"} for n in range(fan_out))
            )
        if b'"nest' in body:
            at = body.index(b'"nest') + 5
            level = int(body[at : body.index(b'"', at)])
            name = f"level{level + 1}"
            return _calls("task", {"agent": name, "prompt": "go"})
        return ADD

    def _write(self, reply: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(reply)


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(ModelProtocol, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.recv)

    with contextlib.suppress(EOFError, KeyboardInterrupt):
        asyncio.run(main())


class BenchServer:
    """The server's process, as a context manager; `url(...)` is a base URL."""

    def __enter__(self) -> BenchServer:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.send(None)
        self._process.join(5)

    def url(self, delay_ms: int = 0, fan_out: int = 0) -> str:
        return f"http://127.0.0.1:{self.port}/d{delay_ms}/{fan_out}/v1"
