// What bodies were looked at: of each the length and the last byte, added up. For one thread.
package penstock.peers;

final class Touched {
    private long messages;
    private long sum;

    void body(byte[] body) {
        messages++;
        sum += body.length + (body[body.length - 1] & 255);
    }

    /** What another thread looked at. */
    void add(Touched other) {
        messages += other.messages;
        sum += other.sum;
    }

    long messages() {
        return messages;
    }

    long sum() {
        return sum;
    }
}
