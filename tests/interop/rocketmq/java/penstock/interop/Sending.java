// Sends messages through the official producers, and notes what the broker answered.
//
// A line of the messages file is one message, or a batch when it has "items":
//     {"topic","queue","body":BASE64,"tags","keys":[...],"flag","properties":{...},
//      "delay_level","delay_ms","compression":"LZ4"|"ZSTD"|"ZLIB"}
// and for `transact` it also has "outcome":"COMMIT_MESSAGE"|"ROLLBACK_MESSAGE"|"UNKNOW". A broker
// that asks is told what the message's property "check" says, which is one of those, too.
// A line of the receipts file: {"line","status","message_id","unique_key","queue","queue_offset"},
// where a batch has its items' ids joined by commas. The first failure ends the sending.
package penstock.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class Sending {
    private static final int ON_THE_WAY = 256;
    private static final int TIMEOUT_MS = 20_000;
    private static final int SETTLE_MS = 5000;

    private final String nameServer;
    private final String broker;
    private final String instance;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();

    Sending(String nameServer, String broker, String instance) {
        this.nameServer = nameServer;
        this.broker = broker;
        this.instance = instance;
    }

    /** How many were acknowledged, and the first failure where there was one. */
    Map<String, Object> send(String messages, String receipts) throws Exception {
        Semaphore room = new Semaphore(ON_THE_WAY);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        int acknowledged;
        try (BufferedReader in = Files.newBufferedReader(Path.of(messages));
            Receipts out = new Receipts(receipts)) {
            int number = 0;
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JSONObject wanted = JSON.parseObject(line);
                room.acquire();
                if (failure.get() != null) {
                    room.release();
                    break;
                }
                try {
                    dispatch(wanted, new Answered(number, room, failure, out));
                } catch (Throwable error) {
                    failure.compareAndSet(null, error);
                    room.release();
                }
                number++;
            }
            room.acquire(ON_THE_WAY);
            acknowledged = out.count;
        }
        Map<String, Object> outcome = new LinkedHashMap<>();
        outcome.put("acknowledged", acknowledged);
        if (failure.get() != null) {
            outcome.put("failure", failure.get().toString());
        }
        return outcome;
    }

    private void dispatch(JSONObject wanted, Answered answered) throws Exception {
        MessageQueue queue =
            new MessageQueue(wanted.getString("topic"), broker, wanted.getIntValue("queue"));
        DefaultMQProducer producer = producer(wanted.getString("compression"));
        JSONArray items = wanted.getJSONArray("items");
        if (items == null) {
            producer.send(message(wanted), queue, answered, TIMEOUT_MS);
            return;
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < items.size(); i++) {
            batch.add(message(items.getJSONObject(i)));
        }
        answered.onSuccess(producer.send(batch, queue, TIMEOUT_MS));
    }

    /** How many half messages were stored; each one's outcome was told to the broker. */
    int transact(String messages, String receipts) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("interop-transactions");
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setInstanceName(instance);
        producer.setTransactionListener(new Decided());
        producer.start();
        try (BufferedReader in = Files.newBufferedReader(Path.of(messages));
            Receipts out = new Receipts(receipts)) {
            int number = 0;
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                JSONObject wanted = JSON.parseObject(line);
                LocalTransactionState outcome =
                    LocalTransactionState.valueOf(wanted.getString("outcome"));
                out.note(number++, producer.sendMessageInTransaction(message(wanted), outcome));
            }
            return out.count;
        } finally {
            Ending.of(producer::shutdown);
        }
    }

    /** The unique keys of `until` half messages that the broker has asked for, as a producer of
     * their group that sends nothing. */
    Set<String> answerChecks(String topic, int until, long timeoutMs) throws Exception {
        Decided decided = new Decided();
        TransactionMQProducer producer = new TransactionMQProducer("interop-transactions");
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setInstanceName(instance + "-checks");
        producer.setTransactionListener(decided);
        producer.start();
        try {
            // a broker hears of a producer once that knows a route to it, and then by a heartbeat
            MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
            client.updateTopicRouteInfoFromNameServer(topic);
            client.sendHeartbeatToAllBrokerWithLock();
            long endMs = System.currentTimeMillis() + timeoutMs;
            while (decided.asked.size() < until && System.currentTimeMillis() < endMs) {
                Thread.sleep(20);
            }
            Thread.sleep(SETTLE_MS); // answers go one way: they are on their way
            return decided.asked;
        } finally {
            Ending.of(producer::shutdown);
        }
    }

    void close() {
        producers.values().forEach(each -> Ending.of(each::shutdown));
    }

    private DefaultMQProducer producer(String compression) throws Exception {
        String name = compression == null ? "NONE" : compression;
        DefaultMQProducer found = producers.get(name);
        if (found == null) {
            found = new DefaultMQProducer("interop-" + name);
            found.setNamesrvAddr(nameServer);
            found.setMqClientApiTimeout(TIMEOUT_MS); // a busy machine is no failure
            found.setInstanceName(instance);
            if (compression == null) {
                found.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            } else {
                Version.compress(found, compression);
            }
            // a message that is sent again would be stored twice
            found.setRetryTimesWhenSendFailed(0);
            found.setRetryTimesWhenSendAsyncFailed(0);
            found.start();
            producers.put(name, found);
        }
        return found;
    }

    private static Message message(JSONObject wanted) {
        Message message = new Message(wanted.getString("topic"), wanted.getBytes("body"));
        message.setFlag(wanted.getIntValue("flag"));
        if (wanted.containsKey("tags")) {
            message.setTags(wanted.getString("tags"));
        }
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getJSONArray("keys").toJavaList(String.class));
        }
        if (wanted.containsKey("delay_level")) {
            message.setDelayTimeLevel(wanted.getIntValue("delay_level"));
        }
        if (wanted.containsKey("delay_ms")) {
            Version.delay(message, wanted.getLongValue("delay_ms"));
        }
        JSONObject properties = wanted.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        return message;
    }

    /** Decides a transaction as its message was told, and as it says when asked again. */
    private static final class Decided implements TransactionListener {
        private final Set<String> asked = ConcurrentHashMap.newKeySet();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
            return (LocalTransactionState) outcome;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String check = message.getProperty("check");
            asked.add(message.getTransactionId());
            return check == null
                ? LocalTransactionState.UNKNOW
                : LocalTransactionState.valueOf(check);
        }
    }

    private record Answered(
        int line, Semaphore room, AtomicReference<Throwable> failure, Receipts receipts)
        implements SendCallback {
        @Override
        public void onSuccess(SendResult result) {
            try {
                receipts.note(line, result);
            } catch (IOException error) {
                failure.compareAndSet(null, error);
            }
            room.release();
        }

        @Override
        public void onException(Throwable error) {
            failure.compareAndSet(null, error);
            room.release();
        }
    }

    private static final class Receipts implements AutoCloseable {
        private final BufferedWriter out;
        private int count;

        Receipts(String file) throws IOException {
            out = Files.newBufferedWriter(Path.of(file));
        }

        synchronized void note(int line, SendResult result) throws IOException {
            Map<String, Object> receipt = new LinkedHashMap<>();
            receipt.put("line", line);
            receipt.put("status", result.getSendStatus());
            receipt.put("message_id", result.getOffsetMsgId());
            receipt.put("unique_key", result.getMsgId());
            receipt.put("queue", result.getMessageQueue().getQueueId());
            receipt.put("queue_offset", result.getQueueOffset());
            out.write(JSON.toJSONString(receipt));
            out.newLine();
            count++;
        }

        @Override
        public synchronized void close() throws IOException {
            out.close();
        }
    }
}
