// A request that is replied to, and readers that pull: one says itself which queues it has and where
// it begins, the other one is given them as a member of its group.
//
// request sends one message that asks for a reply, to a group's consumer beside it, and says what the
// asker has got. assigned reads `until` messages of these queues from these offsets, and says which
// they were, what it has committed, and where the queue's first message of the time `at_ms` is.
package penstock.interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

@SuppressWarnings("deprecation") // the commit that 4.9 has, too
final class Asking {
    private static final int TIMEOUT_MS = 30_000;
    // by itself this client divides its group's queues 20 s after its start
    private static final int SOON_MS = 15_000;

    private final String nameServer;
    private final String broker;
    private final String instance;

    Asking(String nameServer, String broker, String instance) {
        this.nameServer = nameServer;
        this.broker = broker;
        this.instance = instance;
    }

    Map<String, Object> request(String topic) throws Exception {
        DefaultMQProducer replier = producer("interop-replier");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("interop-replies");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance + "-replies");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("yes, " + text(message)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, body), TIMEOUT_MS);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asker = producer("interop-asker");
        try {
            // as soon as the request is stored 5.3.3 gives up a reply that is waited for, and has the
            // callback get a reply that is not one
            CompletableFuture<Message> answered = new CompletableFuture<>();
            asker.request(new Message(topic, "is it?".getBytes()), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    if (reply != null) {
                        answered.complete(reply);
                    }
                }

                @Override
                public void onException(Throwable error) {
                    answered.completeExceptionally(error);
                }
            }, TIMEOUT_MS);
            Message reply = answered.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("body", text(reply));
            said.put("topic", reply.getTopic());
            said.put("kind", reply.getProperty("MSG_TYPE"));
            return said;
        } finally {
            Ending.of(asker::shutdown);
            Ending.of(consumer::shutdown);
            Ending.of(replier::shutdown);
        }
    }

    Map<String, Object> assigned(JSONObject order) throws Exception {
        DefaultLitePullConsumer consumer = puller(order.getString("group"));
        consumer.setAutoCommit(false);
        consumer.start();
        try {
            // From their beginnings, and not by `seek`: pulls have left by then, and what they bring
            // is kept or lost as the client's threads happen to run.
            List<MessageQueue> queues = new ArrayList<>();
            for (Object queue : order.getJSONArray("queues")) {
                queues.add(new MessageQueue(order.getString("topic"), broker, (Integer) queue));
            }
            consumer.assign(queues);
            List<List<Object>> read = polled(consumer, order.getIntValue("until"), TIMEOUT_MS);
            consumer.commitSync();
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("read", read);
            Map<String, Object> places = new TreeMap<>();
            for (MessageQueue queue : queues) {
                places.put(String.valueOf(queue.getQueueId()), List.of(
                    committed(consumer, queue),
                    consumer.offsetForTimestamp(queue, order.getLongValue("at_ms"))));
            }
            said.put("places", places);
            return said;
        } finally {
            Ending.of(consumer::shutdown);
        }
    }

    List<List<Object>> subscribed(JSONObject order) throws Exception {
        DefaultLitePullConsumer consumer = puller(order.getString("group"));
        consumer.subscribe(order.getString("topic"), "*");
        consumer.start();
        try {
            return polled(consumer, order.getIntValue("until"), SOON_MS);
        } finally {
            Ending.of(consumer::shutdown);
        }
    }

    private DefaultLitePullConsumer puller(String group) {
        DefaultLitePullConsumer made = new DefaultLitePullConsumer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(instance + "-" + group);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return made;
    }

    /** What has come within this time, up to `until`: queue, offset and body. */
    private static List<List<Object>> polled(
        DefaultLitePullConsumer consumer, int until, int withinMs) {
        List<List<Object>> read = new ArrayList<>();
        long endMs = System.currentTimeMillis() + withinMs;
        while (read.size() < until && System.currentTimeMillis() < endMs) {
            for (MessageExt message : consumer.poll(500)) {
                read.add(List.of(message.getQueueId(), message.getQueueOffset(), text(message)));
            }
        }
        return read;
    }

    /** A commit goes one way: it has come when the broker says so. */
    private static long committed(DefaultLitePullConsumer consumer, MessageQueue queue)
        throws Exception {
        long endMs = System.currentTimeMillis() + TIMEOUT_MS;
        long found = consumer.committed(queue);
        while (found <= 0 && System.currentTimeMillis() < endMs) {
            Thread.sleep(20);
            found = consumer.committed(queue);
        }
        return found;
    }

    private DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(instance + "-" + group);
        made.start();
        return made;
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
