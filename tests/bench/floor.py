"""What a careful user writes by hand: the same posts, and the same two function calls."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import requests

from toolnexus import Request, ToolContext, ToolResult, tool

KEY = "bench-key"
PROMPT = "Add 1 and 2, and 3 and 4."
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
TIMEOUT = 60


@tool
def add(a: int, b: int) -> str:
    """Add two whole numbers."""
    return str(a + b)


@tool
def charge(amount: int, ctx: ToolContext) -> ToolResult:
    """Charge the customer's card."""
    if ctx.answer is None:
        return ToolResult.pending(Request("approval", f"Approve ${amount} charge?"))
    return ToolResult.ok("charged")


FUNCTIONS: dict[str, Any] = {"add": add.function, "charge": lambda amount: f"charged {amount}"}


def declared(*tools: Any) -> list[dict[str, Any]]:
    """Return the declarations that a request carries."""
    return [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "description": one.description,
                "parameters": dict(one.input_schema),
            },
        }
        for one in tools
    ]


class Floor:
    """The floor: two posts with `json=` by an ordinary keep-alive session."""

    def __init__(self, base_url: str, model: str, *tools: Any) -> None:
        self.url = f"{base_url}/chat/completions"
        self.model = model
        self.tools = declared(*tools)
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {KEY}"

    def body(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": self.model, "messages": messages}
        return {**body, "tools": self.tools, "tool_choice": "auto"} if self.tools else body

    def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        response = self.session.post(self.url, json=self.body(messages), timeout=TIMEOUT)
        response.raise_for_status()
        return response.json()["choices"][0]["message"]

    def turn(self) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        message = self.ask(messages)
        messages.append(message)
        for call in message["tool_calls"]:
            function = FUNCTIONS[call["function"]["name"]]
            output = function(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
        return self.ask(messages)["content"]


class Prepared(Floor):
    """The same through the session's adapter, its settings merged once."""

    def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        request = requests.Request(
            "POST", self.url, headers=HEADERS, data=json.dumps(self.body(messages))
        )
        adapter = self.session.get_adapter(self.url)
        response = adapter.send(request.prepare(), timeout=TIMEOUT)
        return json.loads(response.content)["choices"][0]["message"]


class HttpClient(Floor):
    """The same by `http.client`."""

    def __init__(self, base_url: str, model: str, *tools: Any) -> None:
        super().__init__(base_url, model, *tools)
        parts = urlsplit(self.url)
        self.path = parts.path
        self.connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)

    def post(self, body: bytes) -> bytes:
        self.connection.request("POST", self.path, body, HEADERS)
        return self.connection.getresponse().read()

    def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        reply = self.post(json.dumps(self.body(messages)).encode())
        return json.loads(reply)["choices"][0]["message"]


class RawSocket(Floor):
    """Bytes that were built before, by a bare socket: what the server itself takes."""

    def __init__(self, base_url: str, model: str, *tools: Any) -> None:
        super().__init__(base_url, model, *tools)
        parts = urlsplit(self.url)
        self.sock = socket.create_connection((parts.hostname, parts.port), TIMEOUT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire: list[bytes] = []
        head = "\r\n".join(f"{name}: {value}" for name, value in HEADERS.items())
        user = {"role": "user", "content": PROMPT}
        reply = {"role": "assistant", "content": None, "tool_calls": []}
        result = {"role": "tool", "tool_call_id": "c0", "content": "3"}
        for messages in ([user], [user, reply, result, result]):
            body = json.dumps(self.body(messages))
            self.wire.append(
                f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{head}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )

    def turn(self) -> str:
        for request in self.wire:
            self.sock.sendall(request)
            # A reply is far smaller than one read, and written at once by the server.
            self.sock.recv(65_536)
        return ""
