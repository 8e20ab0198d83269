"""Where the names of a function's annotations are looked up."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, get_type_hints

import attrs

from toolnexus.toolspec import ToolContext


@attrs.frozen(eq=False)
class Scope:
    """The names that annotations written as text may use."""

    module: str
    globals: dict[str, Any]
    locals: dict[str, Any]

    def resolve(self, annotation: Any) -> Any:
        """Return what an annotation means, with the text inside it evaluated.

        Raises:
            Exception: Whatever evaluating the text raises; mostly NameError.
        """
        holder = SimpleNamespace(__annotations__={"it": annotation})
        return get_type_hints(holder, self.globals, self.locals, include_extras=True)["it"]

    def hints(self, cls: type) -> dict[str, Any]:
        """Return the resolved annotations of a class and its bases.

        Raises:
            Exception: Whatever evaluating the text raises; mostly NameError.
        """
        names = {cls.__name__: cls}
        if cls.__module__ == self.module:
            names = {**self.locals, **names}
        return get_type_hints(cls, localns=names, include_extras=True)


def scope_of(fn: Callable[..., Any], caller: FrameType | None) -> Scope:
    """Return the names that `fn` sees: its module, its closure, the blocks it is written in.

    Args:
        fn: Any callable.
        caller: The frame that decorates; read only where it really encloses `fn`.
    """
    fn = plain_function(fn)
    # A name imported under TYPE_CHECKING is not there at run time; this one we know.
    names: dict[str, Any] = {"ToolContext": ToolContext}
    code = getattr(fn, "__code__", None)
    if isinstance(code, CodeType):
        names |= _enclosing_locals(code, caller)
        cells = getattr(fn, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # assigned after the decoration
                continue
    module_names = getattr(fn, "__globals__", {})
    if "ToolContext" in module_names and names["ToolContext"] is ToolContext:
        del names["ToolContext"]
    return Scope(getattr(fn, "__module__", None) or "", module_names, names)


def plain_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function a user wrote, inside wrappers, partials and callable objects."""
    fn = inspect.unwrap(fn)
    while isinstance(fn, functools.partial):
        fn = inspect.unwrap(fn.func)
    fn = getattr(fn, "__func__", fn)
    if not inspect.isroutine(fn) and not isinstance(fn, type):
        return getattr(type(fn).__call__, "__func__", type(fn).__call__)
    return fn


def _enclosing_locals(code: CodeType, frame: FrameType | None) -> dict[str, Any]:
    """Return the locals of the running blocks that `code` stands in; the inner ones win."""
    names: dict[str, Any] = {}
    while frame is not None:
        if any(const is code for const in frame.f_code.co_consts):
            names = {**frame.f_locals, **names}
            code = frame.f_code
        frame = frame.f_back
    return names
