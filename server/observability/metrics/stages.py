"""Export metrics of the stages of sends and receives, and of scheduled and prepared messages."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from quarry_mq.server.counters.stages import ReceiveStages, SendStages
from quarry_mq.server.observability.samples import Sampling
from quarry_mq.server.observability.waiting_figures import WaitingFigures


def stage_figures(sends: SendStages, receives: ReceiveStages) -> Iterator[Metric]:
    for name, meaning, stages in (
        ("send", "Where the time of sends goes", sends),
        ("receive", "Where the time of receives that bring messages goes", receives),
    ):
        family = HistogramMetricFamily(f"quarry_{name}_stage_seconds", meaning, labels=["stage"])
        for stage, tally in stages:
            family.add_metric([stage], buckets=list(tally.buckets()), sum_value=tally.total)
        yield family


def waiting_metrics(waiting: WaitingFigures, sampling: Sampling) -> Iterator[Metric]:
    for name, meaning, value in (
        ("delayed_messages_waiting", "Delayed messages that wait for their time", waiting.timers),
        ("transactions_waiting", "Half messages that nobody has committed or rolled back", waiting.halves),
        (
            "delayed_next_due_seconds",
            "Until the next delayed message is due; below 0 when it is late",
            waiting.next_due_s,
        ),
        ("sampled_age_seconds", "How old figures are that are made in the background", sampling.age_s),
    ):
        family = GaugeMetricFamily(f"quarry_{name}", meaning, labels=[])
        if value is not None:
            family.add_metric([], value)
        yield family
