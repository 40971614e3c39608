import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/** timer and recall: supported and compiled only with clients of version 5. */
public final class Timer {
    private Timer() {
    }

    public static void run(Args args, Events events) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args.text("group", "p_" + args.id));
        Produce.start(producer, args);
        try {
            if (args.command.equals("recall")) {
                events.print("recalled", "msgId", producer.recallMessage(args.text("topic"), args.text("handle")));
                return;
            }
            for (int i = 0; i < args.number("n", 1); i++) {
                Message message = Produce.message(args, i);
                setTime(message, args);
                if (args.has("cancel")) {  // topic+key: this message is a marker
                    MessageAccessor.putProperty(message, "TIMER_DEL_UNIQKEY", args.text("cancel"));
                }
                SendResult result = producer.send(message);
                java.util.Map<String, Object> fields = Fields.sent(i, result);
                fields.put("recallHandle", result.getRecallHandle());
                events.print("sent", fields);
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void setTime(Message message, Args args) {
        if (args.has("delay-ms")) {
            message.setDelayTimeMs(args.time("delay-ms", 0));
        } else if (args.has("delay-sec")) {
            message.setDelayTimeSec(args.time("delay-sec", 0));
        } else {
            message.setDeliverTimeMs(args.time("deliver-at", 0));
        }
    }
}
