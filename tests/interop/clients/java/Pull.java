import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** pull and lite-pull: read --until messages and commit the offsets of the group. */
final class Pull {
    private Pull() {
    }

    static void run(Args args, Events events) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setInstanceName(Shared.instance(args));
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args.text("topic"))) {
                pullQueue(consumer, queue, args, events);
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** Read one queue from the committed offset of the group to its end. */
    private static void pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue, Args args, Events events)
        throws Exception {
        long offset = Math.max(0, consumer.fetchConsumeOffset(queue, true));
        while (true) {
            PullResult result = consumer.pull(queue, args.text("tags", "*"), offset, args.number("batch", 32));
            events.print("pulled", "queueId", queue.getQueueId(), "status", result.getPullStatus().name(),
                "next", result.getNextBeginOffset(), "min", result.getMinOffset(), "max", result.getMaxOffset());
            offset = result.getNextBeginOffset();
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    events.print("message", Fields.message(message));
                }
            } else if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                break;
            }
        }
        consumer.updateConsumeOffset(queue, offset);
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        events.print("committed", "queueId", queue.getQueueId(), "offset", stored(consumer, queue, offset));
    }

    /** Offset committed at the broker; the commit was one-way and can arrive with a delay. */
    private static long stored(DefaultMQPullConsumer consumer, MessageQueue queue, long wanted) throws Exception {
        long end = System.currentTimeMillis() + 5_000;
        long found = consumer.fetchConsumeOffset(queue, true);
        while (found != wanted && System.currentTimeMillis() < end) {
            Thread.sleep(10);
            found = consumer.fetchConsumeOffset(queue, true);
        }
        return found;
    }

    static void runLite(Args args, Events events) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setInstanceName(Shared.instance(args));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        boolean assigned = args.text("mode", "subscribe").equals("assign");
        if (!assigned) {
            consumer.subscribe(args.text("topic"), args.text("tags", "*"));
        }
        consumer.start();
        events.print("started");
        try {
            if (assigned) {
                // A seek during a pull that has begun can repeat its messages.
                consumer.assign(consumer.fetchMessageQueues(args.text("topic")));
            }
            poll(consumer, args, events);
        } finally {
            consumer.shutdown();
        }
    }

    private static void poll(DefaultLitePullConsumer consumer, Args args, Events events) throws Exception {
        long end = System.currentTimeMillis() + args.number("wait-ms", 30_000);
        int left = args.number("until", 1);
        while (left > 0 && System.currentTimeMillis() < end && !args.stoppedWithin(0)) {
            for (MessageExt message : consumer.poll(200)) {
                events.print("message", Fields.message(message));
                left--;
            }
        }
        args.stoppedWithin(args.number("linger-ms", 0));
        for (MessageExt message : consumer.poll(1)) {
            events.print("message", Fields.message(message));
        }
        consumer.commitSync();
        Set<MessageQueue> queues = consumer.assignment();
        for (MessageQueue queue : queues) {
            events.print("committed", "queueId", queue.getQueueId(), "offset", consumer.committed(queue));
        }
    }
}
