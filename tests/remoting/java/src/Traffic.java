import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends to `traffic` and consumes it until it is killed, with traces, retries and dead letters, for tools to look at. */
public class Traffic {
    static final int PATIENCE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String names = arguments[0];
        DefaultMQProducer producer = new DefaultMQProducer("traffic-producers", true, null);
        producer.setNamesrvAddr(names);
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.start();
        producer.send(new Message("traffic", "first", "key-0", "the first message".getBytes()));
        start(names, "traffic-consumers", Set.of("bad"));
        start(names, "traffic-readers", Set.of());
        System.out.println("started");
        for (int number = 1; ; number++) {
            String tag = number % 5 == 0 ? "bad" : "good";
            producer.send(new Message("traffic", tag, "key-" + number, ("message " + number).getBytes()));
            Thread.sleep(200);
        }
    }

    static void start(String names, String group, Set<String> refused) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        consumer.setNamesrvAddr(names);
        consumer.setInstanceName(group);
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe("traffic", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            boolean isGood = messages.stream().noneMatch(each -> refused.contains(each.getTags()));
            return isGood ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
    }
}
