"""Filters that decide which messages a subscription gets: by tag, or by an SQL-92 expression over their properties.

An SQL expression is compiled once into a function of a message's properties. Its values are texts (all properties are),
numbers, truth values, and None for unknown, as in SQL. A value that is compared with a number is read as a number; if
it is not one, the evaluation ends and the message does not match. The rules are RocketMQ's, except for those listed in
docs/filters.md.

Parsed filters are cached by expression, since clients send the same expressions with every receive.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache, partial
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from quarry_mq.protocol.messages.property_names import TAGS
from quarry_mq.protocol.names import trimmed
from quarry_mq.server import filters as nodes
from quarry_mq.store.errors import Invalid
from quarry_mq.store.record import java_hash


class MessageFilter(Protocol):
    """Decides in two steps if a message matches: by its consume queue entry, which is cheap, then by its record."""

    @property
    def length(self) -> int:
        """Return the approximate length of the expression in characters; each takes up to 160 bytes of memory."""

    @property
    def wants_all(self) -> bool:
        """Return whether every message matches, so that none has to be checked."""

    def may_match(self, tags_code: int) -> bool:
        """Return whether a message with this tags code can match; only then its record is read."""

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the message with these stored properties matches."""


LENGTH_MAX: Final = 4 * 1024
"""Characters that a SQL expression may have. Reading the longest takes 4 to 12 ms of the event loop's time."""

TAGS_LENGTH_MAX: Final = 16 * 1024
"""Characters that an expression of tags may have: RocketMQ's own tests subscribe to a tag of 10 KiB."""

SHORT_MAX: Final = 512
SHORT_REMEMBERED: Final = 1024
LONG_REMEMBERED: Final = 32
# a filter takes up to 160 bytes per character: 80 MB for the short ones at most, 20 MB for the long ones

Filter = TypeVar("Filter")


def remembering(parse: Callable[[str], Filter]) -> Callable[[str], Filter]:
    """Return the function with a cache: a recently parsed expression gives the same object again."""
    short, long = lru_cache(SHORT_REMEMBERED)(parse), lru_cache(LONG_REMEMBERED)(parse)

    def remembered(expression: str) -> Filter:
        return (short if len(expression) <= SHORT_MAX else long)(expression)

    return remembered


Value = str | int | float | None
"""bool is a kind of int in Python, so a truth value is recognised by its type being exactly bool."""

Evaluate = Callable[[Mapping[str, str]], Value]
NESTED_MAX: Final = 100
"""Depth to which expressions may be nested. Evaluation nests just as deep."""

_NUMBER: Final = re.compile(r"[+-]?([0-9]+|([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?)")
_INTEGER_DIGITS_MAX: Final = 4_000
"""Digits that an integer in a property may have. Python refuses to read longer ones, and no message needs them."""


class IllegalExpression(Invalid):
    """The text is not a filter expression; the message says where and why."""


class NotComparable(Exception):
    """The values cannot be compared, so that the condition is neither true nor false."""


class Kind(Enum):
    """The kind of an expression, by its form."""

    CONSTANT = "constant"
    TRUTH_CONSTANT = "constant TRUE, FALSE or NULL"
    PROPERTY = "property"
    NUMBER = "number"
    CONDITION = "condition"


class Node(NamedTuple):
    """Represent one expression. `constant` is the value of a constant."""

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
    """Return the node for a place where a condition is required.

    A property alone becomes false, since a text is not true, or unknown if the message does not have it. Raises
    IllegalExpression for an expression that has no truth value.
    """
    if node.is_condition:
        return node
    if node.kind is not Kind.PROPERTY:
        raise IllegalExpression("a condition is expected, not a value")
    evaluate = node.evaluate
    return _node(lambda properties: None if evaluate(properties) is None else False, node)


def negative(node: Node) -> Node:
    """Return the node of `-x`. It is unknown for a value that is not a number itself, such as a property."""
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
    """Return the node of AND: false as soon as one part is false, else unknown if one is unknown."""
    return _junction(nodes, deciding=False)


