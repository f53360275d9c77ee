// The messages of the golden stores: every kind of record that differs on disk, then enough
// ordinary ones that the log rolls several times and queues need a second segment.
package penstock.golden;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.DeflaterOutputStream;

final class Scenario {
    private static final String BORN_V6 = "[2001:db8::1]:1";
    private static final String STORE_V6 = "[2001:db8:0:7::2]:10911";
    private static final String STORE_V4 = "192.168.7.9:10911";
    private static final int COMPRESSED_ZLIB = 0x301;
    private static final int PREPARED = 0x4;
    private static final int COMMIT = 0x8;
    private static final int ROLLBACK = 0xC;

    private final Maker maker;
    private int uniqueKeys;

    Scenario(Maker maker) {
        this.maker = maker;
    }

    /** Every kind, then 2 x 70 orders and 60 payments: some 70 KiB of log. */
    void everyKind() throws Exception {
        tagsAndKeys();
        bodies();
        hosts("orders", 0, BORN_V6, STORE_V4);
        retries();
        batches();
        delays();
        transactions();
        ordinary("orders", 0, 70);
        ordinary("orders", 1, 70);
        ordinary("payments", 3, 60);
        batches();
    }

    /** A broker that itself has an IPv6 address, and producers of either kind. */
    void ipv6Broker() throws Exception {
        for (int i = 0; i < 30; i++) {
            hosts("orders", i % 2, BORN_V6, STORE_V6);
            hosts("orders", i % 2, "10.1.2.3:54321", STORE_V6);
            hosts("orders", i % 2, "[::1]:65535", STORE_V6);
            hosts("orders", i % 2, "[2001:db8:1:2:3:4:5:6]:40000", STORE_V6);
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            batch.add(order("orders", 0, "batch " + i).tags("TagB").hosts(BORN_V6, STORE_V6));
        }
        maker.putBatch(batch);
    }

    private void tagsAndKeys() throws Exception {
        maker.put(new Message("orders", 0, text("no properties at all")));
        maker.put(order("orders", 0, "tags").tags("TagA"));
        maker.put(order("orders", 1, "tags in Chinese").tags("中文标签"));
        maker.put(order("orders", 1, "tags outside the BMP").tags("🚀😀"));
        maker.put(order("orders", 0, "one key").keys("order-1"));
        maker.put(order("orders", 0, "several keys").tags("TagA").keys("k1 k2  k3 中文"));
        maker.put(order("orders", 0, "hash of Integer.MIN_VALUE").tags("polygenelubricants"));
        maker.put(order("orders", 1, "own properties")
            .property("region", "Zürich").property("empty-looking", " ").property("WAIT", "false"));
        maker.put(new Message("a", 0, text("no unique key")).tags("T").keys("K"));
        Message flagged = order("orders", 1, "user flag");
        flagged.flag = 0x7FFFFFFF;
        maker.put(flagged);
        Message negative = order("orders", 1, "negative user flag");
        negative.flag = -2;
        maker.put(negative);
    }

    private void bodies() throws Exception {
        maker.put(new Message("orders", 0, new byte[] {0}).unique(uniqueKeys++));
        maker.put(new Message("orders", 0, "x".repeat(5000).getBytes()).unique(uniqueKeys++));
        byte[] everyByte = new byte[256];
        for (int i = 0; i < 256; i++) {
            everyByte[i] = (byte) i;
        }
        maker.put(new Message("orders", 0, everyByte).unique(uniqueKeys++).tags("binary"));
        ByteArrayOutputStream packed = new ByteArrayOutputStream();
        try (DeflaterOutputStream deflater = new DeflaterOutputStream(packed)) {
            deflater.write("compressed ".repeat(100).getBytes());
        }
        Message compressed = new Message("orders", 0, packed.toByteArray()).unique(uniqueKeys++);
        compressed.sysFlag = COMPRESSED_ZLIB;
        maker.put(compressed);
    }

    private void hosts(String topic, int queueId, String born, String store) throws Exception {
        maker.put(order(topic, queueId, "hosts").tags("TagA").hosts(born, store));
    }

    private void retries() throws Exception {
        Message retried = order("%RETRY%billing", 0, "second try")
            .tags("TagA").property("RETRY_TOPIC", "orders").property("WAIT", "false")
            .property("ORIGIN_MESSAGE_ID", "C0A8070900002A9F0000000000000000");
        retried.reconsumeTimes = 2;
        maker.put(retried);
        Message dead = order("%DLQ%billing", 0, "gave up").property("RETRY_TOPIC", "orders");
        dead.reconsumeTimes = 16;
        maker.put(dead);
        if (RealStore.LONG_TOPICS) {
            maker.put(order("%RETRY%" + "g".repeat(120), 0, "127 characters: still version 1"));
            maker.put(order("%RETRY%" + "g".repeat(121), 0, "128 characters: version 2"));
            maker.put(order("%RETRY%" + "h".repeat(248), 0, "255 characters").tags("TagA").keys("long"));
        }
    }

    private void batches() throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            Message item = order("orders", 1, "batch " + i).tags("TagB").keys("batch-" + i)
                .property("WAIT", "true");
            item.flag = i;
            batch.add(item.hosts(BORN_V6, STORE_V4));
        }
        maker.putBatch(batch);
    }

    private void delays() throws Exception {
        maker.putDelayed(order("orders", 1, "in half an hour").tags("TagA"), 16);
        maker.putDelayed(order("payments", 3, "in two hours").keys("later"), 18);
    }

    private void transactions() throws Exception {
        long half = maker.put(transactional("RMQ_SYS_TRANS_HALF_TOPIC", 0, "half", "half message"));
        Message commit = transactional("payments", 3, "half", "half message");
        commit.sysFlag = COMMIT;
        commit.preparedOffset = half;
        maker.put(commit);
        maker.put(new Message("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, text("0,")).tags("d"));
        Message prepared = transactional("payments", 3, "old-half", "prepared the old way");
        prepared.sysFlag = PREPARED;
        Message rollback = transactional("payments", 3, "old-half", "rolled back the old way");
        rollback.sysFlag = ROLLBACK;
        rollback.preparedOffset = maker.put(prepared);
        maker.put(rollback);
    }

    private Message transactional(String topic, int queueId, String key, String body) {
        return order(topic, queueId, body).keys(key).property("TRAN_MSG", "true")
            .property("PGROUP", "billing").property("REAL_TOPIC", "payments")
            .property("REAL_QID", "3");
    }

    private void ordinary(String topic, int queueId, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = order(topic, queueId, topic + " number " + i + " " + ".".repeat(i));
            message.tags("Tag" + i % 3).keys(topic + "-" + i);
            message.bornTimestampMs += i;
            maker.put(message);
        }
    }

    private Message order(String topic, int queueId, String body) {
        return new Message(topic, queueId, text(body)).unique(uniqueKeys++);
    }

    private static byte[] text(String body) {
        return body.getBytes(StandardCharsets.UTF_8);
    }
}
