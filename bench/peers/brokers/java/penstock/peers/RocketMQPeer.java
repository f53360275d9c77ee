// RocketMQ's producer: one message a request, or a batch of them.
package penstock.peers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

final class RocketMQPeer implements Peer {
    private static final int TIMEOUT_MS = 60_000;

    private final String topic;
    private final byte[] body;
    private final int batch;
    private final DefaultMQProducer producer = new DefaultMQProducer("peers");

    RocketMQPeer(Map<String, String> order) throws Exception {
        topic = order.get("topic");
        body = Load.body(order);
        batch = Integer.parseInt(order.get("batch"));
        int queues = Integer.parseInt(order.get("queues"));
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(order.get("endpoint"));
        admin.setInstanceName("admin");
        admin.start();
        admin.createAndUpdateTopicConfig(order.get("broker"), new TopicConfig(topic, queues, queues));
        admin.shutdown();
        producer.setNamesrvAddr(order.get("endpoint"));
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        // the name server learns of the topic a moment later
        while (true) {
            try {
                if (producer.fetchPublishMessageQueues(topic).size() == queues) {
                    break;
                }
            } catch (org.apache.rocketmq.client.exception.MQClientException unknownYet) {
                Thread.sleep(50);
            }
        }
    }

    @Override
    public void send(Done done) throws Exception {
        if (batch == 1) {
            send(body, done);
            return;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int number = 0; number < batch; number++) {
            messages.add(new Message(topic, body));
        }
        producer.send(messages, told(done));
    }

    /** Sends a message with another body. Does not wait. */
    void send(byte[] other, Done done) throws Exception {
        producer.send(new Message(topic, other), told(done));
    }

    private static SendCallback told(Done done) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                boolean stored = result.getSendStatus() == SendStatus.SEND_OK;
                done.done(stored ? null : new IllegalStateException("not stored: " + result.getSendStatus()));
            }

            @Override
            public void onException(Throwable error) {
                done.done(error);
            }
        };
    }

    @Override
    public void sendAndWait() throws Exception {
        SendResult result = producer.send(new Message(topic, body));
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result.getSendStatus());
        }
    }

    @Override
    public long stored(long expected) throws Exception {
        long until = System.nanoTime() + 10_000_000_000L;
        long found;
        do { // its queues follow its log a moment later
            found = 0;
            for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
                found += producer.maxOffset(queue);
            }
        } while (found < expected && System.nanoTime() < until);
        return found;
    }

    @Override
    public void close() {
        producer.shutdown();
    }
}
