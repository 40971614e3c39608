import java.lang.reflect.Field;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.ServiceThread;

/** Apache's broker whose timeline of timers rolls every two seconds; Apache's shortest interval is an hour. */
public final class RollingBroker {
    private RollingBroker() {
    }

    public static void main(String[] args) throws Exception {
        BrokerController broker = BrokerStartup.start(BrokerStartup.createBrokerController(args));
        Object timeline = field(broker.getTimerMessageRocksDBStore(), "timeline");
        ServiceThread roll = (ServiceThread) field(timeline, "timelineRollService");
        while (true) {
            Thread.sleep(2_000);
            roll.wakeup();
        }
    }

    private static Object field(Object owner, String name) throws ReflectiveOperationException {
        Field found = owner.getClass().getDeclaredField(name);
        found.setAccessible(true);
        return found.get(owner);
    }
}
