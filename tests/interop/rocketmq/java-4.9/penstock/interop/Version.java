// What the clients of RocketMQ 5.3 and of 4.9 have under other names, or only one of them has: 4.9.
package penstock.interop;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

final class Version {
    private Version() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void letBrokerDivide(DefaultMQPushConsumer consumer) {
        throw new UnsupportedOperationException("queues that a broker divides");
    }

    static void compress(DefaultMQProducer producer, String kind) {
        if (!kind.equals("ZLIB")) {
            throw new UnsupportedOperationException(kind);
        }
    }

    static void delay(Message message, long delayMs) {
        throw new UnsupportedOperationException("a message for a time");
    }

    static QueryResult byUniqueKey(
        DefaultMQAdminExt admin, String topic, String key, int max, long begin, long end)
        throws Exception {
        return admin.queryMessageByUniqKey(topic, key, max, begin, end);
    }
}
