// Shuts clients and servers down without the seconds that they sleep in it.
//
// The thread of RocketMQ that tells of connections looks every 3 s whether it is to end, and each
// client and server waits for its own. An interrupt has it look at once; it ends only if it was told to.
package penstock.interop;

final class Ending {
    private static final int STEP_MS = 10;
    private static final String SLEEPER = "NettyEventExecutor";

    private Ending() {
    }

    static void of(Runnable shutdown) {
        Thread work = new Thread(shutdown, "ending");
        work.start();
        try {
            while (work.isAlive()) {
                work.join(STEP_MS);
                for (Thread each : Thread.getAllStackTraces().keySet()) {
                    if (each.getName().equals(SLEEPER)
                        && each.getState() == Thread.State.TIMED_WAITING) {
                        each.interrupt();
                    }
                }
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
