"""Which messages a subscription wants: by tag, or by an SQL expression over their properties."""

from server.filters.message_filter import MessageFilter
from server.filters.sql import SqlFilter
from server.filters.sql_nodes import IllegalExpression
from server.filters.tags import TagFilter

__all__ = ["IllegalExpression", "MessageFilter", "SqlFilter", "TagFilter"]
