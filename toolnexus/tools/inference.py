"""Type hints to JSON Schema, and JSON that fits it to values of the hinted types."""

from __future__ import annotations

import enum
import types
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    Literal,
    NewType,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

import attrs

from toolnexus.codec import JsonValue, dumps, loads
from toolnexus.errors import ToolSchemaError
from toolnexus.keywords import same_json
from toolnexus.schema import faults
from toolnexus.tools.docstrings import read_docstring
from toolnexus.tools.records import NO_DEFAULT, Field, Record, read_record
from toolnexus.tools.scope import Scope
from toolnexus.tools.texts import TextError, accepting, text_form, text_of

Convert: TypeAlias = Callable[[JsonValue], Any]

_LEVELS_MAX: Final = 50
_ARRAYS: Final[Mapping[object, Convert | None]] = {
    list: None,
    abc.Sequence: None,
    abc.MutableSequence: None,
    abc.Collection: None,
    abc.Iterable: None,
    tuple: tuple,
    set: set,
    abc.MutableSet: set,
    abc.Set: frozenset,
    frozenset: frozenset,
}
_SETS: Final = (set, frozenset, abc.Set, abc.MutableSet)
_OBJECTS: Final = (dict, abc.Mapping, abc.MutableMapping)


@attrs.frozen
class Shape:
    """How a type looks in JSON.

    Attributes:
        schema: JSON Schema.
        convert: Makes the value from JSON that fits the schema; None: it is the value.
        is_described: Whether the annotation itself gives the description.
    """

    schema: dict[str, JsonValue]
    convert: Convert | None = None
    is_described: bool = False


def _to_int(value: JsonValue) -> int:
    return value if type(value) is int else int(value)


_PLAIN: Final[Mapping[object, Shape]] = {
    bool: Shape({"type": "boolean"}),
    int: Shape({"type": "integer"}, _to_int),
    float: Shape({"type": "number"}, float),
    str: Shape({"type": "string"}),
    None: Shape({"type": "null"}),
    type(None): Shape({"type": "null"}),
}


def is_union(annotation: Any) -> bool:
    """Whether the annotation is `X | Y`, Union or Optional."""
    return get_origin(annotation) in (Union, types.UnionType)


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """Return the annotation without None, and whether None was in it."""
    if get_origin(annotation) is Annotated:
        inner, optional = split_optional(get_args(annotation)[0])
        return Annotated[(inner, *annotation.__metadata__)], optional
    members = get_args(annotation) if is_union(annotation) else ()
    rest = tuple(member for member in members if member is not type(None))
    if not rest or len(rest) == len(members):
        return annotation, False
    return Union[rest], True  # noqa: UP007 - members known only now, and text among them


