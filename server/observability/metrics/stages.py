"""Export metrics of the stages of sends and receives, and of scheduled and prepared messages."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from quarry_mq.server.counters.stages import ReceiveStages, SendStages
from quarry_mq.server.observability.samples import Sampling
from quarry_mq.server.observability.waiting_figures import WaitingFigures


def stage_figures(sends: SendStages, receives: ReceiveStages) -> Iterator[Metric]:
    for name, meaning, stages in (
        ("send", "Time of sends, by stage", sends),
        ("receive", "Time of receives that return messages, by stage", receives),
    ):
        family = HistogramMetricFamily(f"quarry_{name}_stage_seconds", meaning, labels=["stage"])
        for stage, tally in stages:
            family.add_metric([stage], buckets=list(tally.buckets()), sum_value=tally.total)
        yield family


def waiting_metrics(waiting: WaitingFigures, sampling: Sampling) -> Iterator[Metric]:
    for name, meaning, value in (
        ("delayed_messages_waiting", "Delayed messages that are not due yet", waiting.timers),
        ("transactions_waiting", "Half messages that are neither committed nor rolled back", waiting.halves),
        (
            "delayed_next_due_seconds",
            "Time until the next delayed message is due; negative if it is overdue",
            waiting.next_due_s,
        ),
        ("sampled_age_seconds", "Age of the numbers that are collected in the background", sampling.age_s),
    ):
        family = GaugeMetricFamily(f"quarry_{name}", meaning, labels=[])
        if value is not None:
            family.add_metric([], value)
        yield family
