"""Filters that decide which messages a subscription gets: by tag, or by an SQL expression over their properties."""

from quarry_mq.server.filters.message_filter import MessageFilter
from quarry_mq.server.filters.sql import SqlFilter
from quarry_mq.server.filters.sql_nodes import IllegalExpression
from quarry_mq.server.filters.tags import TagFilter

__all__ = ["IllegalExpression", "MessageFilter", "SqlFilter", "TagFilter"]
