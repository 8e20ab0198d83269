"""What a function takes: the schema a model sees, and how arguments become its parameters."""

from __future__ import annotations

import copy
import inspect
from collections import abc
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin

import attrs

from toolnexus.codec import JsonValue, check_json
from toolnexus.errors import ToolSchemaError, WireFormatError
from toolnexus.keywords import echo
from toolnexus.schema import faults, misfit_text
from toolnexus.tools.docstrings import Documentation
from toolnexus.tools.inference import Convert, Shapes, describe, split_optional
from toolnexus.tools.records import NO_DEFAULT
from toolnexus.tools.scope import Scope
from toolnexus.tools.texts import accepting
from toolnexus.toolspec import ToolContext

_CONTEXT_NAMES: Final = ("ctx", "context")
_UNKNOWN: Final = (inspect.Parameter.empty, Any, object)
_Parameters: TypeAlias = list[inspect.Parameter]


class MisfitError(Exception):
    """Arguments that the function cannot be called with; the text is for the model."""


@attrs.frozen
class Signature:
    """How arguments reach one function.

    Attributes:
        schema: JSON Schema of the arguments, as models see it.
        checked: The same, but None is accepted wherever the hint is Optional, and a number
            where it is Decimal.
        converts: For each argument whose JSON is not its value yet, what makes the value.
        contexts: The parameters that get the `ToolContext`.
        whole: The parameter that gets all arguments as one dict; None: by keyword.
    """

    schema: dict[str, JsonValue]
    checked: dict[str, JsonValue]
    converts: tuple[tuple[str, Convert], ...] = ()
    contexts: tuple[str, ...] = ()
    whole: str | None = None

    def bind(self, args: dict[str, JsonValue], ctx: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments of the call.

        Raises:
            MisfitError: The arguments do not fit the schema or cannot be converted.
        """
        problems = faults(args, self.checked)
        if problems:
            raise MisfitError(misfit_text(problems, self.schema))
        values: dict[str, Any] = dict(args)
        for name, convert in self.converts:
            if name in values:
                values[name] = self._converted(name, values[name], convert)
        if self.whole is not None:
            values = {self.whole: values}
        for name in self.contexts:
            values[name] = ctx
        return values

    def _converted(self, name: str, value: JsonValue, convert: Convert) -> Any:
        try:
            return convert(value)
        except Exception as error:  # a user's class refuses the value in its own way
            why = str(error) or type(error).__name__
            wanted = self.schema["properties"][name]
            problem = f"argument {name} is {echo(value)}, but must fit {echo(wanted)} ({why})"
            raise MisfitError(misfit_text([problem], self.schema)) from error


def parameters_of(fn: Callable[..., Any], label: str) -> tuple[_Parameters, bool]:
    """Return the parameters of `fn` without `self`, and whether it is a method that lacks it.

    Raises:
        ToolSchemaError: A parameter cannot be given by name, or there is no signature.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolSchemaError(f"{label} has no signature to read: {error}") from None
    first = parameters[0].name if parameters else ""
    if first == "cls":
        raise ToolSchemaError(
            f"{label} is a class method; decorate a static method, or call "
            f"tool(TheClass.{label.rpartition('.')[2]})"
        )
    if first == "self":
        return parameters[1:], True
    return parameters, False


def infer_signature(
    parameters: _Parameters, scope: Scope, documentation: Documentation, label: str
) -> Signature:
    """Read the schema off the type hints.

    Raises:
        ToolSchemaError: A parameter has a kind or a hint that JSON arguments cannot fill.
    """
    shapes = Shapes(scope)
    properties: dict[str, JsonValue] = {}
    checked: dict[str, JsonValue] = {}
    contexts, converts, required = [], [], []
    for parameter in parameters:
        name = parameter.name
        _require_named(parameter, label)
        annotation = _resolved(parameter, scope, label)
        if _takes_context(parameter, annotation):
            contexts.append(name)
            continue
        annotation, optional = split_optional(annotation)
        try:
            shape = shapes.of(annotation)
            text = documentation.parameters.get(name, "")
            properties[name] = describe(shape, text, _default(parameter), shapes.defs)
        except Exception as error:
            raise _bad_hint(parameter, error, label) from error
        checked[name] = accepting(properties[name])
        if optional or parameter.default is None:
            checked[name] = {**checked[name], "nullable": True}
        if shape.convert is not None:
            converts.append((name, _keep_none(shape.convert)))
        if parameter.default is parameter.empty:
            required.append(name)
    return Signature(
        _object(properties, required, shapes.defs),
        _object(checked, required, shapes.accepted),
        tuple(converts),
        tuple(contexts),
    )


def explicit_signature(
    parameters: _Parameters, scope: Scope, schema: Mapping[str, JsonValue], label: str
) -> Signature:
    """Take the schema as given; the arguments reach the function as they are.

    Raises:
        ToolSchemaError: It is no JSON Schema of an object, or the function cannot take it.
    """
    known = _checked_schema(schema, label)
    names = known.get("properties")
    names = names if isinstance(names, dict) else {}
    hints = {each.name: _resolved_or_unknown(each, scope) for each in parameters}
    contexts = [each.name for each in parameters if _takes_context(each, hints[each.name])]
    rest = [each for each in parameters if each.name not in contexts]
    if len(rest) == 1 and rest[0].name not in names and _takes_all(rest[0], hints):
        return Signature(known, known, (), tuple(contexts), rest[0].name)
    for parameter in rest:
        if parameter.kind is not parameter.VAR_KEYWORD:
            _require_named(parameter, label)
            if names and parameter.default is parameter.empty and parameter.name not in names:
                raise ToolSchemaError(
                    f"{label}: parameter {parameter.name!r} has no default and the "
                    "input_schema has no such property"
                )
    if not any(each.kind is each.VAR_KEYWORD for each in rest):
        strange = [name for name in names if name not in {each.name for each in rest}]
        if strange:
            raise ToolSchemaError(
                f"{label}: input_schema has the property {strange[0]!r}, but the function has "
                "no such parameter"
            )
    return Signature(known, known, (), tuple(contexts))


def _checked_schema(schema: object, label: str) -> dict[str, JsonValue]:
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ToolSchemaError(
            f'{label}: input_schema must be a mapping with "type": "object", not {echo(schema)}'
        )
    try:
        check_json(dict(schema), f"{label}: input_schema")
    except WireFormatError as error:
        raise ToolSchemaError(str(error)) from None
    return {"type": "object", **copy.deepcopy(dict(schema))}


def _object(
    properties: dict[str, JsonValue], required: list[str], defs: dict[str, JsonValue]
) -> dict[str, JsonValue]:
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    if defs:
        schema["$defs"] = defs
    return schema


def _default(parameter: inspect.Parameter) -> Any:
    return NO_DEFAULT if parameter.default is parameter.empty else parameter.default


def _keep_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _require_named(parameter: inspect.Parameter, label: str) -> None:
    kinds = {
        parameter.POSITIONAL_ONLY: "is positional-only; models name arguments, so drop the '/'",
        parameter.VAR_POSITIONAL: "takes any number of values; use one parameter of type list",
        parameter.VAR_KEYWORD: "takes any names; name the parameters, or give input_schema",
    }
    if parameter.kind in kinds:
        raise ToolSchemaError(f"{label}: parameter {parameter} {kinds[parameter.kind]}")


def _resolved(parameter: inspect.Parameter, scope: Scope, label: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    try:
        return scope.resolve(parameter.annotation)
    except Exception as error:
        raise _bad_hint(parameter, error, label) from error


def _resolved_or_unknown(parameter: inspect.Parameter, scope: Scope) -> Any:
    try:
        return _resolved(parameter, scope, "")
    except ToolSchemaError:
        return None


def _bad_hint(parameter: inspect.Parameter, error: Exception, label: str) -> ToolSchemaError:
    hint = inspect.formatannotation(parameter.annotation)
    if isinstance(error, ToolSchemaError):
        return ToolSchemaError(f"{label}: parameter {parameter.name!r} ({hint}): {error}")
    return ToolSchemaError(
        f"{label}: the type hint {hint} of parameter {parameter.name!r} cannot be read "
        f"({error}); define or import its names, outside `if TYPE_CHECKING`, before the "
        "function is made a tool, or give input_schema"
    )


def _takes_context(parameter: inspect.Parameter, annotation: Any) -> bool:
    annotation, _ = split_optional(annotation)
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if parameter.name in _CONTEXT_NAMES and annotation in _UNKNOWN:
        return True
    return annotation is ToolContext


def _takes_all(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    hint = hints[parameter.name]
    kinds = (dict, abc.Mapping, abc.MutableMapping)
    is_open = parameter.annotation is parameter.empty or get_origin(hint) in kinds
    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return named and (is_open or hint in kinds)
