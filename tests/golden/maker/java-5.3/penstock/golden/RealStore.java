// What differs between releases, for 5.3: how a store is built, and who turns a delayed message
// into one of the delay topic (here the broker, ahead of the store).
package penstock.golden;

import java.lang.reflect.Field;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.DefaultHAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

public final class RealStore {
    static final String LINE = "5.3";
    static final boolean LONG_TOPICS = true;
    static final boolean STORE_REWRITES_DELAYED = false;

    private RealStore() {}

    /** A message on its way into the store. */
    static final class Outgoing extends MessageExtBrokerInner {}

    static DefaultMessageStore build(MessageStoreConfig config) throws Exception {
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("golden", false),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { },
            new BrokerConfig(),
            new ConcurrentHashMap<>());
        withoutReplication(store);
        return store;
    }

    /** To be called before the store's start. */
    public static void withoutReplication(DefaultMessageStore store) throws Exception {
        Field replication = DefaultMessageStore.class.getDeclaredField("haService");
        replication.setAccessible(true);
        replication.set(store, new NoReplication());
    }

    /** Opens no socket: the real one listens on every address. */
    private static final class NoReplication extends DefaultHAService {
        @Override
        public void start() {}

        @Override
        public void shutdown() {}
    }
}
