import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * push-consume: --mode concurrent, orderly or broadcast. The first --fail-first messages are refused once. --sql
 * subscribes with an SQL92 filter; --server-rebalance true lets the broker assign queues, and --pop-invisible-ms is the
 * invisible time of popped messages. Ends --linger-ms after --until messages were consumed, after
 * --wait-ms, or when stopped.
 */
final class PushConsume {
    private final Args args;
    private final Events events;
    private final AtomicInteger seen = new AtomicInteger();
    private final CountDownLatch open;

    private PushConsume(Args args, Events events) {
        this.args = args;
        this.events = events;
        this.open = new CountDownLatch(args.number("until", Integer.MAX_VALUE));
    }

    static void run(Args args, Events events) throws Exception {
        new PushConsume(args, events).consume();
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            args.text("group"), Shared.hook(args), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setInstanceName(Shared.instance(args));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(Shared.API_TIMEOUT_MS);
        consumer.setPollNameServerInterval(1_000);
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.setConsumeThreadMin(args.number("threads", 4));
        consumer.setConsumeThreadMax(args.number("threads", 4));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setMaxReconsumeTimes(args.number("max-reconsume", -1));
        if (args.has("sql")) {
            consumer.subscribe(args.text("topic"), MessageSelector.bySql(args.text("sql")));
        } else {
            consumer.subscribe(args.text("topic"), args.text("tags", "*"));
        }
        if (args.has("server-rebalance")) { // the methods are of version 5
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, args.time("pop-invisible-ms", 60_000));
        }
        listen(consumer);
        consumer.start();
        events.print("started");
        try {
            long end = System.currentTimeMillis() + args.number("wait-ms", 60_000);
            while (open.getCount() > 0 && System.currentTimeMillis() < end && !args.stoppedWithin(20)) {
                continue;
            }
            args.stoppedWithin(args.number("linger-ms", 0));
        } finally {
            consumer.shutdown();
        }
    }

    private void listen(DefaultMQPushConsumer consumer) throws Exception {
        String mode = args.text("mode", "concurrent");
        if (mode.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            return;
        }
        if (mode.equals("broadcast")) {
            broadcast(consumer);
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(args.number("retry-level", 1));
            return take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
    }

    /** Found by reflection, since the package of the enum differs between client versions. */
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Object[] models = method.getParameterTypes()[0].getEnumConstants();
                for (Object model : models) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }

    private boolean take(List<MessageExt> messages) {
        boolean taken = true;
        for (MessageExt message : messages) {
            boolean refused = seen.getAndIncrement() < args.number("fail-first", 0);
            Map<String, Object> fields = Fields.message(message);
            fields.put("action", refused ? "later" : "consumed");
            events.print("message", fields);
            if (refused) {
                taken = false;
            } else {
                open.countDown();
            }
        }
        return taken;
    }
}
