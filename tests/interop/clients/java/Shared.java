import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * Commands share one client instance unless they name one of their own with --instance. It is kept alive by an idle
 * producer: ending an instance of a 5.x client may take 3 s.
 */
final class Shared {
    private static final String NAME = "shared";
    private static DefaultMQProducer keeper;

    private Shared() {
    }

    static synchronized String instance(Args args) throws Exception {
        String name = args.text("instance", NAME);
        if (name.equals(NAME) && keeper == null) {
            keeper = new DefaultMQProducer("p_keeper");
            keeper.setNamesrvAddr(args.text("namesrv"));
            keeper.setInstanceName(NAME);
            keeper.setPollNameServerInterval(1_000);
            keeper.setHeartbeatBrokerInterval(5_000);
            keeper.start();
        }
        return name;
    }
}
