// A producer and a consumer in a namespace, with an access key: both only change what is sent. Topics
// and groups get the namespace in front, and each request is signed, which a broker without access
// control does not look at.
package penstock.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Spaces {
    private static final int TIMEOUT_MS = 30_000, WAIT_S = 60, COUNT = 3;
    private static final String AGAIN = "spaced-1";

    private final String nameServer;
    private final String instance;

    Spaces(String nameServer, String instance) {
        this.nameServer = nameServer;
        this.instance = instance;
    }

    /** What consumers in the namespace get of what is sent there; one message fails once. */
    List<String> consume(String namespace, String topic, String group) throws Exception {
        AclClientRPCHook signed =
            new AclClientRPCHook(new SessionCredentials("access-key", "secret-key", "token"));
        DefaultMQProducer producer = new DefaultMQProducer(group, signed);
        producer.setNamespace(namespace);
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setInstanceName(instance + "-spaced-producer");
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, signed, new AllocateMessageQueueAveragely());
        consumer.setNamespace(namespace);
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setInstanceName(instance + "-spaced-consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt found = messages.get(0);
            String body = new String(found.getBody());
            got.add(found.getTopic() + " " + body + " " + found.getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            boolean fails = body.equals(AGAIN) && found.getReconsumeTimes() == 0;
            return fails
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        List<String> all = new ArrayList<>();
        try {
            producer.start();
            for (int n = 0; n < COUNT; n++) {
                Message message = new Message(topic, ("spaced-" + n).getBytes());
                all.add(producer.send(message, TIMEOUT_MS).getMessageQueue().getTopic());
            }
            consumer.start();
            for (int n = 0; n < COUNT + 1; n++) {
                all.add(got.poll(WAIT_S, TimeUnit.SECONDS));
            }
        } finally {
            Ending.of(consumer::shutdown);
            Ending.of(producer::shutdown);
        }
        all.sort(null);
        return all;
    }
}
