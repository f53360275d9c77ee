// A broker's own client that sends, as the load sees it.
package penstock.peers;

interface Peer extends AutoCloseable {
    /** Told once for each unit: null, or why it is not stored as was asked for. */
    interface Done {
        void done(Throwable error);
    }

    /** Sends one unit: a message, or a whole batch where the order says so. Does not wait. */
    void send(Done done) throws Exception;

    /** Sends one message and waits until it is stored. Called by many threads at once. */
    default void sendAndWait() throws Exception {
        throw new UnsupportedOperationException("nobody asks for this of " + getClass());
    }

    /** How many messages the broker holds, after `expected` have been acknowledged. */
    long stored(long expected) throws Exception;

    /** Takes away what was sent, where the broker would otherwise keep it in memory. */
    default void remove() throws Exception {
    }
}
