"""SQL conditions as functions of a message's properties.

Values are texts (all properties are), numbers, truth values, and None: unknown, as in SQL. What is compared with a
number is read as one; a text that is none ends the evaluation, and the message is not wanted. RocketMQ's rules, but for
what docs/filters.md lists.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.server.filters.java_text import trimmed
from quarry_mq.store.errors import Invalid

Value = str | int | float | None
"""bool is an int in Python; what is a truth value is told by its type being exactly bool."""

Evaluate = Callable[[Mapping[str, str]], Value]
NESTED_MAX: Final = 100
"""Expressions within each other. Evaluation nests as deep as they do."""

_NUMBER: Final = re.compile(r"[+-]?([0-9]+|([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?)")
_INTEGER_DIGITS_MAX: Final = 4_000
"""Python refuses to read longer ones, and no message needs them."""


class IllegalExpression(Invalid):
    """The text is no filter expression; says where and why."""


class NotComparable(Exception):
    """Two values that have no order: no answer, neither yes nor no."""


class Kind(Enum):
    """What an expression is by its form."""

    CONSTANT = "constant"
    TRUTH_CONSTANT = "constant TRUE, FALSE or NULL"
    PROPERTY = "property"
    NUMBER = "number"
    CONDITION = "condition"


class Node(NamedTuple):
    """One expression. `constant` is the value of a constant."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    constant: Value = None

    @property
    def is_condition(self) -> bool:
        return self.kind in (Kind.CONDITION, Kind.TRUTH_CONSTANT)


def constant(value: Value) -> Node:
    kind = Kind.TRUTH_CONSTANT if value is None or isinstance(value, bool) else Kind.CONSTANT
    return Node(kind, lambda _: value, constant=value)


def property_(name: str) -> Node:
    return Node(Kind.PROPERTY, lambda properties: properties.get(name))


def condition(node: Node) -> Node:
    """The node where a condition has to stand. A property alone is text, which is not true, or unknown.

    Raises IllegalExpression for what has no truth value.
    """
    if node.is_condition:
        return node
    if node.kind is not Kind.PROPERTY:
        raise IllegalExpression("a condition is expected where a value stands")
    evaluate = node.evaluate
    return _node(lambda properties: None if evaluate(properties) is None else False, node)


def negative(node: Node) -> Node:
    """`-x`: unknown for what is no number by itself, as a property is."""
    evaluate = node.evaluate

    def negated(properties: Mapping[str, str]) -> Value:
        value = evaluate(properties)
        return None if value is None or isinstance(value, bool | str) else -value

    return _node(negated, node, kind=Kind.NUMBER)


def not_(node: Node) -> Node:
    evaluate = condition(node).evaluate

    def negated(properties: Mapping[str, str]) -> Value:
        value = evaluate(properties)
        return None if value is None else not value

    return _node(negated, node)


def all_of(nodes: Sequence[Node]) -> Node:
    """AND: false as soon as one is false, else unknown if one is unknown."""
    return _junction(nodes, deciding=False)


def any_of(nodes: Sequence[Node]) -> Node:
    """OR: true as soon as one is true, else unknown if one is unknown."""
    return _junction(nodes, deciding=True)


def _junction(nodes: Sequence[Node], *, deciding: bool) -> Node:
    parts = [condition(node).evaluate for node in nodes]

    def joined(properties: Mapping[str, str]) -> Value:
        result: Value = not deciding
        for part in parts:
            value = part(properties)
            if value is deciding:
                return deciding
            if value is None:
                result = None
        return result

    return _node(joined, *nodes)


