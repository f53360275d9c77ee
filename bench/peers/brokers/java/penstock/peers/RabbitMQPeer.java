// RabbitMQ streams through the stream protocol's own client.
package penstock.peers;

import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

final class RabbitMQPeer implements Peer {
    private final String topic;
    private final byte[] body;
    private final Environment environment;
    private final Producer producer;

    RabbitMQPeer(Map<String, String> order) {
        topic = order.get("topic");
        body = Load.body(order);
        String[] endpoint = order.get("endpoint").split(":");
        Address address = new Address(endpoint[0], Integer.parseInt(endpoint[1]));
        environment = Environment.builder().host(address.host()).port(address.port())
            .addressResolver(other -> address).build();
        environment.streamCreator().stream(topic).create();
        producer = environment.producerBuilder().stream(topic)
            .maxUnconfirmedMessages(2 * Integer.parseInt(order.get("in_flight"))).build();
    }

    @Override
    public void send(Done done) {
        producer.send(producer.messageBuilder().addData(body).build(), status -> done.done(
            status.isConfirmed() ? null : new IllegalStateException("not confirmed: " + status.getCode())));
    }

    /** The offset after the last message, which a consumer of the last chunk sees. */
    @Override
    public long stored(long expected) throws Exception {
        AtomicLong end = new AtomicLong();
        CountDownLatch seen = new CountDownLatch(1);
        try (Consumer consumer = environment.consumerBuilder().stream(topic)
            .offset(OffsetSpecification.last())
            .messageHandler((context, message) -> {
                end.set(context.offset() + 1);
                if (context.offset() + 1 >= expected) {
                    seen.countDown();
                }
            }).build()) {
            seen.await(10, TimeUnit.SECONDS);
        }
        return end.get();
    }

    @Override
    public void remove() {
        producer.close();
        environment.deleteStream(topic);
    }

    @Override
    public void close() {
        environment.close();
    }
}
