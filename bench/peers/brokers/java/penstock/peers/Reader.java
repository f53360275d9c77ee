// A broker's own client that reads, as `Read` sees it.
package penstock.peers;

interface Reader extends AutoCloseable {
    long ANSWER_TIMEOUT_S = 60;

    /** Reads the topic from its beginning until `messages` are read, and touches each body. */
    void read(long messages, Touched touched) throws Exception;
}
