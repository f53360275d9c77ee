// Where a store is and how large its files are: RocketMQ writes no size into any file, so writer
// and reader must be told the same numbers.
package penstock.golden;

import java.nio.file.Path;
import org.apache.rocketmq.store.config.MessageStoreConfig;

record StoreFiles(Path root, int commitLogBytes, int consumeQueueBytes, int slots, int items) {

    static final int DEFAULT_COMMIT_LOG_BYTES = 16 * 1024;
    static final int DEFAULT_CONSUME_QUEUE_BYTES = 20 * 50;
    static final int DEFAULT_SLOTS = 50;
    static final int DEFAULT_ITEMS = 200;

    /** From `DIR [commitLogBytes [consumeQueueBytes [slots [items]]]]`, starting at `from`. */
    static StoreFiles fromArguments(String[] arguments, int from) {
        return new StoreFiles(
            Path.of(arguments[from]).toAbsolutePath(),
            number(arguments, from + 1, DEFAULT_COMMIT_LOG_BYTES),
            number(arguments, from + 2, DEFAULT_CONSUME_QUEUE_BYTES),
            number(arguments, from + 3, DEFAULT_SLOTS),
            number(arguments, from + 4, DEFAULT_ITEMS));
    }

    MessageStoreConfig config() {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(commitLogBytes);
        config.setMappedFileSizeConsumeQueue(consumeQueueBytes);
        config.setMaxHashSlotNum(slots);
        config.setMaxIndexNum(items);
        return config;
    }

    private static int number(String[] arguments, int at, int otherwise) {
        return at < arguments.length ? Integer.parseInt(arguments[at]) : otherwise;
    }
}
