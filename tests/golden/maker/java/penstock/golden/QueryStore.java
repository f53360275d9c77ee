// Opens a store directory with the real DefaultMessageStore and asks it for messages by key.
//
//     QueryStore DIR QUERIES [commitLogBytes [consumeQueueBytes [slots [items]]]]
//
// A line of QUERIES is {"topic", "key", "max_num", "begin_ms", "end_ms"}; for each one line is
// printed, the log offsets of what was found, in ascending order. RocketMQ answers with every
// message whose key has the same hash. It may change the directory: give it a copy.
package penstock.golden;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;

public final class QueryStore {
    private QueryStore() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // RocketMQ may log there
        List<String> sizes = new ArrayList<>(List.of(arguments));
        Path queries = Path.of(sizes.remove(1));
        StoreFiles files = StoreFiles.fromArguments(sizes.toArray(new String[0]), 0);
        DefaultMessageStore store = RealStore.build(files.config());
        if (!store.load()) {
            System.err.println("RocketMQ refuses " + files.root());
            System.exit(1);
        }
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        for (String line : Files.readAllLines(queries)) {
            out.println(JSON.toJSONString(answer(store, JSON.parseObject(line))));
        }
        store.shutdown();
        out.flush();
        System.exit(0);
    }

    private static List<Long> answer(DefaultMessageStore store, JSONObject query) {
        QueryMessageResult found = store.queryMessage(
            query.getString("topic"),
            query.getString("key"),
            query.getIntValue("max_num"),
            query.getLongValue("begin_ms"),
            query.getLongValue("end_ms"));
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer message : found.getMessageBufferList()) {
            offsets.add(MessageDecoder.decode(message).getCommitLogOffset());
        }
        found.release();
        Collections.sort(offsets);
        return offsets;
    }
}
