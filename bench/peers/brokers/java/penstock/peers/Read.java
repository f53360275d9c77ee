// Reads what a topic holds with a broker's own client, from its beginning, again and again.
//
//     Read CLASS key=value...      CLASS is a Reader here, made from the order
//
// Every pass must find as many messages as were sent, and their bodies: see Touched.
package penstock.peers;

import java.util.Map;

final class Read {
    public static void main(String[] arguments) {
        Talk.hold(arguments, Read::measure);
    }

    private static void measure(Map<String, String> order, Talk talk) throws Exception {
        try (Reader reader = (Reader) Talk.made(order)) {
            long until = System.nanoTime() + (long) (Double.parseDouble(order.get("warm_s")) * 1e9);
            while (System.nanoTime() < until) {
                pass(reader, order);
            }
            double seconds = Double.parseDouble(order.get("seconds"));
            long messages = 0;
            talk.awaitGo();
            do {
                messages += pass(reader, order);
            } while (talk.passed() < seconds);
            talk.stopClock();
            talk.tell(messages, 0, -1, "[]");
        }
    }

    private static long pass(Reader reader, Map<String, String> order) throws Exception {
        long messages = Long.parseLong(order.get("messages"));
        int size = Integer.parseInt(order.get("size"));
        Touched touched = new Touched();
        reader.read(messages, touched);
        long sum = messages * (size + (size - 1 & 255));
        if (touched.messages() != messages || touched.sum() != sum) {
            throw new IllegalStateException("read " + touched.messages() + " messages of " + messages
                + ", whose bodies come to " + touched.sum() + " and not " + sum);
        }
        return messages;
    }
}