def equal(left: Node, right: Node) -> Node:
    """`=`: unknown where the left side is, false where only the right one is. Raises IllegalExpression for NULL."""
    for node in (left, right):
        if node.kind is Kind.TRUTH_CONSTANT and node.constant is None:
            raise IllegalExpression("nothing is equal to NULL; IS NULL asks for it")
    if left.kind is Kind.TRUTH_CONSTANT and right.kind is Kind.CONSTANT:
        raise IllegalExpression("TRUE or FALSE is compared with a value of another kind")
    left_of, right_of = left.evaluate, right.evaluate

    def compared(properties: Mapping[str, str]) -> Value:
        first, second = left_of(properties), right_of(properties)
        if first is None or second is None:
            return None if first is None and second is not None else first is second
        return _are_equal(first, second)

    return _node(compared, left, right)


def _are_equal(left: Value, right: Value) -> bool:
    if type(left) is bool or type(right) is bool:
        return _truth(left) is _truth(right)
    if type(left) is type(right) is str:
        return left == right
    return _number(left) == _number(right)


def is_null(node: Node) -> Node:
    evaluate = node.evaluate
    return _node(lambda properties: evaluate(properties) is None, node)


def ordered(left: Node, right: Node, compare: Callable[[float, float], bool]) -> Node:
    """`<` and its like: of numbers only. Raises IllegalExpression where a side cannot be one."""
    for node in (left, right):
        if node.is_condition or isinstance(node.constant, str):
            raise IllegalExpression("only numbers and properties have an order")
    left_of, right_of = left.evaluate, right.evaluate

    def compared(properties: Mapping[str, str]) -> Value:
        first, second = left_of(properties), right_of(properties)
        if first is None or second is None:
            return None
        return compare(_number(first), _number(second))

    return _node(compared, left, right)


def between(value: Node, low: Node, high: Node) -> Node:
    """Both ends belong to it. Raises IllegalExpression for constants in the wrong order."""
    if low.kind is high.kind is Kind.CONSTANT and not isinstance(low.constant, str) and _is_reversed(low, high):
        raise IllegalExpression(f"BETWEEN {low.constant} AND {high.constant}: the first is larger")
    return all_of((ordered(value, low, operator.ge), ordered(value, high, operator.le)))


def not_between(value: Node, low: Node, high: Node) -> Node:
    return any_of((ordered(value, low, operator.lt), ordered(value, high, operator.gt)))


def _is_reversed(low: Node, high: Node) -> bool:
    return not isinstance(high.constant, str) and _number(low.constant) > _number(high.constant)


def is_in(value: Node, texts: Sequence[str], *, negated: bool) -> Node:
    """`IN` and `NOT IN`: unknown for a property that is not there."""
    if value.kind is not Kind.PROPERTY:
        raise IllegalExpression("a property has to stand in front of IN")
    wanted, evaluate = frozenset(texts), value.evaluate

    def looked_up(properties: Mapping[str, str]) -> Value:
        found = evaluate(properties)
        return None if found is None else (found in wanted) is not negated

    return _node(looked_up, value)


def has_text(value: Node, text: str, test: Callable[[str, str], bool], *, negated: bool) -> Node:
    """CONTAINS and its like, and their NOT: false without a property, and without a text to look for."""
    evaluate = value.evaluate

    def tested(properties: Mapping[str, str]) -> Value:
        found = evaluate(properties) if text else None
        return isinstance(found, str) and test(found, text) is not negated

    return _node(tested, value)


def _node(evaluate: Evaluate, *parts: Node, kind: Kind = Kind.CONDITION) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > NESTED_MAX:
        raise IllegalExpression(f"more than {NESTED_MAX} expressions within each other")
    return Node(kind, evaluate, depth)


def _number(value: Value) -> float:
    if isinstance(value, int | float) and type(value) is not bool:
        return value
    if not isinstance(value, str) or len(value) > _INTEGER_DIGITS_MAX:
        raise NotComparable
    value = trimmed(value)
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise NotComparable
    return int(value) if match[2] is None else float(value)


def _truth(value: Value) -> bool | None:
    """RocketMQ's reading: a text is true if it says so in any case. None: a number, which is neither."""
    if type(value) is bool:
        return value
    return value.lower() == "true" if isinstance(value, str) else None
