import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Calls of rocketmq-exporter and RocketMQ Dashboard; prints the result of each, one field per line. */
final class ToolCalls {
    private static final String[] BROKER_STATS = {"BROKER_PUT_NUMS", "BROKER_GET_NUMS"};
    private static final String[] TOPIC_STATS = {"TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"};
    private static final String[] GROUP_STATS = {"GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"};
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt();
    private final String broker;
    private final String cluster;
    private final String topic;
    private final String group;
    private final String producers;

    /** Words after the name of the tool: name server, broker, cluster, topic, consumer and producer group. */
    ToolCalls(String[] words) {
        admin.setNamesrvAddr(words[1]);
        admin.setInstanceName(Long.toString(System.nanoTime()));
        broker = words[2];
        cluster = words[3];
        topic = words[4];
        group = words[5];
        producers = words[6];
    }

    private interface Call {
        Object run() throws Exception;
    }

    static void run(String[] words) throws Exception {
        ToolCalls calls = new ToolCalls(words);
        calls.admin.start();
        try {
            if (words[0].equals("exporter")) {
                calls.exporter();
            } else {
                calls.dashboard(words[7]);
            }
        } finally {
            calls.admin.shutdown();
        }
    }

    /** The calls of MetricsCollectTask and ClientMetricTaskRunnable. */
    private void exporter() throws Exception {
        print("clusterInfo", admin::examineBrokerClusterInfo);
        print("topicList", () -> admin.fetchAllTopicList().getTopicList().contains(topic));
        print("topicStats", () -> byQueue(admin.examineTopicStats(topic).getOffsetTable()));
        print("producers", () -> admin.getAllProducerInfo(broker));
        print("groups", () -> admin.queryTopicConsumeByWho(topic).getGroupList().contains(group));
        print("connection", () -> admin.examineConsumerConnectionInfo(group));
        print("running", () -> running(false));
        print("consumeStats", () -> byQueue(admin.examineConsumeStats(group, topic).getOffsetTable()));
        print("message", this::firstMessage);
        for (String name : BROKER_STATS) {
            print(name, () -> admin.viewBrokerStatsData(broker, name, cluster));
        }
        for (String name : TOPIC_STATS) {
            print(name, () -> admin.viewBrokerStatsData(broker, name, topic));
        }
        for (String name : GROUP_STATS) {
            print(name, () -> admin.viewBrokerStatsData(broker, name, topic + "@" + group));
        }
        print("runtime", () -> {
            Map<String, String> table = new TreeMap<>(admin.fetchBrokerRuntimeStats(broker).getTable());
            table.replaceAll((key, value) -> "");
            return table;
        });
    }

    /** The calls of its services, apart from those of accounts. */
    private void dashboard(String id) throws Exception {
        print("clusterInfo", admin::examineBrokerClusterInfo);
        print("brokerConfig", () -> admin.getBrokerConfig(broker).getProperty("brokerName"));
        print("route", () -> admin.examineTopicRouteInfo(topic));
        print("topicConfig", () -> admin.examineTopicConfig(broker, topic));
        print("topicConfigs", () -> admin.getAllTopicConfig(broker, 5000).getTopicConfigTable().get(topic));
        print("groupConfig", () -> admin.examineSubscriptionGroupConfig(broker, group));
        print("groupConfigs", () ->
            admin.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().get(group));
        print("consumeStats", () -> admin.examineConsumeStats(group).computeTotalDiff());
        print("stacks", () -> running(true));
        print("producer", () -> admin.examineProducerConnectionInfo(producers, topic));
        print("byKey", () -> admin.queryMessage(topic, "key-1", 64, 0, Long.MAX_VALUE).getMessageList().size());
        MessageExt message = admin.viewMessage(topic, id);
        print("message", message::getProperties);
        print("track", () -> admin.messageTrackDetail(message).stream()
            .filter(track -> track.getConsumerGroup().equals(group)).toArray());
        print("again", () -> admin.consumeMessageDirectly(group, clientId(), topic, message.getMsgId()));
        print("reset", () -> byQueue(admin.resetOffsetByTimestamp(topic, group, System.currentTimeMillis(), true)));
        print("create", () -> {
            admin.createAndUpdateTopicConfig(broker, new TopicConfig("dashboard-topic", 1, 1));
            return "done";
        });
        print("delete", () -> {
            admin.deleteTopicInBroker(Set.of(broker), "dashboard-topic");
            admin.deleteTopicInNameServer(Set.copyOf(admin.getNameServerAddressList()), "dashboard-topic");
            return "done";
        });
        print("deleteGroup", () -> {
            admin.deleteSubscriptionGroup(broker, "dashboard-group", true);
            return "done";
        });
        print("deadLetters", () -> byQueue(admin.examineTopicStats("%DLQ%" + group).getOffsetTable()));
    }

    private String clientId() throws Exception {
        return admin.examineConsumerConnectionInfo(group).getConnectionSet().iterator().next().getClientId();
    }

    private Object running(boolean stacks) throws Exception {
        var info = admin.getConsumerRunningInfo(group, clientId(), stacks);
        return Map.of("topics", info.getStatusTable().keySet(), "stacks", info.getJstack() != null);
    }

    private Object firstMessage() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("TOOLS_CONSUMER");
        consumer.setNamesrvAddr(admin.getNamesrvAddr());
        consumer.setInstanceName(Long.toString(System.nanoTime()));
        consumer.start();
        try {
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            return consumer.pull(queue, "*", 0, 1).getPullStatus();
        } finally {
            consumer.shutdown();
        }
    }

    private static <T> Map<String, T> byQueue(Map<MessageQueue, T> table) {
        Map<String, T> named = new TreeMap<>();
        table.forEach((queue, value) -> named.put(queue.getTopic() + "/" + queue.getQueueId(), value));
        return named;
    }

    private static void print(String name, Call call) {
        String text;
        try {
            text = RemotingSerializable.toJson(call.run(), true);
        } catch (Exception error) {
            text = "! " + String.valueOf(error.getMessage()).split("\n")[0];
        }
        for (String line : text.split("\n")) {
            System.out.println(name + ": " + line.replaceAll(",$", ""));
        }
    }
}
