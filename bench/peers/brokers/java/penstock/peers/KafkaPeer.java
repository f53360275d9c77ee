// Kafka's producer, with batches as large as Penstock's frames.
package penstock.peers;

import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class KafkaPeer implements Peer {
    private final String topic;
    private final int queues;
    private final byte[] body;
    private final Admin admin;
    private final KafkaProducer<byte[], byte[]> producer;
    private int turn;

    KafkaPeer(Map<String, String> order) throws Exception {
        topic = order.get("topic");
        queues = Integer.parseInt(order.get("queues"));
        body = Load.body(order);
        admin = Admin.create(Map.of("bootstrap.servers", order.get("endpoint")));
        NewTopic made = new NewTopic(topic, queues, (short) 1);
        if (order.get("ack").equals("durable")) {
            made.configs(Map.of("flush.messages", "1")); // synced before it is acknowledged
        }
        admin.createTopics(List.of(made)).all().get();
        producer = new KafkaProducer<>(Map.of(
            "bootstrap.servers", order.get("endpoint"),
            "acks", "all",
            "batch.size", String.valueOf(256 << 10)),
            new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    public void send(Done done) {
        turn = (turn + 1) % queues;
        producer.send(new ProducerRecord<>(topic, turn, null, body), (stored, error) -> done.done(error));
    }

    @Override
    public long stored(long expected) throws Exception {
        Map<TopicPartition, OffsetSpec> ends = IntStream.range(0, queues).boxed()
            .collect(Collectors.toMap(queue -> new TopicPartition(topic, queue), queue -> OffsetSpec.latest()));
        return admin.listOffsets(ends).all().get().values().stream().mapToLong(end -> end.offset()).sum();
    }

    @Override
    public void remove() throws Exception {
        admin.deleteTopics(List.of(topic)).all().get();
    }

    @Override
    public void close() {
        producer.close();
        admin.close();
    }
}
