"""The sections of the settings: each key with its default, its bounds and its description."""

from __future__ import annotations

from server.setting_sections.base import OFF, Section, is_loopback
from server.setting_sections.cluster import ClusterSection
from server.setting_sections.delivery import DeliverySection, GroupsSection, TopicsSection, TransactionsSection
from server.setting_sections.limits import LimitsSection
from server.setting_sections.lite import LiteSection
from server.setting_sections.log import LogSection
from server.setting_sections.metrics import MetricsSection, TracingSection
from server.setting_sections.network import BrokerSection, NetworkSection
from server.setting_sections.security import SecuritySection
from server.setting_sections.store import ConsumeQueueSection, ExpirySection, IndexSection, StoreSection

__all__ = [
    "OFF",
    "BrokerSection",
    "ClusterSection",
    "ConsumeQueueSection",
    "DeliverySection",
    "ExpirySection",
    "GroupsSection",
    "IndexSection",
    "LimitsSection",
    "LiteSection",
    "LogSection",
    "MetricsSection",
    "NetworkSection",
    "Section",
    "SecuritySection",
    "StoreSection",
    "TopicsSection",
    "TracingSection",
    "TransactionsSection",
    "is_loopback",
]
