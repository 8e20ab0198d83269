"""`@tool`: ordinary Python functions as tools."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from types import CoroutineType, FrameType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

import attrs

from toolnexus.approvals import NeedsApproval, check_template
from toolnexus.codec import JsonValue
from toolnexus.errors import Cancelled, ConfigError, Declined, ToolSchemaError
from toolnexus.failures import failure_text, log_failure
from toolnexus.parts.part import Part, is_parts
from toolnexus.schema import faults
from toolnexus.suspension import Answer, Request
from toolnexus.tools.docstrings import read_docstring
from toolnexus.tools.scope import plain_function, scope_of
from toolnexus.tools.signature import (
    MisfitError,
    Signature,
    explicit_signature,
    infer_signature,
    parameters_of,
)
from toolnexus.tools.texts import text_of
from toolnexus.toolspec import (
    ToolContext,
    ToolResult,
    require_tool_name,
)
from toolnexus.unknown import OnUnknown, require_policy

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


@attrs.frozen(eq=False, slots=False, kw_only=True)
class NativeTool(Generic[P, R_co]):
    """A Python function as a tool; calling it calls the function.

    Made by `tool`. A method that is a tool is one of its instance: `desk.refund` can be given
    to an agent, `Desk.refund` cannot be executed.

    Attributes:
        function: What was decorated.
        name: What the model calls it.
        description: What the model reads to choose it.
        input_schema: JSON Schema of the arguments.
        handles_decline: Whether it runs, with `ctx.answer.ok` False, on a declined request too.
        needs_approval: When a person is asked before it runs; see `tool`.
        retry_safe: Whether a call that may have run may run again; see `tool`.
        on_unknown: What is done about one where it may not; see `tool`.
        source: Always `native`.
    """

    checks_arguments: ClassVar[bool] = True
    """`execute` checks the arguments against the schema; a caller need not do it before."""

    function: Callable[P, R_co]
    name: str
    description: str
    input_schema: Mapping[str, JsonValue] = attrs.field(repr=False)
    handles_decline: bool = False
    needs_approval: NeedsApproval = False
    retry_safe: bool = False
    on_unknown: OnUnknown = "error"
    source: str = attrs.field(default="native", init=False)
    _signature: Signature = attrs.field(repr=False)
    _needs_instance: bool = attrs.field(default=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # What help(), doctest and inspect.signature look at.
        function = self.function
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            if hasattr(function, name):
                self.__dict__[name] = getattr(function, name)
        self.__dict__["__wrapped__"] = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function as it is: nothing is checked, converted or injected."""
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> NativeTool[P, R_co]: ...
    @overload
    def __get__(
        self: NativeTool[Concatenate[S, Q], R_co], instance: S, owner: type
    ) -> NativeTool[Q, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> NativeTool[P, R_co]: ...
    def __get__(self, instance: Any, owner: type) -> NativeTool[Any, R_co]:
        """Return the tool of one instance, where the function is a method."""
        if instance is None or not self._needs_instance:
            return self
        bound = self.function.__get__(instance, owner)
        return attrs.evolve(self, function=bound, needs_instance=False)

    def argument_faults(self, args: dict[str, JsonValue]) -> list[str]:
        """Return what keeps `args` from fitting, as `execute` would find; [] where they fit."""
        return faults(args, self._signature.checked)

    def execute(self, args: dict[str, JsonValue], ctx: ToolContext) -> ToolResult:
        """Check and convert the arguments, run the function, return what it gave.

        Arguments that do not fit, an exception, and a value that is no JSON are error results;
        an exception is logged too. Safe from any thread if the function is.
        """
        if self._needs_instance:
            return ToolResult.error(f"{self.name} is a method; use the tool of an instance")
        try:
            values = self._signature.bind(args, ctx)
        except MisfitError as misfit:
            return ToolResult.error(str(misfit))
        call: Callable[..., Any] = self.function
        try:
            value = call(**values)
        except Declined as declined:
            return ToolResult.error(str(declined))
        except Exception as error:
            if isinstance(error, Cancelled) and ctx.cancel.is_cancelled:
                raise
            log_failure(logger, self.name, error, ctx)
            return ToolResult.error(failure_text(error))
        if isinstance(value, Request):
            logger.error("tool %s failed: %s", self.name, _BARE_REQUEST)
            return ToolResult.error(_BARE_REQUEST)
        return result_of(value)


@overload
def tool(
    fn: Callable[P, R_co],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, JsonValue] | None = None,
    handles_decline: bool = False,
    needs_approval: NeedsApproval = False,
    retry_safe: bool = False,
    on_unknown: OnUnknown = "error",
) -> NativeTool[P, R_co]: ...
@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, JsonValue] | None = None,
    handles_decline: bool = False,
    needs_approval: NeedsApproval = False,
    retry_safe: bool = False,
    on_unknown: OnUnknown = "error",
) -> Callable[[Callable[P, R_co]], NativeTool[P, R_co]]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, JsonValue] | None = None,
    handles_decline: bool = False,
    needs_approval: NeedsApproval = False,
    retry_safe: bool = False,
    on_unknown: OnUnknown = "error",
) -> Any:
    """Make a tool of a function: `@tool`, `@tool(name=...)` or `tool(fn, name=...)`.

    The schema comes from the type hints, the description from the docstring. A parameter
    hinted `ToolContext` (or one called `ctx` or `context` without a hint) gets the context and
    is not in the schema. Dataclasses, attrs classes and enums arrive as instances, and so do
    date, datetime, time, Decimal, UUID and Path, which the model writes as text; a datetime or
    time that is written without an offset arrives naive.

    Args:
        fn: A function, a bound method, a partial, or a method in its class body.
        name: What the model calls it; the function's own name unless given.
        description: Goes before the docstring's first sentence.
        input_schema: Goes before the type hints. Arguments are then passed on unconverted: by
            keyword, or all in one dict where the only parameter beside the context is a dict
            (or has no hint) and is not named in the schema.
        handles_decline: The tool runs too, with `ctx.answer.ok` False, when a person declines.
        needs_approval: Ask a person before it runs. True; or the question, in which `{name}`
            stands for an argument; or a function of arguments and context that returns a bool
            or the question, and that asks where it raises.
        retry_safe: A call that was in flight when its process ended runs again by itself, with
            the same `idempotency_key`: the tool only reads, or gives the key to what it calls.
        on_unknown: Else the model is told that its outcome is unknown; `ask` asks a person
            whether it runs again.

    Raises:
        ConfigError: It is to run again, and a person is to be asked as well.
        ToolSchemaError: No model could call it; the message names function and parameter.
    """
    options = {
        "name": name,
        "description": description,
        "input_schema": input_schema,
        "handles_decline": handles_decline,
        "needs_approval": needs_approval,
        "retry_safe": retry_safe,
        "on_unknown": on_unknown,
    }
    if fn is not None:
        return _make(fn, _caller(), **options)
    return lambda function: _make(function, _caller(), **options)


