// A broker's own client that sends and reads at once, as `Pace` sees it.
package penstock.peers;

interface Pacer extends AutoCloseable {
    /** Told of each message that was read: when it was due. */
    interface Heard {
        void heard(long dueNs);
    }

    /** Begins to read. Called once, before anything is sent. */
    void hear(Heard heard) throws Exception;

    /** Sends a message that says when it was due. Does not wait. */
    void send(long dueNs, Peer.Done done) throws Exception;

    /** How many messages the broker holds, after `expected` have been acknowledged. */
    long stored(long expected) throws Exception;
}
