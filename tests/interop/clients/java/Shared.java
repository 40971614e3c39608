import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Client instance shared by all commands without --instance. An idle producer keeps it alive, since the shutdown of an
 * instance of a 5.x client can take 3 s.
 */
final class Shared {
    private static final String NAME = "shared";
    static final int API_TIMEOUT_MS = 10_000; // of requests to name servers on a busy machine
    private static DefaultMQProducer keeper;

    private Shared() {
    }

    static synchronized String instance(Args args) throws Exception {
        String name = args.text("instance", NAME);
        if (name.equals(NAME) && keeper == null) {
            keeper = new DefaultMQProducer("p_keeper");
            keeper.setNamesrvAddr(args.text("namesrv"));
            keeper.setInstanceName(NAME);
            keeper.setMqClientApiTimeout(API_TIMEOUT_MS);
            keeper.setPollNameServerInterval(1_000);
            keeper.setHeartbeatBrokerInterval(5_000);
            keeper.start();
        }
        return name;
    }

    /** Signs requests with --access-key and --secret-key; null without them. */
    static RPCHook hook(Args args) {
        if (!args.has("access-key")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(args.text("access-key"), args.text("secret-key")));
    }
}
