"""What annotations say: the types of functions and fields, and how values are made of fields."""

from __future__ import annotations

import dataclasses
import inspect
import types
from operator import attrgetter
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.scalars import Convert, MisfitError


def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the annotations of a function or class.

    Raises:
        InvalidArgumentError: One of them names what is not there, or nothing at all.
    """
    try:
        return get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidArgumentError(
            "the annotations cannot be read",
            to_fix='let them name classes of a module, or give the columns, "name TYPE, …"',
            annotated=annotated,
        ) from error


def element_of(kind: Any) -> Any:
    """Return the element type of an annotated iterator, iterable, list or generator, or None."""
    arguments = get_args(without_none(kind))
    return arguments[0] if arguments else None


def without_none(kind: Any) -> Any:
    """Return T of `T | None`, and any other type as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 else kind


class Record(NamedTuple):
    """A type whose values have several fields.

    Attributes:
        hints: The annotation of each field, in order.
        is_named: Whether the names are the type's own; those of a plain tuple are `_1`, `_2`, …
        read: Returns the tuple of a value's fields; raises MisfitError of any other value.
        make: Makes a value of such a tuple.
    """

    hints: dict[str, Any]
    is_named: bool
    read: Convert
    make: Convert


def record_of(kind: Any) -> Record | None:
    """Return the fields of a tuple, a NamedTuple or a dataclass; None of any other type.

    Raises:
        InvalidArgumentError: Fields alone make no value of the dataclass.
    """
    arguments = get_args(kind)
    if get_origin(kind) is tuple and arguments[1:] != (...,):
        hints = {f"_{number}": hint for number, hint in enumerate(arguments, 1)}
        return Record(hints, False, _tuple_of(len(hints)), tuple)
    if not isinstance(kind, type):
        return None
    if dataclasses.is_dataclass(kind):
        found, fields = hints_of(kind), dataclasses.fields(kind)
        read = _exactly(kind, _attributes([field.name for field in fields]))
        return Record(
            {field.name: found[field.name] for field in fields}, True, read, _constructor(kind)
        )
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        named: Any = kind
        # A subclass may have annotations that are no fields.
        found = hints_of(kind)
        if not set(named._fields) <= found.keys():
            return None
        hints = {name: found[name] for name in named._fields}
        return Record(hints, True, _exactly(kind, tuple), named._make)
    return None


def _tuple_of(num_fields: int) -> Convert:
    def read(value: Any) -> Any:
        if not isinstance(value, tuple):
            raise MisfitError(f"tuple of {num_fields}", value)
        if len(value) != num_fields:
            raise MisfitError(f"tuple of {num_fields}", value, f"of {len(value)}")
        return value

    return read


def _exactly(kind: type, fields: Convert) -> Convert:
    """Return a reader of values of the type itself: a subclass would lose fields of its own."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise MisfitError(kind.__name__, value)
        return fields(value)

    return read


def _attributes(names: list[str]) -> Convert:
    if len(names) == 1:
        read = attrgetter(*names)
        return lambda value: (read(value),)
    return attrgetter(*names) if names else lambda _: ()


def _constructor(kind: Any) -> Convert:
    """Return a maker of a dataclass; it sets the fields that the constructor does not take."""
    names = [field.name for field in dataclasses.fields(kind)]
    parameters = inspect.signature(kind).parameters
    if any(each.default is each.empty for name, each in parameters.items() if name not in names):
        raise InvalidArgumentError(
            "the fields of the dataclass are not all that its constructor asks for",
            to_fix="take a dataclass that is made of its fields",
            type=kind,
        )
    kinds = {each.kind for each in parameters.values()}
    if list(parameters) == names and kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        return lambda row: kind(*row)

    def make(row: Any) -> Any:
        fields = dict(zip(names, row, strict=True))
        value = kind(**{name: field for name, field in fields.items() if name in parameters})
        for name in fields.keys() - parameters.keys():
            object.__setattr__(value, name, fields[name])
        return value

    return make
