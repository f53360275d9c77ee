// Sends messages when they are due and reads them, with a broker's own client: how late each comes.
//
//     Pace CLASS key=value...      CLASS is a Pacer here, made from the order
//
// A latency is from when a message was due at the producer until the consumer had it. Both are in
// this process, so they have one clock. One that is late is sent at once: none is left out. A message
// that comes again, as it may in RocketMQ, counts when it has come first.
package penstock.peers;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

final class Pace {
    private static final long ANSWER_TIMEOUT_S = 60;

    private final Pacer pacer;
    private final long rate;
    private final Samples latencies = new Samples();
    private final AtomicReference<Throwable> failed = new AtomicReference<>();
    // when what has come was due, which no two have in common
    private final Set<Long> come = new HashSet<>();
    private long sent;

    private Pace(Pacer pacer, Map<String, String> order) {
        this.pacer = pacer;
        this.rate = Long.parseLong(order.get("rate_per_s"));
    }

    /** Sends for this long, then waits until all of it has been read; how many were sent. */
    private long run(double seconds) throws Exception {
        long count = Math.max(1, Math.round(seconds * rate));
        long began = System.nanoTime();
        for (long number = 0; number < count && failed.get() == null; number++) {
            long due = began + number * 1_000_000_000L / rate;
            for (long early = due - System.nanoTime(); early > 0; early = due - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
            pacer.send(due, error -> failed.compareAndSet(null, error));
        }
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(ANSWER_TIMEOUT_S);
        while (come() < sent + count && failed.get() == null && System.nanoTime() < until) {
            Thread.sleep(1);
        }
        if (failed.get() != null) {
            throw new IllegalStateException("a message is not stored", failed.get());
        }
        sent += count;
        if (come() != sent) {
            throw new IllegalStateException(come() + " messages were read of " + sent);
        }
        return count;
    }

    private synchronized int come() {
        return come.size();
    }

    private synchronized void heard(long due) {
        double ms = (System.nanoTime() - due) / 1e6;
        if (come.add(due)) {
            latencies.add(ms);
        }
    }

    public static void main(String[] arguments) {
        Talk.hold(arguments, Pace::measure);
    }

    private static void measure(Map<String, String> order, Talk talk) throws Exception {
        try (Pacer pacer = (Pacer) Talk.made(order)) {
            Pace pace = new Pace(pacer, order);
            pacer.hear(pace::heard);
            long warm = pace.run(Double.parseDouble(order.get("warm_s")));
            pace.latencies.forget();
            talk.awaitGo();
            long messages = pace.run(Double.parseDouble(order.get("seconds")));
            talk.stopClock();
            talk.tell(messages, warm, pacer.stored(pace.sent), pace.latencies.thinned());
        }
    }
}
