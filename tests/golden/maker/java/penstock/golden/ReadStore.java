// Opens a store directory with the real DefaultMessageStore and prints what a consumer would get.
//
//     ReadStore DIR [commitLogBytes [consumeQueueBytes [slots [items]]]]
//
// First line: {"load": whether RocketMQ accepts the directory, "abort": whether the last exit was
// unclean}. Then one line for each message of each queue, read through getMessage. RocketMQ recovers
// the store on the way and shuts it down cleanly, so the directory is changed: give it a copy.
// Exit code 0 when the directory loaded, 1 when not, 2 when there is no store.
package penstock.golden;

import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;

public final class ReadStore {
    private static final int MESSAGES_A_PULL = 32;

    private ReadStore() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // RocketMQ may log there
        StoreFiles files = StoreFiles.fromArguments(arguments, 0);
        if (!Files.isDirectory(files.root().resolve("commitlog"))) {
            System.err.println("no store: " + files.root() + " has no commitlog directory");
            System.exit(2);
        }
        Map<String, Object> opened = new LinkedHashMap<>();
        boolean abort = Files.exists(files.root().resolve("abort"));
        DefaultMessageStore store = RealStore.build(files.config());
        boolean loaded = store.load();
        opened.put("load", loaded);
        opened.put("abort", abort);
        out.println(Line.json(opened));
        if (loaded) {
            store.start();
            while (store.dispatchBehindBytes() > 0) {
                Thread.sleep(10);
            }
            for (Path topic : directories(files.root().resolve("consumequeue"))) {
                for (Path queue : directories(topic)) {
                    readQueue(store, name(topic), Integer.parseInt(name(queue)), out);
                }
            }
            store.shutdown();
        }
        out.flush();
        System.exit(loaded ? 0 : 1);
    }

    private static void readQueue(DefaultMessageStore store, String topic, int queueId,
        PrintStream out) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queueId);
        while (offset < store.getMaxOffsetInQueue(topic, queueId)) {
            GetMessageResult pulled =
                store.getMessage("golden", topic, queueId, offset, MESSAGES_A_PULL, null);
            for (ByteBuffer message : pulled.getMessageBufferList()) {
                out.println(Line.of(MessageDecoder.decode(message, true, false)));
            }
            pulled.release();
            if (pulled.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(topic + " " + queueId + " is stuck at " + offset
                    + ": " + pulled.getStatus());
            }
            offset = pulled.getNextBeginOffset();
        }
    }

    private static List<Path> directories(Path parent) throws Exception {
        if (!Files.isDirectory(parent)) {
            return List.of();
        }
        try (Stream<Path> children = Files.list(parent)) {
            return children.filter(Files::isDirectory).sorted().toList();
        }
    }

    private static String name(Path path) {
        return path.getFileName().toString();
    }
}
