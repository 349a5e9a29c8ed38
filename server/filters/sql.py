"""SQL-92 filter expressions, each compiled once into a function."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache, partial
from typing import Final, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from quarry_mq.server.filters import sql_nodes as nodes
from quarry_mq.server.filters.message_filter import LENGTH_MAX, remembering
from quarry_mq.server.filters.sql_nodes import IllegalExpression, Node

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
