// A real name server and a real broker in this process, with their own start-up classes.
//
//     Servers NAMESERVER.properties BROKER.properties
//
// Prints {"ready":true} once the broker serves. The line "stop" on stdin ends both in order and
// prints {"stopped":true}; the end of stdin, when whoever started this is gone, ends the process at
// once. A broker that refuses its store ends the process with another code than 0.
package penstock.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.DefaultMessageStore;
import penstock.golden.RealStore;

final class Servers {
    private final NamesrvController nameServer;
    private final BrokerController broker;

    private Servers(NamesrvController nameServer, BrokerController broker) {
        this.nameServer = nameServer;
        this.broker = broker;
    }

    /** Starts both; ends the process with an error when one of them does not start. */
    static Servers start(String nameServerFile, String brokerFile) throws Exception {
        NamesrvController nameServer = NamesrvStartup.main0(new String[] {"-c", nameServerFile});
        BrokerController broker = BrokerStartup.createBrokerController(new String[] {"-c", brokerFile});
        // replication would listen on every address of the machine
        RealStore.withoutReplication((DefaultMessageStore) broker.getMessageStore());
        BrokerStartup.start(broker);
        // its own first try comes too early as a rule, and the second 10 s later
        String here = ":" + nameServer.getNettyServerConfig().getListenPort();
        while (broker.getBrokerConfig().getNamesrvAddr().endsWith(here)
            && nameServer.getRouteInfoManager().getAllClusterInfo().getBrokerAddrTable().isEmpty()) {
            broker.registerBrokerAll(true, false, true);
            Thread.sleep(50);
        }
        return new Servers(nameServer, broker);
    }

    DefaultMessageStore store() {
        return (DefaultMessageStore) broker.getMessageStore();
    }

    void stop() {
        broker.shutdown();
        nameServer.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // both servers print there
        Servers servers = start(arguments[0], arguments[1]);
        out.println("{\"ready\":true}");
        out.flush();
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (in.readLine() == null) {
            Runtime.getRuntime().halt(3);
        }
        Ending.of(servers::stop);
        out.println("{\"stopped\":true}");
        out.flush();
        Runtime.getRuntime().halt(0); // both have hooks that would shut down a second time
    }
}
