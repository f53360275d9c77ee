// Members of consumer groups: the official push consumer, and the official strategies.
//
// consume joins a group and ends when `until` messages have succeeded and none has come for
// `settle_ms`, or none has come for `idle_ms`, or the handler was called `calls` times. With
// `assigned` it asks the broker for its queues. A message fails as often as its property `fail` says,
// which counts by its reconsume times, and comes again by the delay `level`. A dead letter succeeds.
// A line of the output is one call of the handler: {"topic","broker","queue","offset","body",
// "unique_key","times","properties","succeeded","at_ms"}.
//
// strategies divides queues: a line of the cases is {"strategy","queues":[[topic,broker,id],...],
// "members":[...],"me","rooms":[...],"fixed":[[topic,broker,id],...]}, and a line of the output is
// what the class gives to `me`.
package penstock.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class Groups {
    private static final String FAIL = "fail";

    private final String nameServer;
    private final String instance;

    Groups(String nameServer, String instance) {
        this.nameServer = nameServer;
        this.instance = instance;
    }

    /** How often the handler was called. */
    int consume(JSONObject order) throws Exception {
        AtomicInteger succeeded = new AtomicInteger();
        AtomicInteger called = new AtomicInteger();
        AtomicLong lastMs = new AtomicLong(System.currentTimeMillis());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(order.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance + "-" + order.getString("group"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        JSONObject topics = order.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            String wanted = topics.getString(topic);
            consumer.subscribe(topic, order.getBooleanValue("sql")
                ? MessageSelector.bySql(wanted)
                : MessageSelector.byTag(wanted));
        }
        if (order.getBooleanValue("broadcasting")) {
            Version.broadcast(consumer);
        }
        if (order.getBooleanValue("assigned")) {
            Version.letBrokerDivide(consumer);
        }
        if (order.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(order.getIntValue("max_reconsume_times"));
        }
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(order.getString("out")))) {
            Handler handler = message -> {
                boolean succeeds = message.getReconsumeTimes() >= failures(message);
                synchronized (out) {
                    out.write(JSON.toJSONString(line(message, succeeds)));
                    out.newLine();
                    out.flush(); // a test may look before the end
                }
                called.incrementAndGet();
                succeeded.addAndGet(succeeds ? 1 : 0);
                lastMs.set(System.currentTimeMillis());
                return succeeds;
            };
            if (order.getBooleanValue("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    context.setSuspendCurrentQueueTimeMillis(100);
                    return handler.all(messages)
                        ? ConsumeOrderlyStatus.SUCCESS
                        : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                });
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    context.setDelayLevelWhenNextConsume(order.getIntValue("level"));
                    return handler.all(messages)
                        ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                        : ConsumeConcurrentlyStatus.RECONSUME_LATER;
                });
            }
            // what a handler has failed is given back before the client ends
            consumer.setAwaitTerminationMillisWhenShutdown(order.getLongValue("idle_ms"));
            consumer.start();
            try {
                int until = order.getIntValue("until");
                long idleMs = order.getLongValue("idle_ms");
                long settleMs = order.getLongValue("settle_ms");
                int calls = order.containsKey("calls") ? order.getIntValue("calls") : Integer.MAX_VALUE;
                while (called.get() < calls && System.currentTimeMillis() - lastMs.get()
                    < (succeeded.get() < until ? idleMs : settleMs)) {
                    Thread.sleep(20);
                }
            } finally {
                Ending.of(consumer::shutdown); // waits for handlers, then stores the offsets
            }
        }
        return called.get();
    }

    private interface Handler {
        boolean handle(MessageExt message) throws Exception;

        default boolean all(List<MessageExt> messages) {
            boolean all = true;
            for (MessageExt message : messages) {
                try {
                    all &= handle(message);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return all;
        }
    }

    private static int failures(MessageExt message) {
        String wanted = message.getProperty(FAIL);
        boolean isDead = message.getTopic().startsWith(MixAll.DLQ_GROUP_TOPIC_PREFIX);
        return wanted == null || isDead ? 0 : Integer.parseInt(wanted);
    }

    private static Map<String, Object> line(MessageExt message, boolean succeeded) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("broker", message.getBrokerName());
        line.put("queue", message.getQueueId());
        line.put("offset", message.getQueueOffset());
        line.put("body", new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8));
        line.put("unique_key", message.getMsgId());
        line.put("times", message.getReconsumeTimes());
        line.put("properties", message.getProperties());
        line.put("succeeded", succeeded);
        line.put("at_ms", System.currentTimeMillis());
        return line;
    }

    /** How many cases were divided. */
    static int strategies(String cases, String out) throws Exception {
        int count = 0;
        try (Stream<String> lines = Files.lines(Path.of(cases));
            BufferedWriter writer = Files.newBufferedWriter(Path.of(out))) {
            for (Iterator<String> all = lines.iterator(); all.hasNext(); count++) {
                JSONObject wanted = JSON.parseObject(all.next());
                List<MessageQueue> queues = queues(wanted.getJSONArray("queues"));
                List<String> members = wanted.getJSONArray("members").toJavaList(String.class);
                List<MessageQueue> mine =
                    strategy(wanted).allocate("group", wanted.getString("me"), queues, members);
                List<List<Object>> plain = new ArrayList<>();
                for (MessageQueue queue : mine) {
                    plain.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
                }
                writer.write(JSON.toJSONString(plain));
                writer.newLine();
            }
        }
        return count;
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject wanted) {
        switch (wanted.getString("strategy")) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONFIG":
                AllocateMessageQueueByConfig fixed = new AllocateMessageQueueByConfig();
                fixed.setMessageQueueList(queues(wanted.getJSONArray("fixed")));
                return fixed;
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(
                    new HashSet<>(wanted.getJSONArray("rooms").toJavaList(String.class)));
                return rooms;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new AtSign());
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            default:
                throw new IllegalArgumentException(wanted.getString("strategy"));
        }
    }

    /** The room of `room@x`, of brokers and of members. */
    private static final class AtSign implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("@")[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split("@")[0];
        }
    }

    private static List<MessageQueue> queues(JSONArray named) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < named.size(); i++) {
            JSONArray queue = named.getJSONArray(i);
            queues.add(
                new MessageQueue(queue.getString(0), queue.getString(1), queue.getIntValue(2)));
        }
        return queues;
    }
}
