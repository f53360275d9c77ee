// Redis Streams through Jedis: two connections, each sending all that waits as one pipeline.
package penstock.peers;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.params.XAddParams;

final class RedisPeer implements Peer {
    private static final int CONNECTIONS = 2;

    private final String host;
    private final int port;
    private final byte[] topic;
    private final Map<byte[], byte[]> fields;
    private final int most;
    private final BlockingQueue<Done> waiting = new LinkedBlockingQueue<>();

    RedisPeer(Map<String, String> order) {
        String[] endpoint = order.get("endpoint").split(":");
        host = endpoint[0];
        port = Integer.parseInt(endpoint[1]);
        topic = order.get("topic").getBytes(StandardCharsets.UTF_8);
        fields = Map.of("b".getBytes(StandardCharsets.UTF_8), Load.body(order));
        most = Math.max(1, Integer.parseInt(order.get("in_flight")) / CONNECTIONS);
        for (int number = 0; number < CONNECTIONS; number++) {
            Thread thread = new Thread(this::talk);
            thread.setDaemon(true);
            thread.start();
        }
    }

    private void talk() {
        try (Jedis jedis = new Jedis(host, port, 60_000)) {
            while (true) {
                List<Done> taken = new ArrayList<>();
                taken.add(waiting.take());
                waiting.drainTo(taken, most - 1);
                Pipeline pipeline = jedis.pipelined();
                List<Response<byte[]>> answers = new ArrayList<>();
                for (int number = 0; number < taken.size(); number++) {
                    answers.add(pipeline.xadd(topic, XAddParams.xAddParams(), fields));
                }
                pipeline.sync();
                for (int number = 0; number < taken.size(); number++) {
                    tell(taken.get(number), answers.get(number));
                }
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void tell(Done done, Response<byte[]> answer) {
        try {
            answer.get();
            done.done(null);
        } catch (RuntimeException error) {
            done.done(error);
        }
    }

    @Override
    public void send(Done done) {
        waiting.add(done);
    }

    @Override
    public long stored(long expected) {
        try (Jedis jedis = new Jedis(host, port, 60_000)) {
            return jedis.xlen(topic);
        }
    }

    @Override
    public void remove() {
        try (Jedis jedis = new Jedis(host, port, 60_000)) {
            jedis.unlink(topic);
        }
    }

    @Override
    public void close() {
        // its threads end with the process
    }
}
