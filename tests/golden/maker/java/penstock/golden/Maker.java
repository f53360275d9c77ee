// Puts messages into a real store and notes down each one as the store itself reads it back.
package penstock.golden;

import java.io.BufferedWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

final class Maker {
    private static final String DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX";

    private final DefaultMessageStore store;
    private final BufferedWriter manifest;

    Maker(DefaultMessageStore store, BufferedWriter manifest) {
        this.store = store;
        this.manifest = manifest;
    }

    /** Puts one message; returns its physical offset. */
    long put(Message message) throws Exception {
        AppendMessageResult put = done(store.putMessage(message.outgoing()));
        note(put, List.of(message));
        return put.getWroteOffset();
    }

    /** Puts one message for later: what a 5.3 broker, or a 4.9 store, makes of DELAY. */
    void putDelayed(Message message, int level) throws Exception {
        message.property("DELAY", Integer.toString(level));
        if (RealStore.STORE_REWRITES_DELAYED) {
            put(message);
            return;
        }
        Message waiting = new Message(DELAY_TOPIC, level - 1, message.body);
        waiting.properties.putAll(message.properties);
        waiting.property("REAL_TOPIC", message.topic);
        put(waiting.property("REAL_QID", Integer.toString(message.queueId)));
    }

    /** Puts several messages of one queue as one batch; hosts and times are those of the first. */
    void putBatch(List<Message> messages) throws Exception {
        List<org.apache.rocketmq.common.message.Message> items = new ArrayList<>();
        for (Message message : messages) {
            var item = new org.apache.rocketmq.common.message.Message(message.topic, message.body);
            item.setFlag(message.flag);
            MessageAccessor.setProperties(item, message.properties);
            items.add(item);
        }
        MessageExtBatch batch = new MessageExtBatch();
        messages.get(0).fill(batch);
        batch.setBody(MessageDecoder.encodeMessages(items));
        note(done(store.putMessages(batch)), messages);
    }

    private static AppendMessageResult done(PutMessageResult result) {
        if (!result.isOk()) {
            throw new IllegalStateException("the store answered " + result);
        }
        return result.getAppendMessageResult();
    }

    private void note(AppendMessageResult put, List<Message> messages) throws Exception {
        String[] ids = put.getMsgId().split(",");
        long offset = put.getWroteOffset();
        for (int i = 0; i < messages.size(); i++) {
            MessageExt read = store.lookMessageByOffset(offset);
            check(Arrays.equals(messages.get(i).body, read.getBody()), "bodies differ");
            check(ids[i].equals(read.getMsgId()), "message ids differ");
            check(read.getQueueOffset() == put.getLogicsOffset() + i, "queue offsets differ");
            check(read.getCommitLogOffset() == offset, "physical offsets differ");
            check(Line.hostText(read.getBornHost()).equals(messages.get(0).bornHost), "born host");
            check(Line.hostText(read.getStoreHost()).equals(messages.get(0).storeHost), "store host");
            manifest.write(Line.of(read));
            manifest.newLine();
            offset += read.getStoreSize();
        }
        check(offset == put.getWroteOffset() + put.getWroteBytes(), "sizes differ");
    }

    private static void check(boolean holds, String problem) {
        if (!holds) {
            throw new IllegalStateException("put and read back: " + problem);
        }
    }
}
