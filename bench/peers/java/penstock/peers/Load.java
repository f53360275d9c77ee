// Sends to a broker with its own client: at full rate, with a bounded number of messages unanswered.
//
//     Load CLASS key=value...      CLASS is a Peer here, made from the order
//
// It speaks as bench/load.py does: warms up, prints a line, waits for one, measures, prints JSON.
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
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;

final class Load {
    // a latency of each so many messages is kept, and of them so many leave the process
    private static final int SAMPLE_EVERY = 16;
    private static final int MAX_SAMPLES = 4096;
    private static final long ANSWER_TIMEOUT_S = 60;

    private final Peer peer;
    private final int batch;
    private final int room;
    private final Semaphore free;
    private final AtomicReference<Throwable> failed = new AtomicReference<>();
    private double[] latencies = new double[1 << 16];
    private int samples;
    private long sent;

    private Load(Peer peer, int batch, int inFlight) {
        this.peer = peer;
        this.batch = batch;
        this.room = Math.max(1, inFlight / batch);
        this.free = new Semaphore(room);
    }

    /** Sends for so long, then waits for all answers. */
    private void run(double seconds) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        int every = Math.max(1, SAMPLE_EVERY / batch);
        long units = 0;
        while (System.nanoTime() < until && failed.get() == null) {
            take(1);
            long since = ++units % every == 0 ? System.nanoTime() : 0;
            peer.send(error -> done(error, since));
        }
        take(room);
        free.release(room);
        if (failed.get() != null) {
            throw new IllegalStateException("a message is not stored", failed.get());
        }
        sent += units * batch;
    }

    private void take(int permits) throws InterruptedException {
        if (!free.tryAcquire(permits, ANSWER_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not answered within " + ANSWER_TIMEOUT_S + " s", failed.get());
        }
    }

    private void done(Throwable error, long since) {
        if (error != null) {
            failed.compareAndSet(null, error);
        } else if (since != 0) {
            sample((System.nanoTime() - since) / 1e6);
        }
        free.release();
    }

    private synchronized void sample(double ms) {
        if (samples == latencies.length) {
            latencies = Arrays.copyOf(latencies, 2 * samples);
        }
        latencies[samples++] = ms;
    }

    /** At most MAX_SAMPLES of the latencies, evenly spaced in their order of size. */
    private synchronized String thinned() {
        double[] ordered = Arrays.copyOf(latencies, samples);
        Arrays.sort(ordered);
        int step = Math.max(1, (samples + MAX_SAMPLES - 1) / MAX_SAMPLES);
        StringBuilder text = new StringBuilder("[");
        for (int at = step / 2; at < samples; at += step) {
            text.append(at == step / 2 ? "" : ",").append(String.format(Locale.ROOT, "%.4f", ordered[at]));
        }
        return text.append("]").toString();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // some libraries print there
        try {
            measure(arguments, out);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0); // clients leave threads behind that wait for this or that
    }

    private static void measure(String[] arguments, PrintStream out) throws Exception {
        Map<String, String> order = Arrays.stream(arguments).skip(1).map(word -> word.split("=", 2))
            .collect(Collectors.toMap(pair -> pair[0], pair -> pair[1], (a, b) -> b, TreeMap::new));
        try (Peer peer = (Peer) Class.forName("penstock.peers." + arguments[0])
            .getDeclaredConstructor(Map.class).newInstance(order)) {
            int batch = Integer.parseInt(order.get("batch"));
            Load load = new Load(peer, batch, Integer.parseInt(order.get("in_flight")));
            load.run(Double.parseDouble(order.get("warm_s")));
            long warm = load.sent;
            load.samples = 0;
            out.println("{\"ready\":true}");
            out.flush();
            if (new BufferedReader(new InputStreamReader(System.in)).readLine() == null) {
                throw new IllegalStateException("whoever measures is gone");
            }
            OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            long cpuBegan = system.getProcessCpuTime();
            long began = System.nanoTime();
            load.run(Double.parseDouble(order.get("seconds")));
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpu = (system.getProcessCpuTime() - cpuBegan) / 1e9;
            out.println(String.format(Locale.ROOT,
                "{\"messages\":%d,\"warm_messages\":%d,\"seconds\":%f,\"cpu_s\":%f,\"stored\":%d,"
                    + "\"latencies_ms\":%s}",
                load.sent - warm, warm, seconds, cpu, peer.stored(load.sent), load.thinned()));
            out.flush();
        }
    }

    /** The body that all messages have. */
    static byte[] body(Map<String, String> order) {
        byte[] body = new byte[Integer.parseInt(order.get("size"))];
        for (int at = 0; at < body.length; at++) {
            body[at] = (byte) at;
        }
        return body;
    }
}
