// RocketMQ's pull consumer: a thread for each queue, as it has no other way to wait for several.
package penstock.peers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class RocketMQReader implements Reader {
    private static final int AT_ONCE = 1024;

    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("peers-read");
    private final Set<MessageQueue> queues;
    private final ExecutorService threads;

    RocketMQReader(Map<String, String> order) throws Exception {
        consumer.setNamesrvAddr(order.get("endpoint"));
        consumer.start();
        queues = consumer.fetchSubscribeMessageQueues(order.get("topic"));
        threads = Executors.newFixedThreadPool(queues.size());
    }

    @Override
    public void read(long messages, Touched touched) throws Exception {
        List<Future<Touched>> parts = new ArrayList<>();
        for (MessageQueue queue : queues) {
            parts.add(threads.submit(() -> readQueue(queue)));
        }
        for (Future<Touched> part : parts) {
            touched.add(part.get(ANSWER_TIMEOUT_S, TimeUnit.SECONDS));
        }
    }

    private Touched readQueue(MessageQueue queue) throws Exception {
        Touched touched = new Touched();
        long end = consumer.maxOffset(queue);
        for (long offset = consumer.minOffset(queue); offset < end; ) {
            PullResult found = consumer.pull(queue, "*", offset, AT_ONCE);
            if (found.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + offset + ": " + found);
            }
            for (MessageExt message : found.getMsgFoundList()) {
                touched.body(message.getBody());
            }
            offset = found.getNextBeginOffset();
        }
        return touched;
    }

    @Override
    public void close() {
        threads.shutdown();
        consumer.shutdown();
    }
}
