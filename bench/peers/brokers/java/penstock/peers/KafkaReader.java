// Kafka's consumer, assigned to all partitions of a topic.
package penstock.peers;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

final class KafkaReader implements Reader {
    private final List<TopicPartition> queues;
    private final KafkaConsumer<byte[], byte[]> consumer;

    KafkaReader(Map<String, String> order) {
        queues = IntStream.range(0, Integer.parseInt(order.get("queues")))
            .mapToObj(queue -> new TopicPartition(order.get("topic"), queue)).collect(Collectors.toList());
        consumer = new KafkaConsumer<>(Map.of(
            "bootstrap.servers", order.get("endpoint"),
            "enable.auto.commit", "false",
            "max.poll.records", "10000",
            "max.partition.fetch.bytes", String.valueOf(4 << 20)),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.assign(queues);
    }

    @Override
    public void read(long messages, Touched touched) {
        consumer.seekToBeginning(queues);
        while (touched.messages() < messages) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(ANSWER_TIMEOUT_S));
            if (records.isEmpty()) {
                throw new IllegalStateException("ends after " + touched.messages() + " messages");
            }
            for (ConsumerRecord<byte[], byte[]> record : records) {
                touched.body(record.value());
            }
        }
    }

    @Override
    public void close() {
        consumer.close();
    }
}