class Shapes:
    """Makes the shapes of one tool's parameters; collects the `$defs` that they refer to.

    Args:
        scope: Where annotations that are text are looked up.

    Attributes:
        defs: As models see them.
        accepted: As arguments are checked by them.
    """

    def __init__(self, scope: Scope) -> None:
        self.defs: dict[str, JsonValue] = {}
        self.accepted: dict[str, JsonValue] = {}
        self._scope = scope
        self._level = 0
        self._open: list[object] = []
        self._names: dict[object, str] = {}
        self._converts: dict[object, Convert | None] = {}

    def of(self, annotation: Any) -> Shape:
        """Return the shape of an annotation; one that says nothing about JSON gives `{}`.

        Raises:
            ToolSchemaError: JSON has no such values, or the annotation is too deep.
            Exception: Text in it cannot be evaluated.
        """
        if self._level >= _LEVELS_MAX:
            raise ToolSchemaError(f"it is nested deeper than {_LEVELS_MAX} levels")
        self._level += 1
        try:
            return self._of(annotation)
        finally:
            self._level -= 1

    def _of(self, annotation: Any) -> Shape:
        if isinstance(annotation, (str, ForwardRef)):
            return self.of(self._scope.resolve(annotation))
        if isinstance(annotation, NewType) or type(annotation).__name__ == "TypeAliasType":
            return self.of(getattr(annotation, "__supertype__", None) or annotation.__value__)
        try:
            return _PLAIN[annotation]
        except (KeyError, TypeError):
            origin = get_origin(annotation)
        if origin is None:
            return self._class(annotation, annotation, ())
        if origin is Annotated:
            return self._annotated(annotation)
        if origin is Literal:
            return _choice([_literal_pair(each) for each in get_args(annotation)])
        if is_union(annotation):
            return self._union(get_args(annotation))
        return self._class(origin, annotation, get_args(annotation))

    def _class(self, cls: Any, annotation: Any, args: tuple[Any, ...]) -> Shape:
        if cls is tuple and args and args[-1] is not Ellipsis:
            return self._fixed_tuple(args)
        if cls in _ARRAYS:
            return self._array(cls, args[:1])
        if cls in _OBJECTS:
            return self._mapping(args)
        if not isinstance(cls, type):
            return Shape({})
        form = text_form(cls)
        if form is not None:
            return Shape(*form)
        if issubclass(cls, enum.Enum):
            return _choice([(_enum_value(member), member) for member in cls])
        return self._record(cls, annotation)

    def _annotated(self, annotation: Any) -> Shape:
        shape = self.of(get_args(annotation)[0])
        texts = [text for text in annotation.__metadata__ if isinstance(text, str)]
        if not texts:
            return shape
        return Shape(
            {**shape.schema, "description": texts[0]}, shape.convert, is_described=True
        )

    def _array(self, cls: Any, args: tuple[Any, ...]) -> Shape:
        schema: dict[str, JsonValue] = {"type": "array"}
        item = self.of(args[0]) if args else Shape({})
        if item.schema:
            schema["items"] = item.schema
        if cls in _SETS:
            schema["uniqueItems"] = True
        return Shape(schema, _array_convert(_ARRAYS[cls], item.convert))

    def _fixed_tuple(self, args: tuple[Any, ...]) -> Shape:
        shapes = [self.of(each) for each in args]
        schema = {
            "type": "array",
            "prefixItems": [shape.schema for shape in shapes],
            "minItems": len(shapes),
            "maxItems": len(shapes),
        }
        converts = [shape.convert or _same for shape in shapes]
        return Shape(
            schema,
            lambda items: tuple(
                convert(item) for convert, item in zip(converts, items, strict=True)
            ),
        )

    def _mapping(self, args: tuple[Any, ...]) -> Shape:
        key, value = args if len(args) == 2 else (str, Any)
        if key not in (str, Any):
            raise ToolSchemaError(f"the keys of a JSON object are str, not {_name(key)}")
        inner = self.of(value)
        schema: dict[str, JsonValue] = {"type": "object"}
        if inner.schema:
            schema["additionalProperties"] = inner.schema
        convert = inner.convert
        if convert is None:
            return Shape(schema)
        return Shape(schema, lambda items: {k: convert(item) for k, item in items.items()})

    def _union(self, members: Sequence[Any]) -> Shape:
        shapes = [self.of(member) for member in members]
        schema = {"anyOf": [shape.schema for shape in shapes]}
        if all(shape.convert is None for shape in shapes):
            return Shape(schema)
        # `$defs` is this very dict, which is filled on until the whole tool is read.
        choices = [
            ({**accepting(shape.schema), "$defs": self.accepted}, shape.convert)
            for shape in shapes
        ]

        def convert(value: JsonValue) -> Any:
            refused = []
            for wanted, make in choices:
                if not faults(value, wanted):
                    try:
                        return value if make is None else make(value)
                    except TextError as error:  # `date | str` takes any text
                        refused.append(str(error))
            raise TextError("; ".join(refused) or "it fits no member of the union")

        return Shape(schema, convert)

    # -- classes with fields -------------------------------------------------------------------

    def _record(self, cls: type, key: Any) -> Shape:
        """Return the shape of a class; of one that contains itself, by `$ref`."""
        if key in self._open or key in self._names:
            return self._reference(cls, key)
        self._open.append(key)
        try:
            record = read_record(cls, self._scope)
            if record is None:
                return Shape({})
            shape = self._object(record)
        finally:
            self._open.remove(key)
        if key not in self._names:
            return shape
        self.defs[self._names[key]] = shape.schema
        self.accepted[self._names[key]] = accepting(shape.schema)
        self._converts[key] = shape.convert
        return self._reference(cls, key)

    def _reference(self, cls: type, key: Any) -> Shape:
        if key not in self._names:
            same = sum(name.partition("-")[0] == cls.__name__ for name in self._names.values())
            self._names[key] = f"{cls.__name__}-{same + 1}" if same else cls.__name__

        def convert(value: JsonValue) -> Any:
            make = self._converts[key]
            return value if make is None else make(value)

        return Shape({"$ref": f"#/$defs/{self._names[key]}"}, convert)

    def _object(self, record: Record) -> Shape:
        written = record.cls.__doc__ or ""
        if written.startswith(f"{record.cls.__name__}("):  # what @dataclass writes itself
            written = ""
        documentation = read_docstring(written)
        properties: dict[str, JsonValue] = {}
        converts: dict[str, Convert] = {}
        for field in record.fields:
            shape = self._field(record, field)
            text = documentation.parameters.get(field.name, "")
            properties[field.name] = describe(shape, text, field.default, self.defs)
            if shape.convert is not None:
                converts[field.name] = shape.convert
        schema: dict[str, JsonValue] = {"type": "object", "properties": properties}
        required = [field.name for field in record.fields if field.required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        if documentation.summary:
            schema["description"] = documentation.summary
        return Shape(schema, _object_convert(record, converts))

    def _field(self, record: Record, field: Field) -> Shape:
        try:
            return self.of(field.annotation)
        except ToolSchemaError as error:
            raise ToolSchemaError(f"{record.cls.__name__}.{field.name}: {error}") from error


def _object_convert(record: Record, converts: Mapping[str, Convert]) -> Convert | None:
    build = record.build
    if build is dict and not converts:
        return None

    def convert(value: JsonValue) -> Any:
        return build(
            **{
                name: converts[name](item) if name in converts else item
                for name, item in value.items()
            }
        )

    return convert


def _array_convert(build: Convert | None, item: Convert | None) -> Convert | None:
    if item is None:
        return build
    if build is None:
        return lambda items: [item(each) for each in items]
    return lambda items: build(item(each) for each in items)


def _same(value: JsonValue) -> Any:
    return value


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# -- a closed choice of values -----------------------------------------------------------------


def _enum_value(member: enum.Enum) -> JsonValue:
    return _scalar(member.value, f"the value of {member}")


def _literal_pair(value: Any) -> tuple[JsonValue, Any]:
    if isinstance(value, enum.Enum):
        return _enum_value(value), value
    return _scalar(value, "a Literal"), value


def _scalar(value: Any, what: str) -> JsonValue:
    if value is None or isinstance(value, (bool, int, float, str)):
        return loads(dumps(value))  # a plain value, where it is of a subclass
    raise ToolSchemaError(
        f"{what} must be a str, int, float, bool or None to be written as JSON, not {value!r}"
    )


def _choice(pairs: Sequence[tuple[JsonValue, Any]]) -> Shape:
    values = [value for value, _ in pairs]
    schema: dict[str, JsonValue] = {"enum": values}
    kinds = {type(value) for value in values}
    if len(kinds) == 1:
        schema = {**_PLAIN[kinds.pop()].schema, **schema}
    if all(type(value) is str and value is meant for value, meant in pairs):
        return Shape(schema)

    def convert(given: JsonValue) -> Any:
        return next(meant for value, meant in pairs if same_json(value, given))

    return Shape(schema, convert)


# -- the words beside a schema -----------------------------------------------------------------


def describe(
    shape: Shape, text: str, default: Any, defs: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return the schema with `text` as description, and with the default if it fits.

    Text in the annotation goes before `text`, and that before what a class says of itself.
    A default of None is left out: leaving the argument out says the same.
    """
    out = dict(shape.schema)
    if text and not shape.is_described:
        out["description"] = text
    if default is NO_DEFAULT or default is None:
        return out
    try:
        plain = default.value if isinstance(default, enum.Enum) else default
        written = text_of(plain)
        plain = loads(dumps(plain if written is None else written))
    except (TypeError, ValueError, RecursionError):
        return out
    if not faults(plain, {**shape.schema, "$defs": defs}):
        out["default"] = plain
    return out
