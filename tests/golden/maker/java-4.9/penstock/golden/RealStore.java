// What differs between releases, for 4.9: how a store is built, and who turns a delayed message
// into one of the delay topic (here the store itself).
package penstock.golden;

import java.lang.reflect.Field;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

final class RealStore {
    static final String LINE = "4.9";
    static final boolean LONG_TOPICS = false;
    static final boolean STORE_REWRITES_DELAYED = true;

    private RealStore() {}

    /** A message on its way into the store. */
    static final class Outgoing extends MessageExtBrokerInner {}

    static DefaultMessageStore build(MessageStoreConfig config) throws Exception {
        DefaultMessageStore store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("golden", false),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { },
            new BrokerConfig());
        Field replication = DefaultMessageStore.class.getDeclaredField("haService");
        replication.setAccessible(true);
        replication.set(store, new NoReplication(store));
        return store;
    }

    /** Opens no socket: the real one listens on every address. */
    private static final class NoReplication extends HAService {
        NoReplication(DefaultMessageStore store) throws Exception {
            super(store);
        }

        @Override
        public void start() {}

        @Override
        public void shutdown() {}
    }
}
