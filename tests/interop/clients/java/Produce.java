import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * produce: --mode sync, async, oneway, batch or ordered; with --priorities, message i has priority i; --property
 * NAME=VALUE|NAME=VALUE.
 */
final class Produce {
    private Produce() {
    }

    static void run(Args args, Events events) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group", "p_" + args.id), Shared.hook(args));
        start(producer, args);
        try {
            send(producer, args, events);
        } finally {
            producer.shutdown();
        }
    }

    static void start(DefaultMQProducer producer, Args args) throws Exception {
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setInstanceName(Shared.instance(args));
        producer.setSendMsgTimeout(args.number("send-timeout-ms", 10_000));
        producer.setMqClientApiTimeout(Shared.API_TIMEOUT_MS);
        producer.setPollNameServerInterval(1_000);
        producer.start();
    }

    /** One message of a series: body PREFIX-i, or that padded to --body-size characters. */
    static Message message(Args args, int i) {
        StringBuilder body = new StringBuilder(args.text("body", "body") + "-" + i);
        while (body.length() < args.number("body-size", 0)) {
            body.append('.');
        }
        byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
        Message message = new Message(args.text("topic"), args.text("tags", ""), "", bytes);
        if (args.has("keys")) {
            message.setKeys(args.text("keys") + "-" + i);
        }
        if (args.has("level")) {
            message.setDelayTimeLevel(args.number("level", 0));
        }
        if (args.has("priorities")) {
            setPriority(message, i);
        }
        if (args.has("property")) {
            for (String property : args.text("property").split("\\|")) {
                String[] pair = property.split("=", 2);
                message.putUserProperty(pair[0], pair[1]);
            }
        }
        return message;
    }

    /** The method is of version 5.4. */
    private static void setPriority(Message message, int priority) {
        try {
            Message.class.getMethod("setPriority", int.class).invoke(message, priority);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void send(DefaultMQProducer producer, Args args, Events events) throws Exception {
        int n = args.number("n", 1);
        String mode = args.text("mode", "sync");
        if (mode.equals("async")) {
            sendAsync(producer, args, events, n);
        } else if (mode.equals("batch")) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < n; i++) {
                batch.add(message(args, i));
            }
            events.print("sent", Fields.sent(0, producer.send(batch)));
        } else {
            for (int i = 0; i < n; i++) {
                sendOne(producer, args, events, mode, i);
            }
        }
    }

    private static void sendOne(DefaultMQProducer producer, Args args, Events events, String mode, int i)
        throws Exception {
        Message message = message(args, i);
        if (mode.equals("oneway")) {
            producer.sendOneway(message);
            events.print("sent", "i", i, "oneway", true);
        } else if (mode.equals("ordered")) {
            Integer shard = i % args.number("shards", 2);
            SendResult result = producer.send(message,
                (queues, m, chosen) -> queues.get((Integer) chosen % queues.size()), shard);
            events.print("sent", Fields.sent(i, result));
        } else {
            events.print("sent", Fields.sent(i, producer.send(message)));
        }
    }

    private static void sendAsync(DefaultMQProducer producer, Args args, Events events, int n) throws Exception {
        CountDownLatch open = new CountDownLatch(n);
        for (int i = 0; i < n; i++) {
            int index = i;
            producer.send(message(args, i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    events.print("sent", Fields.sent(index, result));
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    events.print("refused", "i", index, "text", String.valueOf(error.getMessage()));
                    open.countDown();
                }
            });
        }
        if (!open.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " asynchronous sends without an answer");
        }
    }
}
