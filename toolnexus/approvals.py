"""Approvals: what a gated tool asks before it runs, and what an approval is bound to."""

from __future__ import annotations

import hashlib
import logging
import string
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from toolnexus import codec
from toolnexus.codec import JsonValue
from toolnexus.errors import ConfigError
from toolnexus.keywords import echo
from toolnexus.suspension import Request

if TYPE_CHECKING:
    from toolnexus.toolspec import Tool, ToolContext

logger = logging.getLogger(__name__)

APPROVAL_GATE: Final = "toolnexus.approval"
"""The name of the gate, among those that a call passes before it is executed."""

Verdict: TypeAlias = Literal["allow", "ask", "deny"]

_VERDICTS: Final = ("allow", "ask", "deny")
_SHOWN_CHARS: Final = 200
_EDIT_KEYS: Final = ("args", "message", "digest")


@attrs.frozen(kw_only=True)
class ProposedCall:
    """A call that a policy decides on.

    Attributes:
        tool: The tool's name.
        arguments: What it would be executed with; a copy.
        handle_id: The handle whose turn it is; None outside a runtime.
        agent: The agent's name; None outside a runtime.
        needs_approval: Whether the tool itself wants to be approved.
    """

    tool: str
    arguments: dict[str, JsonValue] = attrs.field(repr=False)
    handle_id: str | None = None
    agent: str | None = None
    needs_approval: bool = False


ApprovalPolicy: TypeAlias = Callable[[ProposedCall], Verdict]
"""Decides on each call before it is executed: the host's last word. One that raises, or returns
anything else, means `ask`."""

NeedsApproval: TypeAlias = (
    "bool | str | Callable[[dict[str, JsonValue], ToolContext], bool | str]"
)
"""Whether a tool is asked for: always; with a prompt, in which `{name}` stands for an argument;
or as a function of arguments and context says, which may return a prompt."""


def digest_of(tool: str, args: Mapping[str, JsonValue]) -> str:
    """Return what an approval is bound to: SHA-256 over the tool's name and the arguments."""
    text = codec.canonical([tool, args])
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def approval_request(tool: str, args: Mapping[str, JsonValue], prompt: str) -> Request:
    """Return the question whether `tool` may run with `args`."""
    shown: dict[str, Any] = {
        "tool": tool,
        "args": codec.copy(dict(args)),
        "digest": digest_of(tool, args),
    }
    return Request("approval", prompt, data=shown)


def gate_of(tool: Tool) -> object:
    """Return what `tool` says of being approved, as it stands; None where it wants none.

    A gate that is there and cannot be read asks.
    """
    try:
        gate: object = getattr(tool, "needs_approval")  # noqa: B009 - no tool has to have one
    except AttributeError:
        if not hasattr(type(tool), "needs_approval"):
            return None
        logger.exception("needs_approval of tool %s failed; a person is asked", tool.name)
        return True
    return None if gate is False else gate


def wants_approval(tool: Tool, args: dict[str, JsonValue], ctx: ToolContext) -> str | None:
    """Return the question that `tool` wants to be asked with these arguments; None for none.

    A gate that raises, or says something that is no yes and no no, asks.
    """
    needs = gate_of(tool)
    if needs is None:
        return None
    if not callable(needs):
        template = needs if isinstance(needs, str) else ""
        return fill(template, args).strip() or default_prompt(tool.name, args)
    try:
        said: object = needs(codec.copy(args), ctx)
    except Exception:
        logger.exception("needs_approval of tool %s failed; a person is asked", tool.name)
        said = True
    if said is False:
        return None
    question = printable(said, 10 * _SHOWN_CHARS) if isinstance(said, str) else ""
    return question.strip() or default_prompt(tool.name, args)


def default_prompt(tool: str, args: Mapping[str, JsonValue]) -> str:
    """Return a question that shows the call as it is."""
    return f"Run {shown_call(tool, args)}?"


