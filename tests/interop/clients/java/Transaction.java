import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** transaction: --outcome commit, rollback or unknown; --check resolves unknown ones when the broker checks. */
final class Transaction {
    private Transaction() {
    }

    static void run(Args args, Events events) throws Exception {
        int n = args.number("n", 1);
        LocalTransactionState outcome = state(args.text("outcome"));
        LocalTransactionState check = state(args.text("check", "commit"));
        CountDownLatch unsettled = new CountDownLatch(outcome == LocalTransactionState.UNKNOW ? n : 0);
        TransactionMQProducer producer = new TransactionMQProducer(args.text("group"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return outcome;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                events.print("checked", Fields.message(message));
                unsettled.countDown();
                return check;
            }
        });
        Produce.start(producer, args);
        try {
            for (int i = 0; i < n; i++) {
                TransactionSendResult sent = producer.sendMessageInTransaction(Produce.message(args, i), null);
                events.print("sent", Fields.sent(i, sent));
            }
            if (!unsettled.await(args.number("wait-ms", 60_000), TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException(unsettled.getCount() + " messages were never asked about");
            }
            // Another thread sends the responses one-way: wait before the shutdown, so that they are sent.
            args.stoppedWithin(args.number("linger-ms", 300));
        } finally {
            producer.shutdown();
        }
    }

    private static LocalTransactionState state(String name) {
        switch (name) {
            case "commit": return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown": return LocalTransactionState.UNKNOW;
            default: throw new IllegalArgumentException("no such outcome: " + name);
        }
    }
}
