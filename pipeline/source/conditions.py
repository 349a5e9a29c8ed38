"""Applies filters that Spark pushes down to columns, before the other columns of a message are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from quarry_mq.pipeline.source.times import microseconds_of

ColumnOf = Callable[[str], pa.Array]
_I64_MIN: Final = -(2**63)
_I64_MAX: Final = 2**63 - 1

_COMPARED: Final[dict[type[Filter], Callable[[pa.Array, Any], pa.Array]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


def is_applicable(condition: Filter, columns: Iterable[str]) -> bool:
    """Return whether `holds` can evaluate the condition: it compares one of the columns with whole numbers,
    texts or times.
    """
    match condition:
        case Not(child=child):
            return is_applicable(child, columns)
        case In(attribute=(name,), value=values):
            return name in columns and all(_is_literal(value) for value in values)
        case IsNull(attribute=(name,)) | IsNotNull(attribute=(name,)):
            return name in columns
        case _ if type(condition) in _COMPARED:
            attribute, value = condition.attribute, condition.value  # type: ignore[attr-defined]
            return len(attribute) == 1 and attribute[0] in columns and _is_literal(value)
    return False


def holds(condition: Filter, column_of: ColumnOf) -> pa.Array:
    """Return for each row whether the condition holds: true, false, or null as in SQL. It must be applicable."""
    match condition:
        case Not(child=child):
            return pc.invert(holds(child, column_of))
        case In(attribute=(name,), value=values):
            column = column_of(name)
            found = pc.is_in(column, value_set=pa.array(values).cast(column.type))
            return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
        case IsNull(attribute=(name,)):
            return pc.is_null(column_of(name))
        case IsNotNull(attribute=(name,)):
            return pc.is_valid(column_of(name))
    name, value = condition.attribute[0], condition.value  # type: ignore[attr-defined]
    return _COMPARED[type(condition)](column_of(name), value)


def names_in(condition: Filter) -> str:
    """Return the column that an applicable condition is about."""
    if isinstance(condition, Not):
        return names_in(condition.child)
    name: str = condition.attribute[0]  # type: ignore[attr-defined]
    return name


class Bounds(NamedTuple):
    """The whole numbers from `low` to `high`, both included."""

    low: int
    high: int


def bounds_of(name: str, conditions: Iterable[Filter]) -> Bounds:
    """Return the range that all conditions together allow for a column of whole numbers, or of times in ms."""
    low, high = _I64_MIN, _I64_MAX
    for condition in conditions:
        if isinstance(condition, Not) or names_in(condition) != name:
            continue
        match condition:
            case EqualTo(value=value):
                low, high = max(low, _at_least(value)), min(high, _at_most(value))
            case In(value=values):
                low, high = max(low, _at_least(min(values))), min(high, _at_most(max(values)))
            case GreaterThan(value=value):
                low = max(low, _at_most(value) + 1)
            case GreaterThanOrEqual(value=value):
                low = max(low, _at_least(value))
            case LessThan(value=value):
                high = min(high, _at_least(value) - 1)
            case LessThanOrEqual(value=value):
                high = min(high, _at_most(value))
    return Bounds(low, high)


def texts_of(name: str, conditions: Iterable[Filter]) -> list[str] | None:
    """Return the only values, sorted, that a condition allows for a column of texts; None if any value may occur."""
    for condition in conditions:
        match condition:
            case EqualTo(attribute=(column,), value=value) if column == name:
                return [value]
            case In(attribute=(column,), value=values) if column == name:
                return sorted(set(values))
    return None


def _at_least(value: int | datetime) -> int:
    """Return the smallest whole number, or millisecond, that is not below the value."""
    return value if isinstance(value, int) else -(-microseconds_of(value) // 1000)


def _at_most(value: int | datetime) -> int:
    """Return the largest whole number, or millisecond, that is not above the value."""
    return value if isinstance(value, int) else microseconds_of(value) // 1000


def _is_literal(value: object) -> bool:
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
