"""What a member sends once more goes to who has the message group now."""

from __future__ import annotations

from quarry_mq.protocol.messages.property_names import RESENT_ID
from quarry_mq.store.offsets import QueueId, QueueOffset
from tests.cluster.brokers import TOPIC, BrokerCluster, groups_of
from tests.cluster.conftest import WithCluster
from tests.cluster.test_message_groups import receive, send
from tests.conformance.jobs import done, job_service, resend


def test_messages_of_a_group_that_has_moved_are_sent_to_its_new_owner(with_cluster: WithCluster) -> None:
    async def test(cluster: BrokerCluster) -> None:
        await cluster.start("a")
        await cluster.make_topic()
        await cluster.settled("a")
        [moves] = groups_of("a", ["a"], but=("b", ["a", "b"]))
        sent = [f"m{number}" for number in range(40)]
        await send(cluster["a"], moves, *sent)
        assert await receive(cluster["a"], polling_s=8) == sent
        await cluster.start("b")
        await cluster.settled("a", "b")
        async with job_service(cluster["a"]) as jobs:
            job = await done(jobs, resend(TOPIC, from_ms=0))
        assert (job.state, dict(job.counts)) == ("done", {"sent": 40})
        assert await receive(cluster["b"], polling_s=8) == sent
        store = cluster["b"].store.messages
        found = [
            store.read(each)
            for number in range(2)
            for each in store.entries(QueueId(TOPIC, number), QueueOffset(0), 100)
        ]
        assert len({each.properties[RESENT_ID] for each in found}) == 40

    with_cluster(test)
