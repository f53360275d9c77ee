// RabbitMQ streams: a consumer with its client's own credit of 10 chunks; 50 were no faster.
package penstock.peers;

import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

final class RabbitMQReader implements Reader {
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
