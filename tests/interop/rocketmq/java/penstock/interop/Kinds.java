// Sends of every kind that the producer has besides the ones to a queue that are in Sending: without
// a queue, waited for or not, in batches, by selectors, and one whose trace is followed.
package penstock.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

final class Kinds {
    private static final int TIMEOUT_MS = 30_000;
    private static final int COUNT = 4;

    private final String nameServer;
    private final String instance;
    private DefaultMQProducer spreading;
    private DefaultMQProducer traced;
    private int spread;

    Kinds(String nameServer, String instance) {
        this.nameServer = nameServer;
        this.instance = instance;
    }

    /** {kind: what the broker has answered}. */
    Map<String, Object> send(String topic) throws Exception {
        Map<String, Object> said = new LinkedHashMap<>();
        DefaultMQProducer producer = started(new DefaultMQProducer("interop-kinds"));
        try {
            List<Object> sent = new ArrayList<>();
            List<CompletableFuture<SendResult>> later = new ArrayList<>();
            List<Long> offsets = new ArrayList<>();
            List<Message> batch = new ArrayList<>();
            List<Object> chosen = new ArrayList<>();
            for (int n = 0; n < COUNT; n++) {
                sent.add(producer.send(made(topic, "sync", n), TIMEOUT_MS).getSendStatus());
                later.add(sendLater(producer, made(topic, "async", n)));
                producer.sendOneway(made(topic, "oneway", n));
                batch.add(made(topic, "batch", n));
                offsets.add(producer.send(
                    made(topic, "hash", n), new SelectMessageQueueByHash(), "one", TIMEOUT_MS)
                    .getQueueOffset());
                chosen.add(producer.send(
                    made(topic, "chosen", n), (queues, message, wanted) -> queues.stream()
                        .filter(each -> wanted.equals(each.getQueueId())).findFirst().get(),
                    n, TIMEOUT_MS).getMessageQueue().getQueueId());
            }
            said.put("send", sent);
            List<Object> answered = new ArrayList<>();
            for (CompletableFuture<SendResult> each : later) {
                answered.add(each.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getSendStatus());
            }
            said.put("asynchronous", answered);
            SendResult ofBatch = producer.send(batch, TIMEOUT_MS);
            said.put("batch", List.of(
                ofBatch.getSendStatus(), ofBatch.getOffsetMsgId().split(",").length));
            said.put("in order", offsets.stream().sorted().toList().equals(offsets));
            said.put("selector", chosen);
        } finally {
            Ending.of(producer::shutdown);
        }
        return said;
    }

    /** The unique key of a message whose trace is on its way: its producer runs until `close`, as one
     * that ends at once gives up a trace whose topic is to be made first. */
    String trace(String topic) throws Exception {
        traced = started(new DefaultMQProducer("interop-traced", true, null));
        return traced.send(made(topic, "traced", 0), TIMEOUT_MS).getMsgId();
    }

    /** How many of `count` messages each broker has taken; the producer knows its brokers from before. */
    Map<String, Integer> spread(String topic, int count) throws Exception {
        if (spreading == null) {
            spreading = started(new DefaultMQProducer("interop-spread"));
        }
        Map<String, Integer> found = new TreeMap<>();
        for (int n = 0; n < count; n++) {
            SendResult result = spreading.send(made(topic, "spread", spread++), TIMEOUT_MS);
            found.merge(result.getMessageQueue().getBrokerName(), 1, Integer::sum);
        }
        return found;
    }

    void close() {
        for (DefaultMQProducer each : new DefaultMQProducer[] {spreading, traced}) {
            if (each != null) {
                Ending.of(each::shutdown);
            }
        }
    }

    private static CompletableFuture<SendResult> sendLater(DefaultMQProducer producer, Message message)
        throws Exception {
        CompletableFuture<SendResult> found = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                found.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                found.completeExceptionally(error);
            }
        }, TIMEOUT_MS);
        return found;
    }

    private DefaultMQProducer started(DefaultMQProducer made) throws Exception {
        made.setNamesrvAddr(nameServer);
        made.setMqClientApiTimeout(TIMEOUT_MS);
        made.setInstanceName(instance + "-" + made.getProducerGroup());
        made.start();
        return made;
    }

    private static Message made(String topic, String kind, int number) {
        return new Message(topic, "kinds", (kind + "-" + number).getBytes());
    }
}
