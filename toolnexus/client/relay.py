"""Relay tools: declared to the model here, executed by the host elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError
from toolnexus.suspension import RELAYED, Request
from toolnexus.toolspec import Tool, ToolContext, ToolResult, require_tool_name

if TYPE_CHECKING:
    from toolnexus.client.turn import Turn

RESERVED_NAMES: Final = frozenset(
    {
        *("apply_patch", "bash", "edit", "glob", "grep", "memory", "question", "read"),
        *("read_output", "skill", "task", "todowrite", "webfetch", "write"),
    }
)
"""Names of tools that this library and its ports give a model themselves."""


@attrs.frozen
class RelayTool:
    """A tool that the model may call and the host executes. Made by `relay_tool`."""

    name: str
    description: str
    input_schema: Mapping[str, JsonValue] = attrs.field(repr=False)
    source: ClassVar[str] = "relay"
    handles_decline: ClassVar[bool] = True
    relays: ClassVar[bool] = True
    retry_safe: ClassVar[bool] = True

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:  # noqa: ARG002
        """Ask the host for the result, or take it out of the host's answer."""
        if ctx.answer is None:
            return ToolResult.pending(Request(RELAYED, f"Execute the tool {self.name}."))
        if not ctx.answer.ok:
            data = ctx.answer.data
            message = data.get("message") if isinstance(data, dict) else None
            said = [str(text) for text in (ctx.answer.reason, message) if text]
            reason = ": ".join(said) or "no reason given"
            return ToolResult.error(f"relay declined for {self.name}: {reason}")
        given = _result_for(ctx)
        if given is None:
            return ToolResult.error(
                f"no result was supplied for the relayed call {ctx.call_id}"
            )
        return ToolResult(given.get("output"), is_error=given.get("isError") is True)


def relay_tool(name: str, description: str, input_schema: Mapping[str, JsonValue]) -> RelayTool:
    """Return a tool that is declared to the model and never executed here.

    Its calls park the run on one `Request` of kind `tool_call`, whose `data["calls"]` lists
    `id`, `name`, `input` and `arguments` (JSON text as the model wrote it) of every relay call
    of that assistant message. The host answers with
    `data={"results": [{"id", "output", "isError"}]}`, or `{"output": ..., "isError": ...}` for
    the first call alone.

    Raises:
        ConfigError: The name is no tool name, or one of a tool of this library's own; the
            schema is none of an object.
    """
    require_tool_name(name)
    if name in RESERVED_NAMES:
        raise ConfigError(
            f"a relay tool may not be named {name!r}: a built-in tool is; rename it"
        )
    if type(description) is not str:
        raise ConfigError(f"relay tool {name!r}: the description must be a str")
    schema: object = input_schema
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ConfigError(
            f"relay tool {name!r}: input_schema must be a JSON Schema of type 'object', "
            f"not {input_schema!r}"
        )
    codec.check_json(input_schema, f"input_schema of relay tool {name!r}")
    return RelayTool(name, description, codec.copy(input_schema))


def merge_relays(turn: Turn, due: Sequence[int], tools: Mapping[str, Tool]) -> None:
    """Let the relay calls that were opened in this pass wait on one request, the first one's.

    Args:
        turn: Their turn.
        due: Positions of the calls of this pass.
        tools: By name.
    """
    opened = [
        index
        for index in due
        if turn.calls[index].status == "open"
        and turn.calls[index].by.gate is None
        and turn.calls[index].by.before is None
        and turn.calls[index].answer is None
        and getattr(tools.get(turn.calls[index].name), "relays", False) is True
    ]
    if not opened:
        return
    first = turn.calls[opened[0]].request
    assert first is not None  # noqa: S101 - an open call has one
    names = ", ".join(dict.fromkeys(turn.calls[index].name for index in opened))
    request = attrs.evolve(
        first,
        prompt=first.prompt if len(opened) == 1 else f"Execute the tools {names}.",
        data={**(first.data or {}), "calls": [_described(turn, index) for index in opened]},
    )
    turn.share(opened, request)


def _described(turn: Turn, index: int) -> dict[str, Any]:
    call = turn.calls[index]
    args = codec.loads(call.arguments) if call.arguments.strip() else {}
    return {"id": call.id, "name": call.name, "input": args, "arguments": call.arguments}


def _result_for(ctx: ToolContext) -> Mapping[str, Any] | None:
    data = ctx.answer.data if ctx.answer is not None else None
    if not isinstance(data, Mapping):
        return None
    results = data.get("results")
    if isinstance(results, list):
        given = (one for one in results if isinstance(one, Mapping) and "output" in one)
        return next((one for one in given if one.get("id") == ctx.call_id), None)
    calls = (ctx.request.data or {}).get("calls") if ctx.request is not None else None
    is_first = isinstance(calls, list) and bool(calls) and calls[0].get("id") == ctx.call_id
    return data if is_first and "output" in data else None
