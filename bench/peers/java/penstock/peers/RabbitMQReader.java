// RabbitMQ streams: a consumer with more credit than its client gives by itself.
package penstock.peers;

import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerFlowStrategy;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

final class RabbitMQReader implements Reader {
    private static final int CHUNKS = 50;

    private final String topic;
    private final Environment environment;

    RabbitMQReader(Map<String, String> order) {
        topic = order.get("topic");
        String[] endpoint = order.get("endpoint").split(":");
        Address address = new Address(endpoint[0], Integer.parseInt(endpoint[1]));
        environment = Environment.builder().host(address.host()).port(address.port())
            .addressResolver(other -> address).build();
    }

    @Override
    public void read(long messages, Touched touched) throws Exception {
        CountDownLatch all = new CountDownLatch(1);
        try (Consumer consumer = environment.consumerBuilder().stream(topic)
            .offset(OffsetSpecification.first())
            .flow().strategy(ConsumerFlowStrategy.creditOnChunkArrival(CHUNKS)).builder()
            .messageHandler((context, message) -> {
                touched.body(message.getBodyAsBinary());
                if (touched.messages() == messages) {
                    all.countDown();
                }
            }).build()) {
            if (!all.await(ANSWER_TIMEOUT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not " + messages + " messages within " + ANSWER_TIMEOUT_S + " s");
            }
        }
    }

    @Override
    public void close() {
        environment.close();
    }
}
