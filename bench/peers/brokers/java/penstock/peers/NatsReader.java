// NATS JetStream: an ordered consumer, which asks for the next messages before it is out of them.
package penstock.peers;

import io.nats.client.Connection;
import io.nats.client.ConsumeOptions;
import io.nats.client.IterableConsumer;
import io.nats.client.Message;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.StreamContext;
import io.nats.client.api.OrderedConsumerConfiguration;
import java.util.Map;

final class NatsReader implements Reader {
    private static final ConsumeOptions OPTIONS = ConsumeOptions.builder().batchSize(1_000).build();

    private final Connection connection;
    private final StreamContext stream;

    NatsReader(Map<String, String> order) throws Exception {
        connection = Nats.connect(new Options.Builder().server("nats://" + order.get("endpoint")).build());
        stream = connection.getStreamContext(order.get("topic"));
    }

    @Override
    public void read(long messages, Touched touched) throws Exception {
        try (IterableConsumer consumer =
                stream.createOrderedConsumer(new OrderedConsumerConfiguration()).iterate(OPTIONS)) {
            while (touched.messages() < messages) {
                Message message = consumer.nextMessage(ANSWER_TIMEOUT_S * 1000);
                if (message == null) {
                    throw new IllegalStateException("ends after " + touched.messages() + " messages");
                }
                touched.body(message.getData());
            }
        }
    }

    @Override
    public void close() throws Exception {
        connection.close();
    }
}
