import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Load generator for a RocketMQ 5 endpoint, with Apache's client for Java; prints its report as one JSON object.
 *
 * <pre>
 * V5Load send    --endpoint H:P --topic T --n 100000 --in-flight 64 --delay-ms 60000
 * V5Load receive --endpoint H:P --topic T --n 100000 --group G --lanes 4
 * V5Load late    --endpoint H:P --topic T --n 4000 --group G --rate 200 --delay-ms 3000
 * </pre>
 *
 * The option --warm N processes N messages before the measurement.
 */
public final class V5Load {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int BATCH = 32;
    private static final int BODY_BYTES = 100;
    private static final Duration INVISIBLE = Duration.ofSeconds(60);
    private static final long IDLE_MS = 20_000;
    private final Map<String, String> options = new HashMap<>();

    public static void main(String[] words) throws Exception {
        V5Load load = new V5Load();
        for (int i = 1; i + 1 < words.length; i += 2) {
            load.options.put(words[i].substring(2), words[i + 1]);
        }
        switch (words[0]) {
            case "send":
                load.send();
                break;
            case "receive":
                load.receive();
                break;
            case "late":
                load.late();
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
        System.exit(0);
    }

    private int number(String name, int fallback) {
        return Integer.parseInt(options.getOrDefault(name, String.valueOf(fallback)));
    }

    private ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(options.get("endpoint"))
            .enableSsl(Boolean.parseBoolean(options.getOrDefault("tls", "false")))
            .setRequestTimeout(Duration.ofSeconds(10)).build();
    }

    private Producer producer() throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration())
            .setTopics(options.get("topic")).build();
    }

    private SimpleConsumer consumer() throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(options.get("group")).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(options.get("topic"), FilterExpression.SUB_ALL))
            .build();
    }

    private Message message() {
        byte[] body = new byte[BODY_BYTES];
        Arrays.fill(body, (byte) 'x');
        var builder = PROVIDER.newMessageBuilder().setTopic(options.get("topic")).setBody(body);
        int delayMs = number("delay-ms", 0);
        if (delayMs > 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + delayMs);
        }
        return builder.build();
    }

    private void send() throws Exception {
        try (Producer producer = producer()) {
            sendAll(producer, number("warm", 0));
            long begin = System.nanoTime();
            int failed = sendAll(producer, number("n", 10_000));
            report(number("n", 10_000) - failed, begin, "failed", failed);
        }
    }

    /** Sends messages with a limited number in flight; returns the number of failed sends. */
    private int sendAll(Producer producer, int count) throws Exception {
        int inFlight = number("in-flight", 64);
        Semaphore free = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            free.acquire();
            producer.sendAsync(message()).whenComplete((receipt, error) -> {
                if (error != null && failed.getAndIncrement() == 0) {
                    error.printStackTrace();
                }
                free.release();
            });
        }
        free.acquire(inFlight);
        return failed.get();
    }

    private void receive() throws Exception {
        Received received = new Received(number("n", 10_000));
        try (SimpleConsumer consumer = consumer()) {
            received.finish(consumer, number("lanes", 4));
            report(received.acknowledged.get(), received.beginNanos, "failed", received.failed.get(), "duplicates",
                received.duplicates.get());
        }
    }

    private void late() throws Exception {
        int warm = number("warm", 0);
        int count = number("n", 1_000) + warm;
        Received received = new Received(count);
        try (SimpleConsumer consumer = consumer(); Producer producer = producer()) {
            Thread taking = new Thread(() -> received.finish(consumer, number("lanes", 4)));
            taking.start();
            long begin = System.nanoTime();
            long gapNanos = TimeUnit.SECONDS.toNanos(1) / number("rate", 200);
            for (int i = 0; i < count; i++) {
                long left = begin + i * gapNanos - System.nanoTime();
                if (left > 0) {
                    TimeUnit.NANOSECONDS.sleep(left);
                }
                producer.sendAsync(message());
            }
            taking.join();
            long[] late = received.lateMs.stream().skip(warm).mapToLong(Long::longValue).sorted().toArray();
            report(late.length, begin, "failed", received.failed.get(), "duplicates", received.duplicates.get(),
                "lost", count - received.seen.size(), "early", Arrays.stream(late).filter(ms -> ms < 0).count(),
                "p50", at(late, .5), "p99", at(late, .99), "max", at(late, 1));
        }
    }

    private static long at(long[] sorted, double share) {
        return sorted.length == 0 ? -1 : sorted[(int) (share * (sorted.length - 1))];
    }

    /** Messages that all lanes of a consumer received and acknowledged. */
    private static final class Received {
        private final int wanted;
        private final Map<String, Boolean> seen = new ConcurrentHashMap<>();
        private final ConcurrentLinkedQueue<Long> lateMs = new ConcurrentLinkedQueue<>();
        private final AtomicInteger acknowledged = new AtomicInteger();
        private final AtomicInteger duplicates = new AtomicInteger();
        private final AtomicInteger failed = new AtomicInteger();
        private final AtomicLong lastMs = new AtomicLong(System.currentTimeMillis());
        private final CountDownLatch done = new CountDownLatch(1);
        private volatile long beginNanos;

        Received(int wanted) {
            this.wanted = wanted;
        }

        void finish(SimpleConsumer consumer, int lanes) {
            beginNanos = System.nanoTime();
            for (int i = 0; i < lanes; i++) {
                next(consumer);
            }
            try {
                while (!done.await(1, TimeUnit.SECONDS) && System.currentTimeMillis() - lastMs.get() < IDLE_MS) {
                    continue;
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }

        private void next(SimpleConsumer consumer) {
            consumer.receiveAsync(BATCH, INVISIBLE).whenComplete((views, error) -> {
                if (error == null) {
                    take(consumer, views);
                }
                if (done.getCount() > 0) {
                    next(consumer);
                }
            });
        }

        private void take(SimpleConsumer consumer, List<MessageView> views) {
            long nowMs = System.currentTimeMillis();
            for (MessageView view : views) {
                lastMs.set(nowMs);
                view.getDeliveryTimestamp().ifPresent(dueMs -> lateMs.add(nowMs - dueMs));
                if (seen.put(view.getMessageId().toString(), true) != null) {
                    duplicates.incrementAndGet();
                }
                consumer.ackAsync(view).whenComplete((nothing, error) -> {
                    if (error != null && failed.getAndIncrement() == 0) {
                        error.printStackTrace();
                    }
                    if (error == null && acknowledged.incrementAndGet() == wanted) {
                        done.countDown();
                    }
                });
            }
        }
    }

    private static void report(long count, long beginNanos, Object... more) {
        double seconds = (System.nanoTime() - beginNanos) / 1e9;
        StringBuilder text = new StringBuilder("{\"count\":" + count + ",\"per_second\":" + count / seconds);
        for (int i = 0; i < more.length; i += 2) {
            text.append(",\"").append(more[i]).append("\":").append(more[i + 1]);
        }
        System.out.println(text.append('}'));
    }
}
