"""Define the sections of the settings: each key with its default, its bounds and its description."""

from __future__ import annotations

from quarry_mq.server.settings.sections.base import OFF, Section, is_loopback
from quarry_mq.server.settings.sections.cluster import ClusterSection
from quarry_mq.server.settings.sections.delivery import (
    DeliverySection,
    GroupsSection,
    LiteSection,
    NewGroupStart,
    TopicsSection,
    TransactionsSection,
)
from quarry_mq.server.settings.sections.limits import LimitsSection
from quarry_mq.server.settings.sections.metrics import LogSection, MetricsSection, TracingSection
from quarry_mq.server.settings.sections.network import BrokerSection, NetworkSection
from quarry_mq.server.settings.sections.remoting import RemotingSection
from quarry_mq.server.settings.sections.replication import ReplicationSection
from quarry_mq.server.settings.sections.security import SecuritySection
from quarry_mq.server.settings.sections.store import (
    ConsumeQueueSection,
    ExpirySection,
    IndexSection,
    StoreSection,
    VerificationSection,
)

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
    "NewGroupStart",
    "RemotingSection",
    "ReplicationSection",
    "Section",
    "SecuritySection",
    "StoreSection",
    "TopicsSection",
    "TracingSection",
    "TransactionsSection",
    "VerificationSection",
    "is_loopback",
]
