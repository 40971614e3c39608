import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Fields of events about sent and received messages. */
final class Fields {
    private Fields() {
    }

    static Map<String, Object> sent(int i, SendResult result) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("i", i);
        fields.put("status", result.getSendStatus().name());
        fields.put("msgId", result.getMsgId());
        fields.put("offsetMsgId", result.getOffsetMsgId());
        fields.put("topic", result.getMessageQueue().getTopic());
        fields.put("queueId", result.getMessageQueue().getQueueId());
        fields.put("queueOffset", result.getQueueOffset());
        fields.put("transactionId", result.getTransactionId());
        return fields;
    }

    static Map<String, Object> message(MessageExt message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("msgId", message.getMsgId());
        fields.put("offsetMsgId", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : null);
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("physOffset", message.getCommitLogOffset());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedOffset", message.getPreparedTransactionOffset());
        fields.put("tags", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        fields.put("properties", message.getProperties());
        return fields;
    }
}
