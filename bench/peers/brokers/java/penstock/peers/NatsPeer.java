// NATS JetStream: asynchronous publishing to a stream in files.
package penstock.peers;

import io.nats.client.Connection;
import io.nats.client.JetStream;
import io.nats.client.JetStreamManagement;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.api.StorageType;
import io.nats.client.api.StreamConfiguration;
import java.util.Map;

final class NatsPeer implements Peer {
    private final String topic;
    private final byte[] body;
    private final Connection connection;
    private final JetStreamManagement management;
    private final JetStream stream;

    NatsPeer(Map<String, String> order) throws Exception {
        topic = order.get("topic");
        body = Load.body(order);
        connection = Nats.connect(new Options.Builder().server("nats://" + order.get("endpoint"))
            .maxMessagesInOutgoingQueue(2 * Integer.parseInt(order.get("in_flight"))).build());
        management = connection.jetStreamManagement();
        management.addStream(StreamConfiguration.builder()
            .name(topic).subjects(topic).storageType(StorageType.File).build());
        stream = connection.jetStream();
    }

    @Override
    public void send(Done done) {
        stream.publishAsync(topic, body).whenComplete((stored, error) -> done.done(error));
    }

    @Override
    public long stored(long expected) throws Exception {
        return management.getStreamInfo(topic).getStreamState().getMsgCount();
    }

    @Override
    public void remove() throws Exception {
        management.deleteStream(topic);
    }

    @Override
    public void close() throws Exception {
        connection.close();
    }
}
