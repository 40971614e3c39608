import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
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
 * Drives Apache's gRPC client for Java; the commands and events are those of grpc_client.py.
 * --namesrv is the address of the gRPC port; -Dgrpc.tls=true connects by TLS.
 */
public final class GrpcClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private GrpcClient() {
    }

    public static void main(String[] words) throws Exception {
        Session.main(words, GrpcClient::dispatch);
    }

    private static void dispatch(Args args, Events events) throws Exception {
        switch (args.command) {
            case "produce": produce(args, events); break;
            case "recall": recall(args, events); break;
            case "receive": receive(args, events); break;
            case "push-consume": pushConsume(args, events); break;
            default: throw new IllegalArgumentException("no such command: " + args.command);
        }
    }

    private static ClientConfiguration configuration(Args args) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(args.text("namesrv")).enableSsl(Boolean.getBoolean("grpc.tls"))
            .setRequestTimeout(Duration.ofSeconds(10));
        if (args.has("access-key")) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(args.text("access-key"), args.text("secret-key")));
        }
        return builder.build();
    }

    private static ProducerBuilder producer(Args args) {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration(args))
            .setTopics(args.text("topic"));
    }

    /** Sends --n messages; with --end commit, rollback or none as half messages. */
    private static void produce(Args args, Events events) throws Exception {
        ProducerBuilder builder = producer(args);
        if (args.has("end")) {
            TransactionResolution checked = TransactionResolution.valueOf(args.text("checked", "commit").toUpperCase());
            builder.setTransactionChecker(view -> {
                events.print("checked", "msgId", view.getMessageId().toString());
                return checked;
            });
        }
        try (Producer producer = builder.build()) {
            for (int i = 0; i < args.number("n", 1); i++) {
                SendReceipt sent = send(args, producer, message(args, i));
                events.print("sent", "i", i, "msgId", sent.getMessageId().toString(),
                    "recallHandle", sent.getRecallHandle() == null ? "" : sent.getRecallHandle());
            }
            args.stoppedWithin(args.time("linger-ms", 0));
        }
    }

    private static SendReceipt send(Args args, Producer producer, Message message) throws Exception {
        if (!args.has("end")) {
            return producer.send(message);
        }
        Transaction transaction = producer.beginTransaction();
        SendReceipt sent = producer.send(message, transaction);
        if (args.text("end").equals("commit")) {
            transaction.commit();
        } else if (args.text("end").equals("rollback")) {
            transaction.rollback();
        }
        return sent;
    }

    private static Message message(Args args, int i) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(args.text("topic"))
            .setBody((args.text("body", "body") + "-" + i).getBytes(StandardCharsets.UTF_8));
        if (args.has("tags")) {
            builder.setTag(args.text("tags"));
        }
        if (args.has("keys")) {
            builder.setKeys(args.text("keys") + "-" + i);
        }
        if (args.has("message-group")) {
            builder.setMessageGroup(args.text("message-group"));
        }
        if (args.has("property")) {
            for (String property : args.text("property").split("\\|")) {
                String[] pair = property.split("=", 2);
                builder.addProperty(pair[0], pair[1]);
            }
        }
        if (args.has("priorities")) {
            builder.setPriority(i);
        }
        if (args.has("delay-ms")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + args.time("delay-ms", 0));
        }
        return builder.build();
    }

    private static void recall(Args args, Events events) throws Exception {
        try (Producer producer = producer(args).build()) {
            events.print("recalled", "msgId",
                producer.recallMessage(args.text("topic"), args.text("handle")).getMessageId().toString());
        }
    }

    private static Map<String, FilterExpression> filters(Args args) {
        return Collections.singletonMap(args.text("topic"), new FilterExpression(args.text("tags", "*")));
    }

    /** Receives and acknowledges; the first --hold-first are not; --change-ms changes their invisible time. */
    private static void receive(Args args, Events events) throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(args)).setConsumerGroup(args.text("group"))
            .setSubscriptionExpressions(filters(args)).setAwaitDuration(Duration.ofSeconds(1)).build()) {
            events.print("started");
            long end = System.currentTimeMillis() + args.time("wait-ms", 60_000);
            int seen = 0;
            int acknowledged = 0;
            Duration invisible = Duration.ofMillis(args.time("invisible-ms", 10_000));
            while (acknowledged < args.number("until", Integer.MAX_VALUE) && System.currentTimeMillis() < end
                && !args.stoppedWithin(0)) {
                for (MessageView view : consumer.receive(args.number("batch", 32), invisible)) {
                    seen++;
                    if (seen > args.number("hold-first", 0)) {
                        consumer.ack(view);
                        acknowledged++;
                        events.print("message", fields(view, "acknowledged"));
                        continue;
                    }
                    if (args.has("change-ms")) {
                        consumer.changeInvisibleDuration(view, Duration.ofMillis(args.time("change-ms", 0)));
                    }
                    events.print("message", fields(view, "held"));
                }
            }
        }
    }

    /** Consumes; the first --fail-first deliveries fail. */
    private static void pushConsume(Args args, Events events) throws Exception {
        AtomicInteger seen = new AtomicInteger();
        AtomicInteger consumed = new AtomicInteger();
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(args)).setConsumerGroup(args.text("group"))
            .setSubscriptionExpressions(filters(args)).setMessageListener(view -> {
                boolean fails = seen.incrementAndGet() <= args.number("fail-first", 0);
                events.print("message", fields(view, fails ? "later" : "consumed"));
                consumed.addAndGet(fails ? 0 : 1);
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build()) {
            events.print("started");
            long end = System.currentTimeMillis() + args.time("wait-ms", 60_000);
            while (consumed.get() < args.number("until", Integer.MAX_VALUE) && System.currentTimeMillis() < end
                && !args.stoppedWithin(20)) {
                continue;
            }
        }
    }

    private static Map<String, Object> fields(MessageView view, String action) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("action", action);
        fields.put("msgId", view.getMessageId().toString());
        fields.put("topic", view.getTopic());
        fields.put("body", StandardCharsets.UTF_8.decode(view.getBody()).toString());
        fields.put("attempt", view.getDeliveryAttempt());
        fields.put("tags", view.getTag().orElse(""));
        fields.put("keys", String.join(" ", view.getKeys()));
        fields.put("messageGroup", view.getMessageGroup().orElse(""));
        fields.put("bornTimestamp", view.getBornTimestamp());
        fields.put("priority", view.getPriority().orElse(-1));
        fields.put("properties", view.getProperties());
        return fields;
    }
}
