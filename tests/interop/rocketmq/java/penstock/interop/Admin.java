// RocketMQ's mqadmin, one sub-command after the other in this process: a JVM for each takes seconds.
package penstock.interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

final class Admin {
    private Admin() {
    }

    /** What `mqadmin WORDS` prints, its errors too. */
    static String run(List<String> words) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(said, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        try {
            // each has a client of its own, which it shuts down
            Ending.of(() -> MQAdminStartup.main0(words.toArray(new String[0]), null));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return said.toString(StandardCharsets.UTF_8);
    }
}
