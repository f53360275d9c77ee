// Redis Streams: XREAD with COUNT on one connection, each from where the one before ended.
package penstock.peers;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.params.XReadParams;
import redis.clients.jedis.resps.StreamEntryBinary;

final class RedisReader implements Reader {
    private static final int COUNT = 1000;

    private final byte[] topic;
    private final Jedis jedis;

    RedisReader(Map<String, String> order) {
        String[] endpoint = order.get("endpoint").split(":");
        topic = order.get("topic").getBytes(StandardCharsets.UTF_8);
        jedis = new Jedis(endpoint[0], Integer.parseInt(endpoint[1]), (int) ANSWER_TIMEOUT_S * 1000);
    }

    @Override
    public void read(long messages, Touched touched) {
        StreamEntryID from = new StreamEntryID();
        while (touched.messages() < messages) {
            List<Map.Entry<byte[], List<StreamEntryBinary>>> found =
                jedis.xreadBinary(XReadParams.xReadParams().count(COUNT), Map.of(topic, from));
            if (found == null || found.isEmpty()) {
                throw new IllegalStateException("ends after " + touched.messages() + " messages");
            }
            List<StreamEntryBinary> entries = found.get(0).getValue();
            for (StreamEntryBinary entry : entries) {
                for (byte[] body : entry.getFields().values()) { // there is one
                    touched.body(body);
                }
            }
            from = entries.get(entries.size() - 1).getID();
        }
    }

    @Override
    public void close() {
        jedis.close();
    }
}
