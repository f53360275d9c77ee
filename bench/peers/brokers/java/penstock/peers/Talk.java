// What every driver hears and says: its order, that it is ready, the word to go, and what it saw.
//
// It keeps to what bench/loads/load.py says of load processes. It knows nothing of what is done meanwhile.
package penstock.peers;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

final class Talk {
    interface Work {
        void run(Map<String, String> order, Talk talk) throws Exception;
    }

    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final PrintStream out;
    private long began;
    private long cpuBegan;
    private double seconds;
    private double cpu;

    private Talk(PrintStream out) {
        this.out = out;
    }

    /** A driver's main: its arguments are the class that is to be made, and the words of an order. */
    static void hold(String[] arguments, Work work) {
        PrintStream out = System.out;
        System.setOut(System.err); // some libraries print there
        try {
            Map<String, String> order = Arrays.stream(arguments).skip(1).map(word -> word.split("=", 2))
                .collect(Collectors.toMap(pair -> pair[0], pair -> pair[1], (a, b) -> b, TreeMap::new));
            order.put("class", arguments[0]);
            work.run(order, new Talk(out));
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0); // clients leave threads behind that wait for this or that
    }

    /** What the order names, made from the order. */
    static Object made(Map<String, String> order) throws Exception {
        return Class.forName("penstock.peers." + order.get("class"))
            .getDeclaredConstructor(Map.class).newInstance(order);
    }

    /** Says that it is ready, waits for the word to go, and starts the clock. */
    void awaitGo() throws Exception {
        out.println("{\"ready\":true}");
        out.flush();
        if (new BufferedReader(new InputStreamReader(System.in)).readLine() == null) {
            throw new IllegalStateException("whoever measures is gone");
        }
        cpuBegan = SYSTEM.getProcessCpuTime();
        began = System.nanoTime();
    }

    double passed() {
        return (System.nanoTime() - began) / 1e9;
    }

    void stopClock() {
        seconds = passed();
        cpu = (SYSTEM.getProcessCpuTime() - cpuBegan) / 1e9;
    }

    /** What was seen while the clock ran; `latencies` is JSON. */
    void tell(long messages, long warm, long stored, String latencies) {
        out.println(String.format(Locale.ROOT,
            "{\"messages\":%d,\"warm_messages\":%d,\"seconds\":%f,\"cpu_s\":%f,\"stored\":%d,"
                + "\"latencies_ms\":%s}",
            messages, warm, seconds, cpu, stored, latencies));
        out.flush();
    }
}
