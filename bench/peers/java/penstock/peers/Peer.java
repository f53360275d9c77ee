// A broker's own client, as the load sees it.
package penstock.peers;

interface Peer extends AutoCloseable {
    /** Told once for each unit: null, or why it is not stored as was asked for. */
    interface Done {
        void done(Throwable error);
    }

    /** Sends one unit: a message, or a whole batch where the order says so. Does not wait. */
    void send(Done done) throws Exception;

    /** How many messages the broker holds, after `expected` have been acknowledged. */
    long stored(long expected) throws Exception;
}