def any_of(nodes: Sequence[Node]) -> Node:
    """Return the node of OR: true as soon as one part is true, else unknown if one is unknown."""
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
    """Return the node of `=`: unknown if the left side is unknown, false if only the right one is.

    Raises IllegalExpression for NULL.
    """
    for node in (left, right):
        if node.kind is Kind.TRUTH_CONSTANT and node.constant is None:
            raise IllegalExpression("nothing is equal to NULL; use IS NULL")
    if left.kind is Kind.TRUTH_CONSTANT and right.kind is Kind.CONSTANT:
        raise IllegalExpression("TRUE or FALSE is compared with a value of another type")
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
    """Return the node of `<`, `<=`, `>` or `>=`, which compare numbers only.

    Raises IllegalExpression if a side cannot be a number.
    """
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
    """Return the node of BETWEEN, ends included. Raises IllegalExpression for constants in the wrong order."""
    if low.kind is high.kind is Kind.CONSTANT and not isinstance(low.constant, str) and _is_reversed(low, high):
        raise IllegalExpression(f"BETWEEN {low.constant} AND {high.constant}: the first is larger")
    return all_of((ordered(value, low, operator.ge), ordered(value, high, operator.le)))


def not_between(value: Node, low: Node, high: Node) -> Node:
    return any_of((ordered(value, low, operator.lt), ordered(value, high, operator.gt)))


def _is_reversed(low: Node, high: Node) -> bool:
    return not isinstance(high.constant, str) and _number(low.constant) > _number(high.constant)


def is_in(value: Node, texts: Sequence[str], *, negated: bool) -> Node:
    """Return the node of `IN` or `NOT IN`, which is unknown if the message does not have the property."""
    if value.kind is not Kind.PROPERTY:
        raise IllegalExpression("a property must stand before IN")
    wanted, evaluate = frozenset(texts), value.evaluate

    def looked_up(properties: Mapping[str, str]) -> Value:
        found = evaluate(properties)
        return None if found is None else (found in wanted) is not negated

    return _node(looked_up, value)


def has_text(value: Node, text: str, test: Callable[[str, str], bool], *, negated: bool) -> Node:
    """Return the node of CONTAINS, STARTSWITH or ENDSWITH, or of their NOT.

    All of them are false if the message does not have the property, or if the text to look for is empty.
    """
    evaluate = value.evaluate

    def tested(properties: Mapping[str, str]) -> Value:
        found = evaluate(properties) if text else None
        return isinstance(found, str) and test(found, text) is not negated

    return _node(tested, value)


def _node(evaluate: Evaluate, *parts: Node, kind: Kind = Kind.CONDITION) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > NESTED_MAX:
        raise IllegalExpression(f"more than {NESTED_MAX} expressions nested in each other")
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
    """Return the truth value of a value as RocketMQ reads it: a text is true if it says "true" in any case.

    Returns None for a number, which is neither true nor false.
    """
    if type(value) is bool:
        return value
    return value.lower() == "true" if isinstance(value, str) else None


INTEGER_MAX: Final = 2**63 - 1
SHOWN_MAX: Final = 20


