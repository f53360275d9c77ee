// Sends to a broker with its own client: at full rate, with a bounded number of messages unanswered.
//
//     Load CLASS key=value...      CLASS is a Peer here, made from the order
//
// With `threads` each thread sends one message after the other and waits for its answer. With
// `messages` that number is sent before the clock starts, and they stay.
package penstock.peers;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

final class Load {
    // the latency of one message of SAMPLE_EVERY is kept
    private static final int SAMPLE_EVERY = 16;
    private static final long ANSWER_TIMEOUT_S = 60;

    private final Peer peer;
    private final int batch;
    private final int room;
    private final int threads;
    private final Semaphore free;
    private final AtomicReference<Throwable> failed = new AtomicReference<>();
    private final Samples latencies = new Samples();
    private long sent;

    private Load(Peer peer, Map<String, String> order) {
        this.peer = peer;
        this.batch = Integer.parseInt(order.get("batch"));
        this.room = Math.max(1, Integer.parseInt(order.get("in_flight")) / batch);
        this.threads = Integer.parseInt(order.get("threads"));
        this.free = new Semaphore(room);
    }

    /** Sends for this long and this many messages at least, then waits for all answers. */
    private void run(double seconds, long atLeast) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        long units = threads == 0 ? sendAll(until, atLeast) : sendInThreads(until);
        if (failed.get() != null) {
            throw new IllegalStateException("a message is not stored", failed.get());
        }
        sent += units * batch;
    }

    private long sendAll(long until, long atLeast) throws Exception {
        int every = Math.max(1, SAMPLE_EVERY / batch);
        long units = 0;
        while ((System.nanoTime() < until || units * batch < atLeast) && failed.get() == null) {
            take(1);
            long since = ++units % every == 0 ? System.nanoTime() : 0;
            peer.send(error -> done(error, since));
        }
        take(room);
        free.release(room);
        return units;
    }

    private long sendInThreads(long until) throws InterruptedException {
        AtomicLong units = new AtomicLong();
        List<Thread> started = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            Thread thread = new Thread(() -> units.addAndGet(sendInTurn(until)));
            thread.setDaemon(true);
            thread.start();
            started.add(thread);
        }
        for (Thread thread : started) {
            thread.join(TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime()) + ANSWER_TIMEOUT_S * 1000);
            if (thread.isAlive()) {
                throw new IllegalStateException("not answered within " + ANSWER_TIMEOUT_S + " s");
            }
        }
        return units.get();
    }

    private long sendInTurn(long until) {
        long units = 0;
        try {
            while (System.nanoTime() < until && failed.get() == null) {
                long since = System.nanoTime();
                peer.sendAndWait();
                if (units++ % SAMPLE_EVERY == 0) {
                    latencies.add((System.nanoTime() - since) / 1e6);
                }
            }
        } catch (Exception error) {
            failed.compareAndSet(null, error);
        }
        return units;
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
            latencies.add((System.nanoTime() - since) / 1e6);
        }
        free.release();
    }

    public static void main(String[] arguments) {
        Talk.hold(arguments, Load::measure);
    }

    private static void measure(Map<String, String> order, Talk talk) throws Exception {
        try (Peer peer = (Peer) Talk.made(order)) {
            Load load = new Load(peer, order);
            long stay = Long.parseLong(order.get("messages"));
            load.run(Double.parseDouble(order.get("warm_s")), stay);
            long warm = load.sent;
            load.latencies.forget();
            talk.awaitGo();
            load.run(Double.parseDouble(order.get("seconds")), 0);
            talk.stopClock();
            talk.tell(load.sent - warm, warm, peer.stored(load.sent), load.latencies.thinned());
            if (stay == 0) {
                peer.remove();
            }
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
