"""What other members hold is unread, too: the number of queues is one for all."""

from __future__ import annotations

from tests.cluster.brokers import BrokerCluster, groups_of
from tests.cluster.conftest import WithCluster
from tests.cluster.test_message_groups import receive, send
from tests.conformance.broker import until
from tests.conformance.test_queue_counts import queues_of, update


def test_what_another_member_holds_unread_keeps_the_number_of_queues(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a", "b")
        await cluster.settled("a", "b")
        await cluster.make_topic()
        [group] = groups_of("b", ["a", "b"])
        assert await receive(cluster["b"], polling_s=0) == []
        await send(cluster["b"], group, "m0", "m1")
        refusal = await update(cluster["a"], 8)
        assert refusal.startswith("topic orders: messages at member b would lose their order: 2 that ")
        assert await receive(cluster["b"], polling_s=8) == ["m0", "m1"]
        assert await update(cluster["a"], 8) == ""
        await until(lambda: queues_of(cluster["b"]) == (8, 8), "the other member knows")
        await cluster.stop("b")
        assert "what is unread at all members is not known" in await update(cluster["a"], 2)
        assert queues_of(cluster["a"]) == (8, 8)
        assert await update(cluster["a"], 2, break_order=True) == ""

    with_cluster(test)
