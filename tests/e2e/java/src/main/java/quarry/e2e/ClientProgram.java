package quarry.e2e;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Producer and consumers of the official Java client, chosen by the first argument.
 * Speaks the line protocol of {@code tests/e2e/README.md}.
 */
public final class ClientProgram {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private final Map<String, List<String>> options = new HashMap<>();
    private final ClientConfiguration configuration;

    private ClientProgram(String[] args) {
        for (int i = 1; i < args.length; i += 2) {
            options.computeIfAbsent(args[i].substring(2), name -> new ArrayList<>()).add(args[i + 1]);
        }
        boolean tls = "on".equals(System.getenv("CLIENT_TLS"));
        ClientConfigurationBuilder builder =
            ClientConfiguration.newBuilder().setEndpoints(option("endpoint", null));
        if (!tls) {
            builder.enableSsl(false);  // with TLS the client is as an application gets it
        }
        if (System.getenv("CLIENT_USER") != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(System.getenv("CLIENT_USER"), System.getenv("CLIENT_SECRET")));
        }
        configuration = builder.build();
    }

    public static void main(String[] args) throws Exception {
        ClientProgram program = new ClientProgram(args);
        switch (args[0]) {
            case "producer" -> program.produce();
            case "simple-consumer" -> program.consumeSimply();
            case "push-consumer" -> program.consumePushed();
            case "lite-push-consumer" -> program.consumeLitePushed();
            default -> throw new IllegalArgumentException("unknown client " + args[0]);
        }
        System.exit(0);
    }

    private interface Answer {
        JsonObject to(JsonObject command) throws Exception;
    }

    private void produce() throws Exception {
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(options.getOrDefault("topic", List.of()).toArray(new String[0]));
        List<String> checked = new CopyOnWriteArrayList<>();
        if (options.containsKey("checker")) {
            TransactionResolution resolution =
                TransactionResolution.valueOf(option("checker", null).toUpperCase(Locale.ROOT));
            builder.setTransactionChecker(message -> {
                checked.add(message.getMessageId().toString());
                return resolution;
            });
        }
        Producer producer = builder.build();
        say(line("ready", "producer"));
        Answer answerChecked = command -> {
            JsonObject answer = new JsonObject();
            answer.add("message_ids", GSON.toJsonTree(checked));
            return answer;
        };
        Answer recall = command -> {
            producer.recallMessage(command.get("topic").getAsString(), command.get("recall_handle").getAsString());
            return new JsonObject();
        };
        serve(Map.of("send", command -> send(producer, command), "send_in_transaction",
            command -> sendInTransaction(producer, command), "checked", answerChecked, "recall", recall));
        producer.close();
    }

    private static JsonObject send(Producer producer, JsonObject command) {
        JsonArray receipts = new JsonArray();
        for (JsonElement fields : command.getAsJsonArray("messages")) {
            long startedMs = System.currentTimeMillis();
            try {
                SendReceipt receipt = producer.send(build(fields.getAsJsonObject()));
                JsonObject line = line("message_id", receipt.getMessageId().toString());
                String recallHandle = receipt.getRecallHandle();
                line.addProperty("recall_handle", "".equals(recallHandle) ? null : recallHandle);
                line.addProperty("at_ms", startedMs);
                receipts.add(line);
            } catch (Exception error) {
                receipts.add(failure(error));
            }
        }
        JsonObject answer = new JsonObject();
        answer.add("receipts", receipts);
        return answer;
    }

    private static JsonObject sendInTransaction(Producer producer, JsonObject command) throws Exception {
        long startedMs = System.currentTimeMillis();
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(build(command.getAsJsonObject("message")), transaction);
        switch (command.get("resolution").getAsString()) {
            case "commit" -> transaction.commit();
            case "rollback" -> transaction.rollback();
            default -> { }
        }
        JsonObject answer = line("message_id", receipt.getMessageId().toString());
        answer.addProperty("at_ms", startedMs);
        return answer;
    }

    private static Message build(JsonObject fields) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(fields.get("topic").getAsString())
            .setBody(Base64.getDecoder().decode(fields.get("body").getAsString()));
        if (has(fields, "tag")) {
            builder.setTag(fields.get("tag").getAsString());
        }
        if (has(fields, "message_group")) {
            builder.setMessageGroup(fields.get("message_group").getAsString());
        }
        if (has(fields, "lite_topic")) {
            builder.setLiteTopic(fields.get("lite_topic").getAsString());
        }
        if (has(fields, "delivery_ms")) {
            builder.setDeliveryTimestamp(fields.get("delivery_ms").getAsLong());
        }
        if (has(fields, "priority")) {
            builder.setPriority(fields.get("priority").getAsInt());
        }
        if (fields.has("keys") && !fields.getAsJsonArray("keys").isEmpty()) {
            List<String> keys = new ArrayList<>();
            fields.getAsJsonArray("keys").forEach(key -> keys.add(key.getAsString()));
            builder.setKeys(keys.toArray(new String[0]));
        }
        if (fields.has("properties")) {
            fields.getAsJsonObject("properties").entrySet()
                .forEach(entry -> builder.addProperty(entry.getKey(), entry.getValue().getAsString()));
        }
        return builder.build();
    }

    private static boolean has(JsonObject fields, String name) {
        return fields.has(name) && !fields.get(name).isJsonNull();
    }

    private void consumeSimply() throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(option("group", null)).setSubscriptionExpressions(subscriptions())
            .setAwaitDuration(Duration.ofSeconds(Long.parseLong(option("await-s", "5")))).build();
        say(line("ready", "simple consumer"));
        // By number, so that a command can name one of several deliveries of a message.
        List<MessageView> deliveries = new ArrayList<>();
        Answer receive = command -> {
            JsonArray messages = new JsonArray();
            Duration invisible = Duration.ofSeconds(command.get("invisible_s").getAsLong());
            for (MessageView message : consumer.receive(command.get("count").getAsInt(), invisible)) {
                JsonObject line = messageLine(message);
                line.addProperty("delivery", deliveries.size());
                messages.add(line);
                deliveries.add(message);
            }
            JsonObject answer = new JsonObject();
            answer.add("messages", messages);
            return answer;
        };
        Answer ack = command -> {
            JsonArray results = new JsonArray();
            for (JsonElement delivery : command.getAsJsonArray("deliveries")) {
                JsonObject result = new JsonObject();
                try {
                    consumer.ack(deliveries.get(delivery.getAsInt()));
                } catch (Exception error) {
                    result = failure(error);
                }
                result.add("delivery", delivery);
                results.add(result);
            }
            JsonObject answer = new JsonObject();
            answer.add("results", results);
            return answer;
        };
        Answer changeInvisible = command -> {
            consumer.changeInvisibleDuration(deliveries.get(command.get("delivery").getAsInt()),
                Duration.ofSeconds(command.get("invisible_s").getAsLong()));
            return new JsonObject();
        };
        serve(Map.of("receive", receive, "ack", ack, "change_invisible", changeInvisible));
        consumer.close();
    }

    private void consumePushed() throws Exception {
        int failedAttempts = Integer.parseInt(option("failed-attempts", "0"));
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(option("group", null)).setSubscriptionExpressions(subscriptions())
            .setMessageListener(message -> {
                boolean failed = message.getDeliveryAttempt() <= failedAttempts;
                JsonObject shown = messageLine(message);
                shown.addProperty("failed", failed);
                JsonObject line = new JsonObject();
                line.add("message", shown);
                say(line);
                return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        say(line("ready", "push consumer"));
        serve(Map.of());
        consumer.close();
    }

    private void consumeLitePushed() throws Exception {
        int failedAttempts = Integer.parseInt(option("failed-attempts", "0"));
        Map<String, Integer> attempts = new ConcurrentHashMap<>();
        LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(option("group", null)).bindTopic(option("topic", null))
            .setMessageListener(message -> {
                boolean failed = attempts.merge(message.getMessageId().toString(), 1, Integer::sum) <= failedAttempts;
                JsonObject shown = messageLine(message);
                shown.addProperty("failed", failed);
                JsonObject line = new JsonObject();
                line.add("message", shown);
                say(line);
                return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        say(line("ready", "lite push consumer"));
        Answer subscribe = command -> {
            String liteTopic = command.get("lite_topic").getAsString();
            if (has(command, "start")) {
                consumer.subscribeLite(liteTopic, start(command.getAsJsonObject("start")));
            } else {
                consumer.subscribeLite(liteTopic);
            }
            return new JsonObject();
        };
        Answer unsubscribe = command -> {
            consumer.unsubscribeLite(command.get("lite_topic").getAsString());
            return new JsonObject();
        };
        Answer subscribed = command -> {
            JsonObject answer = new JsonObject();
            answer.add("lite_topics", GSON.toJsonTree(new TreeSet<>(consumer.getLiteTopicSet())));
            return answer;
        };
        serve(Map.of("subscribe", subscribe, "unsubscribe", unsubscribe, "subscribed", subscribed));
        consumer.close();
    }

    private static OffsetOption start(JsonObject wanted) {
        String kind = wanted.keySet().iterator().next();
        JsonElement value = wanted.get(kind);
        return switch (kind) {
            case "policy" -> switch (value.getAsString()) {
                case "last" -> OffsetOption.LAST_OFFSET;
                case "min" -> OffsetOption.MIN_OFFSET;
                case "max" -> OffsetOption.MAX_OFFSET;
                default -> throw new IllegalArgumentException("unknown policy " + value);
            };
            case "offset" -> OffsetOption.ofOffset(value.getAsLong());
            case "tail_n" -> OffsetOption.ofTailN(value.getAsLong());
            case "timestamp" -> OffsetOption.ofTimestamp(value.getAsLong());
            default -> throw new IllegalArgumentException("unknown start " + kind);
        };
    }

    private Map<String, FilterExpression> subscriptions() {
        FilterExpressionType type =
            option("filter-type", "tag").equals("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        Map<String, FilterExpression> subscriptions = new HashMap<>();
        for (String topic : options.get("topic")) {
            subscriptions.put(topic, new FilterExpression(option("filter", "*"), type));
        }
        return subscriptions;
    }

    private String option(String name, String fallback) {
        List<String> values = options.get(name);
        if (values == null && fallback == null) {
            throw new IllegalArgumentException("missing --" + name);
        }
        return values == null ? fallback : values.get(0);
    }

    /** Answers every command with one line, in order, until `close` or the end of the input. */
    private static void serve(Map<String, Answer> answers) throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String text = input.readLine(); text != null; text = input.readLine()) {
            JsonObject command = JsonParser.parseString(text).getAsJsonObject();
            String name = command.get("command").getAsString();
            if (name.equals("close")) {
                return;
            }
            try {
                say(answers.get(name).to(command));
            } catch (Exception error) {
                say(failure(error));
            }
        }
    }

    private static JsonObject messageLine(MessageView message) {
        byte[] body = new byte[message.getBody().remaining()];
        ByteBuffer buffer = message.getBody();
        buffer.get(body);
        JsonObject line = line("message_id", message.getMessageId().toString());
        line.addProperty("topic", message.getTopic());
        line.addProperty("body", Base64.getEncoder().encodeToString(body));
        line.addProperty("tag", message.getTag().orElse(null));
        line.add("keys", GSON.toJsonTree(new TreeSet<>(message.getKeys())));
        line.add("properties", GSON.toJsonTree(message.getProperties()));
        line.addProperty("message_group", message.getMessageGroup().orElse(null));
        line.addProperty("lite_topic", message.getLiteTopic().orElse(null));
        line.addProperty("priority", message.getPriority().orElse(null));
        line.addProperty("attempt", message.getDeliveryAttempt());
        line.addProperty("born_ms", message.getBornTimestamp());
        line.addProperty("corrupted", false); // the client does not hand out corrupted messages
        line.addProperty("at_ms", System.currentTimeMillis());
        return line;
    }

    private static JsonObject failure(Exception error) {
        JsonObject description = line("type", error.getClass().getSimpleName());
        description.addProperty("text", String.valueOf(error.getMessage()));
        description.add("code", JsonNull.INSTANCE);
        JsonObject line = new JsonObject();
        line.add("error", description);
        return line;
    }

    private static JsonObject line(String name, String value) {
        JsonObject line = new JsonObject();
        line.addProperty(name, value);
        return line;
    }

    private static synchronized void say(JsonObject line) {
        OUT.println(GSON.toJson(line));
        OUT.flush();
    }
}
