// One message as one line of JSON, with the names that `penstock store inspect -o json` prints.
package penstock.golden;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.StringJoiner;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

public final class Line {
    private static final Set<String> ADDED_BY_CLIENTS = Set.of("MIN_OFFSET", "MAX_OFFSET");

    private Line() {}

    public static String of(MessageExt message) throws Exception {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("queue_id", message.getQueueId());
        line.put("queue_offset", message.getQueueOffset());
        line.put("physical_offset", message.getCommitLogOffset());
        line.put("size", message.getStoreSize());
        line.put("store_timestamp_ms", message.getStoreTimestamp());
        line.put("born_timestamp_ms", message.getBornTimestamp());
        line.put("born_host", hostText(message.getBornHost()));
        line.put("store_host", hostText(message.getStoreHost()));
        line.put("flag", message.getFlag());
        line.put("sys_flag", message.getSysFlag());
        line.put("reconsume_times", message.getReconsumeTimes());
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("unique_key", message.getProperty("UNIQ_KEY"));
        line.put("message_id", messageId(message));
        line.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        line.put("body_size", body.length);
        line.put("body_sha256",
            HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body)));
        Map<String, String> properties = message.getProperties();
        Map<String, String> stored = properties == null ? new TreeMap<>() : new TreeMap<>(properties);
        stored.keySet().removeAll(ADDED_BY_CLIENTS);
        line.put("properties", stored);
        return json(line);
    }

    /** The broker's id; a message from a client gives its own as the first. */
    public static String messageId(MessageExt message) {
        return message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId();
    }

    static String json(Map<String, Object> line) {
        return JSON.toJSONString(line, SerializerFeature.WriteMapNullValue);
    }

    /** `10.1.2.3:54321`, `[2001:db8::1]:1`. */
    static String hostText(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        InetAddress ip = host.getAddress();
        String text = ip instanceof Inet6Address ? "[" + shortest(ip.getAddress()) + "]"
            : ip.getHostAddress();
        return text + ":" + host.getPort();
    }

    /** An IPv6 address with its longest run of two or more zero groups (the first such) as `::`. */
    private static String shortest(byte[] raw) {
        int[] groups = new int[8];
        for (int i = 0; i < 8; i++) {
            groups[i] = (raw[2 * i] & 0xFF) << 8 | raw[2 * i + 1] & 0xFF;
        }
        int start = -1;
        int length = 1;
        for (int i = 0; i < 8; i++) {
            int end = i;
            while (end < 8 && groups[end] == 0) {
                end++;
            }
            if (end - i > length) {
                start = i;
                length = end - i;
            }
        }
        if (start < 0) {
            return join(groups, 0, 8);
        }
        return join(groups, 0, start) + "::" + join(groups, start + length, 8);
    }

    private static String join(int[] groups, int from, int to) {
        StringJoiner text = new StringJoiner(":");
        for (int i = from; i < to; i++) {
            text.add(Integer.toHexString(groups[i]));
        }
        return text.toString();
    }
}
