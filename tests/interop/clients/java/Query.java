import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** query-key, view (by unique or offset id), search-offset (by time), create-topic. */
final class Query {
    private Query() {
    }

    static void run(Args args, Events events) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(args.text("namesrv"));
        admin.setInstanceName(Shared.instance(args));
        admin.setAdminExtGroup("admin_" + args.id);
        admin.start();
        try {
            ask(admin, args, events);
        } finally {
            admin.shutdown();
        }
    }

    private static void ask(DefaultMQAdminExt admin, Args args, Events events) throws Exception {
        String topic = args.text("topic");
        long begin = args.time("begin", 0);
        long end = args.time("end", Long.MAX_VALUE);
        switch (args.command) {
            case "query-key": print(admin.queryMessage(topic, args.text("key"), 32, begin, end), events); break;
            case "view":
                events.print("message", Fields.message(admin.viewMessage(topic, args.text("message-id"))));
                break;
            case "search-offset": search(admin, args, events); break;
            default:
                TopicConfig config = new TopicConfig(topic);
                config.setReadQueueNums(args.number("queues", 4));
                config.setWriteQueueNums(args.number("queues", 4));
                admin.createAndUpdateTopicConfig(args.text("broker"), config);
        }
    }

    private static void print(QueryResult result, Events events) {
        for (MessageExt message : result.getMessageList()) {
            events.print("message", Fields.message(message));
        }
    }

    private static void search(DefaultMQAdminExt admin, Args args, Events events) throws Exception {
        for (int id = 0; id < args.number("queues", 4); id++) {
            MessageQueue queue = new MessageQueue(args.text("topic"), args.text("broker-name", "broker-a"), id);
            events.print("offset", "queueId", id, "offset", admin.searchOffset(queue, args.time("time", 0)),
                "min", admin.minOffset(queue), "max", admin.maxOffset(queue));
        }
    }
}
