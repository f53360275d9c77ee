// One message as a scenario describes it: everything a producer or broker decides, nothing that
// the store decides.
package penstock.golden;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

final class Message {
    final String topic;
    final int queueId;
    final byte[] body;
    final Map<String, String> properties = new LinkedHashMap<>();
    int flag;
    int sysFlag;
    int reconsumeTimes;
    long preparedOffset;
    long bornTimestampMs = 1_700_000_000_123L;
    String bornHost = "10.1.2.3:54321";
    String storeHost = "192.168.7.9:10911";

    Message(String topic, int queueId, byte[] body) {
        this.topic = topic;
        this.queueId = queueId;
        this.body = body;
    }

    Message property(String key, String value) {
        properties.put(key, value);
        return this;
    }

    Message tags(String tags) {
        return property("TAGS", tags);
    }

    Message keys(String keys) {
        return property("KEYS", keys);
    }

    Message unique(int number) {
        return property("UNIQ_KEY", String.format("0A0102031A2B18B4AAC2%08X%04X", 4711, number));
    }

    Message hosts(String born, String store) {
        bornHost = born;
        storeHost = store;
        return this;
    }

    RealStore.Outgoing outgoing() throws Exception {
        RealStore.Outgoing message = new RealStore.Outgoing();
        message.setBody(body);
        MessageAccessor.setProperties(message, new LinkedHashMap<>(properties));
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        fill(message);
        return message;
    }

    /** What a single message and a batch have in common. */
    void fill(MessageExt message) throws Exception {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setFlag(flag);
        message.setSysFlag(sysFlag);
        message.setReconsumeTimes(reconsumeTimes);
        message.setPreparedTransactionOffset(preparedOffset);
        message.setBornTimestamp(bornTimestampMs);
        message.setBornHost(address(bornHost));
        message.setStoreHost(address(storeHost));
    }

    private static InetSocketAddress address(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(
            InetAddress.getByName(text.substring(0, colon)),
            Integer.parseInt(text.substring(colon + 1)));
    }
}