def shown_call(tool: str, args: Mapping[str, JsonValue]) -> str:
    """Return the call on one line, as a person is shown it."""
    given = ", ".join(f"{name}={echo(value, _SHOWN_CHARS)}" for name, value in args.items())
    return printable(f"{tool}({given})", 10 * _SHOWN_CHARS)


def verdict_of(policy: ApprovalPolicy | None, call: ProposedCall) -> Verdict:
    """Return what the host, or else the tool, says of a call."""
    if policy is None:
        return "ask" if call.needs_approval else "allow"
    try:
        said: object = policy(call)
    except Exception:
        logger.exception("approval_policy failed on tool %s; a person is asked", call.tool)
        return "ask"
    if isinstance(said, str) and said in _VERDICTS:
        return said  # type: ignore[return-value]  # one of the three
    logger.warning(
        "approval_policy said %s of tool %s, not allow, ask or deny; a person is asked",
        echo(said),
        call.tool,
    )
    return "ask"


def check_template(template: str, known: Iterable[str]) -> None:
    """Check that a prompt names nothing but arguments.

    Raises:
        ConfigError: It does; or it reaches into an argument, which a model could abuse.
    """
    names = set(known)
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"needs_approval: {template!r} is no template: {error}") from None
    for _, field, form, conversion in parts:
        if field is None:
            continue
        if field not in names or form or conversion:
            raise ConfigError(
                f"needs_approval: {{{field}}} of {template!r} must be one of the arguments "
                f"({', '.join(sorted(names)) or 'there are none'}), as it is"
            )


def fill(template: str, args: Mapping[str, JsonValue]) -> str:
    """Return the template with arguments for their names, each on one line and cut short."""
    out = ""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        return printable(template, 10 * _SHOWN_CHARS)
    for literal, field, _, _ in parts:
        out += literal
        if field is not None:
            value = args.get(field, "(not given)")
            text = value if isinstance(value, str) else echo(value, _SHOWN_CHARS)
            out += printable(text, _SHOWN_CHARS)
    return out


def printable(text: str, limit: int) -> str:
    """Return `text` on one line: what a model wrote must not pass for the host's own words."""
    seen: list[str] = []
    for one in text:
        # Also what is not seen at all, or turns the direction of what follows.
        if one.isprintable():
            seen.append(one)
        elif seen[-1:] != [" "]:
            seen.append(" ")
        if len(seen) > limit:
            return f"{''.join(seen[: limit - 1])}…"
    return "".join(seen)


# -- what a person may say to it ---------------------------------------------------------------


def edited_args(data: JsonValue) -> dict[str, JsonValue] | None:
    """Return the arguments that an approval changes the call to; None where it changes none."""
    args = data.get("args") if isinstance(data, Mapping) else None
    return dict(args) if isinstance(args, Mapping) else None


def approval_faults(
    request: Request, data: JsonValue, misfits: Callable[[dict[str, JsonValue]], list[str]]
) -> list[str]:
    """Return what keeps `data` from being said with a yes; [] where nothing does.

    Args:
        request: The approval's.
        data: Any falsy value changes nothing.
        misfits: What keeps arguments from fitting the tool.
    """
    if not data:
        return []
    if not isinstance(data, Mapping):
        return [f"data is {echo(data)}; to change the arguments give {{'args': {{...}}}}"]
    strangers = [key for key in data if key not in _EDIT_KEYS]
    if strangers:
        return [
            f"data has no {echo(key, 40)}; to change the arguments give {{'args': {{...}}}}"
            for key in strangers
        ]
    shown = (request.data or {}).get("digest")
    if data.get("digest") not in (None, shown):
        return [f"digest is {echo(data['digest'])}, but what was shown has {shown}"]
    if data.get("args") is None:
        return []
    edited = edited_args(data)
    if edited is None:
        return [f"args is {echo(data['args'])}, but must be an object"]
    return misfits(edited)