def _caller() -> FrameType | None:
    frame = inspect.currentframe()
    here = frame.f_back if frame else None
    return here.f_back if here else None


def _make(
    fn: Any,
    caller: FrameType | None,
    *,
    name: Any,
    description: Any,
    input_schema: Any,
    handles_decline: Any,
    needs_approval: Any,
    **policy: Any,
) -> NativeTool[..., Any]:
    fn = getattr(fn, "__func__", fn) if isinstance(fn, staticmethod) else fn
    written = plain_function(fn) if callable(fn) else fn
    label = getattr(written, "__qualname__", repr(fn))
    _require_function(fn, label)
    require_policy(**policy, owner=label)
    parameters, needs_instance = parameters_of(fn, label)
    documentation = read_docstring(written.__doc__)
    scope = scope_of(fn, caller)
    signature = (
        infer_signature(parameters, scope, documentation, label)
        if input_schema is None
        else explicit_signature(parameters, scope, input_schema, label)
    )
    return NativeTool(
        function=fn,
        name=_tool_name(fn, name, label),
        description=documentation.summary if description is None else description,
        input_schema=signature.schema,
        handles_decline=handles_decline,
        needs_approval=_checked_gate(needs_approval, signature, label),
        **policy,
        signature=signature,
        needs_instance=needs_instance,
    )


