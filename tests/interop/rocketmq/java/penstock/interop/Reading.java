// Reads messages through the official consumer and the official admin client.
//
// pull writes one line, as in a golden manifest, for each message of the queues: the consumer's
// view, with bodies that are decompressed. view takes {"topic","id"} lines with broker's ids and
// writes the messages in the same way. query takes {"topic","key","unique","max","begin","end"}
// lines and writes for each the sorted broker's ids of what was found.
package penstock.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import penstock.golden.Line;

@SuppressWarnings("deprecation") // the pull consumer: the one that reads any queue from any offset
final class Reading {
    private static final int MESSAGES_A_PULL = 32;
    private static final int THREADS = 8;
    private static final int TIMEOUT_MS = 60_000; // a busy machine is no failure
    // the class of the codes has moved since 4.9
    private static final int NO_MESSAGE = 208;
    private static final int TOPIC_NOT_EXIST = 17;

    private final String broker;
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop-reader");
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);

    Reading(String nameServer, String broker, String instance) throws Exception {
        this.broker = broker;
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance);
        consumer.start();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName(instance + "-admin");
        admin.start();
    }

    void close() {
        Ending.of(consumer::shutdown);
        Ending.of(admin::shutdown);
    }

    void createTopic(String broker, TopicConfig topic) throws Exception {
        var brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable();
        admin.createAndUpdateTopicConfig(brokers.get(broker).selectBrokerAddr(), topic);
    }

    /** The names of the brokers that have the topic, by the name server. */
    List<String> brokers(String topic) throws Exception {
        try {
            return admin.examineTopicRouteInfo(topic).getBrokerDatas().stream()
                .map(each -> each.getBrokerName()).sorted().toList();
        } catch (MQClientException error) {
            if (error.getResponseCode() == TOPIC_NOT_EXIST) {
                return List.of();
            }
            throw error;
        }
    }

    List<Object> offsets(JSONArray queues) throws Exception {
        List<Object> found = new ArrayList<>();
        for (MessageQueue queue : named(queues)) {
            found.add(List.of(queue.getTopic(), queue.getQueueId(),
                consumer.minOffset(queue), consumer.maxOffset(queue)));
        }
        return found;
    }

    int pull(JSONArray queues, String file) throws Exception {
        int count = 0;
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(file))) {
            for (MessageQueue queue : named(queues)) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    PullResult pulled = consumer.pull(queue, "*", offset, MESSAGES_A_PULL);
                    for (MessageExt message : messages(pulled)) {
                        out.write(Line.of(message));
                        out.newLine();
                        count++;
                    }
                    if (pulled.getNextBeginOffset() <= offset) {
                        throw new IllegalStateException(queue + " at " + offset + ": " + pulled);
                    }
                    offset = pulled.getNextBeginOffset();
                }
            }
        }
        return count;
    }

    /** Queue -> the group's offset and the queue's next one. */
    Map<String, Object> committed(String group, String topic) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        admin.examineConsumeStats(group, topic).getOffsetTable().forEach((queue, offsets) ->
            found.put(
                String.valueOf(queue.getQueueId()),
                List.of(offsets.getConsumerOffset(), offsets.getBrokerOffset())));
        return found;
    }

    int sendBack(JSONObject order) throws Exception {
        MessageQueue queue =
            new MessageQueue(order.getString("topic"), broker, order.getIntValue("queue"));
        int count = 0;
        for (Long offset : order.getJSONArray("offsets").toJavaList(Long.class)) {
            MessageExt message = messages(consumer.pull(queue, "*", offset, 1)).get(0);
            consumer.sendMessageBack(
                message, order.getIntValue("level"), broker, order.getString("group"));
            count++;
        }
        return count;
    }

    int view(String file, String out) throws Exception {
        return each(file, out, wanted ->
            Line.of(admin.viewMessage(wanted.getString("topic"), wanted.getString("id"))));
    }

    int query(String file, String out) throws Exception {
        return each(file, out, wanted -> JSON.toJSONString(answer(wanted)));
    }

    private List<String> answer(JSONObject wanted) throws Exception {
        String topic = wanted.getString("topic");
        String key = wanted.getString("key");
        int max = wanted.getIntValue("max");
        long begin = wanted.getLongValue("begin");
        long end = wanted.getLongValue("end");
        try {
            QueryResult found = wanted.getBooleanValue("unique")
                ? Version.byUniqueKey(admin, topic, key, max, begin, end)
                : admin.queryMessage(topic, key, max, begin, end);
            return found.getMessageList().stream().map(Line::messageId).sorted().toList();
        } catch (MQClientException error) {
            if (error.getResponseCode() == NO_MESSAGE) {
                return List.of();
            }
            throw error;
        }
    }

    private interface Step {
        String apply(JSONObject wanted) throws Exception;
    }

    /** One line out for each line in, in their order, several at a time. */
    private static int each(String file, String out, Step step) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        try (Stream<String> lines = Files.lines(Path.of(file));
            BufferedWriter writer = Files.newBufferedWriter(Path.of(out))) {
            List<Future<String>> answers = new ArrayList<>();
            for (Iterator<String> all = lines.iterator(); all.hasNext(); ) {
                JSONObject wanted = JSON.parseObject(all.next());
                answers.add(threads.submit((Callable<String>) () -> step.apply(wanted)));
            }
            for (Future<String> answer : answers) {
                writer.write(answer.get());
                writer.newLine();
            }
            return answers.size();
        } finally {
            threads.shutdownNow();
        }
    }

    private static List<MessageExt> messages(PullResult pulled) {
        return pulled.getMsgFoundList() == null ? List.of() : pulled.getMsgFoundList();
    }

    private List<MessageQueue> named(JSONArray queues) {
        List<MessageQueue> named = new ArrayList<>();
        for (int i = 0; i < queues.size(); i++) {
            JSONArray queue = queues.getJSONArray(i);
            named.add(new MessageQueue(queue.getString(0), broker, queue.getIntValue(1)));
        }
        return named;
    }
}
