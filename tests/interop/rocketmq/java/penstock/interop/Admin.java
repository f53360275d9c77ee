// RocketMQ's mqadmin, one sub-command after the other in this process: a JVM for each takes seconds.
package penstock.interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
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
            forget();
            // each has a client of its own, which it shuts down
            Ending.of(() -> MQAdminStartup.main0(words.toArray(new String[0]), null));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return said.toString(StandardCharsets.UTF_8);
    }

    /** Some commands keep their client, which is shut down: one that is asked again would use it. */
    private static void forget() {
        try {
            for (Field field : MQAdminStartup.class.getDeclaredFields()) {
                if (field.getType() == List.class) {
                    field.setAccessible(true);
                    ((List<?>) field.get(null)).clear();
                }
            }
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }
}
