// Writes one golden store with the real DefaultMessageStore, and its manifest.
//
//     MakeStore clean|crashed|ipv6 DIR   makes DIR/store and DIR/manifest.jsonl
//
// `crashed` ends the process in the middle: no file is closed, nothing more is flushed, and
// `abort` is left.
package penstock.golden;

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.store.DefaultMessageStore;

public final class MakeStore {
    private MakeStore() {}

    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0];
        Path out = Path.of(arguments[1]);
        Files.createDirectories(out);
        StoreFiles files = StoreFiles.fromArguments(new String[] {out.resolve("store").toString()}, 0);
        DefaultMessageStore store = RealStore.build(files.config());
        if (!store.load()) {
            throw new IllegalStateException("an empty directory did not load");
        }
        store.start();
        try (BufferedWriter manifest = Files.newBufferedWriter(out.resolve("manifest.jsonl"))) {
            Scenario scenario = new Scenario(new Maker(store, manifest));
            if (kind.equals("ipv6")) {
                scenario.ipv6Broker();
            } else {
                scenario.everyKind();
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        if (kind.equals("crashed")) {
            Runtime.getRuntime().halt(0);
        }
        store.shutdown();
        System.exit(0);
    }
}