class SqlFilter:
    """A filter such as `a > 5 AND region IN ('x')`. Equal expressions share one object while they are cached."""

    __slots__ = ("_evaluate", "expression")

    def __init__(self, expression: str, condition: Node) -> None:
        self.expression = expression
        self._evaluate = condition.evaluate

    @classmethod
    def parse(cls, expression: str) -> SqlFilter:
        """Return the filter of an expression. Raises IllegalExpression, which says where and why."""
        return _parse_sql(expression)

    @property
    def length(self) -> int:
        """Return the characters of the expression."""
        return len(self.expression)

    @property
    def wants_all(self) -> bool:
        return False

    def may_match(self, tags_code: int) -> bool:  # noqa: ARG002 - a message's tag is only one of its properties
        return True

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the condition is true: neither false, nor unknown, nor a comparison that is not possible."""
        try:
            return self._evaluate(properties) is True
        except nodes.NotComparable:
            return False


@remembering
def _parse_sql(expression: str) -> SqlFilter:
    if len(expression) > LENGTH_MAX:
        raise IllegalExpression(f"a filter expression has at most {LENGTH_MAX} characters, not {len(expression)}")
    try:
        condition = cast("Node", _parser().parse(expression))
    except UnexpectedInput as error:
        raise IllegalExpression(f"the filter expression has a syntax error at {_place(expression, error)}") from None
    except VisitError as error:
        raise error.orig_exc from None
    return SqlFilter(expression, condition)


def _place(expression: str, error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return "its end"
    return repr(expression[error.pos_in_stream :][:SHOWN_MAX])


@v_args(inline=True)
class _Compiler(Transformer[Token, Node]):
    """Turns each rule of the grammar into its node."""

    start = staticmethod(nodes.condition)
    property = staticmethod(nodes.property_)
    equal = staticmethod(nodes.equal)
    is_null = staticmethod(nodes.is_null)
    greater = staticmethod(partial(nodes.ordered, compare=operator.gt))
    greater_or_equal = staticmethod(partial(nodes.ordered, compare=operator.ge))
    less = staticmethod(partial(nodes.ordered, compare=operator.lt))
    less_or_equal = staticmethod(partial(nodes.ordered, compare=operator.le))
    between = staticmethod(nodes.between)
    not_between = staticmethod(nodes.not_between)
    negative = staticmethod(nodes.negative)
    not_ = staticmethod(nodes.not_)
    text = staticmethod(nodes.constant)

    def or_(self, *parts: Node) -> Node:
        return nodes.any_of(parts)

    def and_(self, *parts: Node) -> Node:
        return nodes.all_of(parts)

    def not_equal(self, left: Node, right: Node) -> Node:
        return nodes.not_(nodes.equal(left, right))

    def is_not_null(self, value: Node) -> Node:
        return nodes.not_(nodes.is_null(value))

    def in_(self, value: Node, *texts: str) -> Node:
        return nodes.is_in(value, texts, negated=False)

    def not_in(self, value: Node, *texts: str) -> Node:
        return nodes.is_in(value, texts, negated=True)

    def contains(self, value: Node, text: str) -> Node:
        return nodes.has_text(value, text, operator.contains, negated=False)

    def not_contains(self, value: Node, text: str) -> Node:
        return nodes.has_text(value, text, operator.contains, negated=True)

    def starts_with(self, value: Node, text: str) -> Node:
        return nodes.has_text(value, text, str.startswith, negated=False)

    def not_starts_with(self, value: Node, text: str) -> Node:
        return nodes.has_text(value, text, str.startswith, negated=True)

    def ends_with(self, value: Node, text: str) -> Node:
        return nodes.has_text(value, text, str.endswith, negated=False)

    def not_ends_with(self, value: Node, text: str) -> Node:
        return nodes.has_text(value, text, str.endswith, negated=True)

    def integer(self, token: Token) -> Node:
        digits = token.rstrip("lL")
        if len(digits) > len(str(INTEGER_MAX)) or int(digits) > INTEGER_MAX:
            raise IllegalExpression(f"the integer {digits[:30]} is larger than {INTEGER_MAX}")
        return nodes.constant(int(digits))

    def float_(self, token: Token) -> Node:
        value = float(token)
        if value == float("inf"):
            raise IllegalExpression(f"the number {token[:30]} is too large")
        return nodes.constant(value)

    def true(self) -> Node:
        return nodes.constant(True)  # noqa: FBT003 - a value, not a switch

    def false(self) -> Node:
        return nodes.constant(False)  # noqa: FBT003 - a value, not a switch

    def null(self) -> Node:
        return nodes.constant(None)

    def string(self, token: Token) -> str:
        return token[1:-1].replace("''", "'")


@cache
def _parser() -> Lark:
    return Lark.open("sql.lark", rel_to=__file__, parser="lalr", lexer="basic", transformer=_Compiler())


ALL: Final = "*"
SEPARATOR: Final = "||"


class TagFilter(NamedTuple):
    """A filter such as `A || B`: the tags, and their hashes as consume queue entries hold them. No tags match every
    message.

    The hash decides without reading the record; the exact tag decides in the end, since hashes collide.
    """

    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, expression: str) -> TagFilter:
        """Return the filter of an expression. Raises IllegalExpression if it is too long."""
        return _parse_tags(expression)

    @property
    def length(self) -> int:
        """Return the least number of characters that an expression of these tags has."""
        return sum(map(len, self.tags)) + len(SEPARATOR) * len(self.tags)

    @property
    def wants_all(self) -> bool:
        return not self.tags

    def may_match(self, tags_code: int) -> bool:
        return not self.tags or tags_code in self.codes

    def matches(self, properties: Mapping[str, str]) -> bool:
        return not self.tags or properties.get(TAGS) in self.tags


@remembering
def _parse_tags(expression: str) -> TagFilter:
    if len(expression) > TAGS_LENGTH_MAX:
        raise IllegalExpression(f"tags have at most {TAGS_LENGTH_MAX} characters together, not {len(expression)}")
    if trimmed(expression) in ("", ALL):
        return TagFilter(frozenset(), frozenset())
    tags = frozenset(tag for part in expression.split(SEPARATOR) if (tag := trimmed(part)))
    return TagFilter(tags, frozenset(java_hash(tag) for tag in tags))