def _checked_gate(gate: Any, signature: Signature, label: str) -> NeedsApproval:
    if isinstance(gate, str):
        try:
            check_template(gate, signature.schema.get("properties", {}))
        except ConfigError as error:
            raise ToolSchemaError(f"{label}: {error}") from None
    elif not isinstance(gate, bool) and not callable(gate):
        raise ToolSchemaError(
            f"{label}: needs_approval must be a bool, a question or a function, not {gate!r}"
        )
    return gate  # type: ignore[no-any-return]  # checked above


def _tool_name(fn: Any, name: Any, label: str) -> str:
    own = getattr(fn, "__name__", "") if name is None else name
    try:
        return require_tool_name(own)
    except ConfigError as error:
        hint = "; give it one: tool(..., name=...)" if name is None else ""
        raise ToolSchemaError(f"{label}: {error}{hint}") from None


def _require_function(fn: Any, label: str) -> None:
    if isinstance(fn, NativeTool):
        raise ToolSchemaError(f"{label} is a tool already; make another of its `function`")
    if isinstance(fn, (classmethod, type)) or not callable(fn):
        kind = type(fn).__name__ if isinstance(fn, classmethod) else repr(fn)
        raise ToolSchemaError(f"{label}: a tool is a function or a bound method, not {kind}")
    for each in (fn, type(fn).__call__):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise ToolSchemaError(f"{label} is async; tools are called from threads, use def")
        if inspect.isgeneratorfunction(each):
            raise ToolSchemaError(
                f"{label} is a generator; return one value instead of yielding"
            )


# -- what a function gave ----------------------------------------------------------------------

_BARE_REQUEST: Final = (
    "the tool returned a Request, so nobody was asked; to ask, it must return "
    "ToolResult.pending(request)"
)


def result_of(value: object) -> ToolResult:
    """Return the result that a function's return value means; what is no JSON is an error.

    Text goes as it is, None as "", other values as compact JSON; dataclasses, attrs instances,
    enums, dates, times, decimals, UUIDs and paths are written too. A Part, and a list of Parts
    and texts, is shown to the model.
    """
    if isinstance(value, ToolResult):
        return value
    if is_parts(value):
        try:
            return ToolResult.ok(value)
        except ConfigError as error:
            return ToolResult.error(f"the tool returned what cannot be shown: {error}")
    if value is None:
        return ToolResult("")
    if isinstance(value, str):
        return ToolResult(value if type(value) is str else str.__str__(value))
    if isinstance(value, CoroutineType):
        value.close()  # or Python warns later that nobody awaited it
    try:
        text = json.dumps(
            value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
        )
    except Exception as error:  # noqa: BLE001 - reading the fields of a foreign object runs its code
        return ToolResult.error(
            f"the tool returned a {type(value).__name__}, which is not JSON: {error}"
        )
    return ToolResult(text)


def _plain(value: Any) -> JsonValue:
    """Return the JSON of one value that `json` does not know."""
    if isinstance(value, Part):
        raise TypeError("a Part is returned by itself or in a list, never deeper")
    if isinstance(value, enum.Enum):
        return value.value
    text = text_of(value)
    if text is not None:
        return text
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Answer):
        return value.to_dict()  # without its secrets
    if attrs.has(type(value)):
        return {each.name: getattr(value, each.name) for each in attrs.fields(type(value))}
    raise TypeError(f"no JSON for {type(value).__name__}")
