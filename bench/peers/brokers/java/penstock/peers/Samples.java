// Latencies in ms, from many threads; at most MAX_SAMPLES of them leave the process.
package penstock.peers;

import java.util.Arrays;
import java.util.Locale;

final class Samples {
    private static final int MAX_SAMPLES = 4096;

    private double[] all = new double[1 << 16];
    private int count;

    synchronized void add(double ms) {
        if (count == all.length) {
            all = Arrays.copyOf(all, 2 * count);
        }
        all[count++] = ms;
    }

    synchronized void forget() {
        count = 0;
    }

    /** At most MAX_SAMPLES of them as JSON, evenly spaced in their order of size. */
    synchronized String thinned() {
        double[] ordered = Arrays.copyOf(all, count);
        Arrays.sort(ordered);
        int step = Math.max(1, (count + MAX_SAMPLES - 1) / MAX_SAMPLES);
        StringBuilder text = new StringBuilder("[");
        for (int at = step / 2; at < count; at += step) {
            text.append(at == step / 2 ? "" : ",").append(String.format(Locale.ROOT, "%.4f", ordered[at]));
        }
        return text.append("]").toString();
    }
}
