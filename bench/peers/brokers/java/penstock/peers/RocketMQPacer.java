// RocketMQ's producer and its push consumer; the time that a message was due is its body's beginning.
package penstock.peers;

import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

final class RocketMQPacer implements Pacer {
    private final RocketMQPeer producer;
    private final String topic;
    private final byte[] body;
    private final DefaultMQPushConsumer consumer;

    RocketMQPacer(Map<String, String> order) throws Exception {
        producer = new RocketMQPeer(order); // it makes the topic
        topic = order.get("topic");
        body = Load.body(order);
        // a group of its own: nobody has read this topic
        consumer = new DefaultMQPushConsumer("peers-" + topic);
        consumer.setNamesrvAddr(order.get("endpoint"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    }

    @Override
    public void hear(Heard heard) throws Exception {
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                heard.heard(ByteBuffer.wrap(message.getBody()).getLong());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    @Override
    public void send(long dueNs, Peer.Done done) throws Exception {
        producer.send(ByteBuffer.wrap(body.clone()).putLong(dueNs).array(), done);
    }

    @Override
    public long stored(long expected) throws Exception {
        return producer.stored(expected);
    }

    @Override
    public void close() {
        consumer.shutdown();
        producer.close();
    }
}
