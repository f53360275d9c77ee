// The official client, told what to do by lines of JSON on stdin; one line of JSON answers each.
//
//     {"op":"open","name_server":"127.0.0.1:9876","broker":"interop","offsets":DIRECTORY}
//     {"op":"create","topic":"orders","queues":4,"broker":"interop"}
//     {"op":"brokers","topic":"orders"}                  those that have it
//     {"op":"kinds","topic":"orders"}                    see Kinds
//     {"op":"trace","topic":"orders"}                    see Kinds
//     {"op":"spread","topic":"orders","count":80}        see Kinds
//     {"op":"send","messages":FILE,"receipts":FILE}      see Sending
//     {"op":"transact","messages":FILE,"receipts":FILE}  see Sending
//     {"op":"answer_checks","topic":"orders","until":10,"timeout_ms":60000}      see Sending
//     {"op":"send_back","topic":"orders","queue":0,"offsets":[0,1],"group":"billing","level":1}
//     {"op":"offsets","queues":[["orders",0]]}           [[topic, queue, first, next], ...]
//     {"op":"pull","queues":[["orders",0]],"out":FILE}   see Reading
//     {"op":"view","ids":FILE,"out":FILE}                see Reading
//     {"op":"query","queries":FILE,"out":FILE}           see Reading
//     {"op":"consume","group":"billing","topics":{"orders":"*"},"until":100,"idle_ms":20000,
//      "settle_ms":0,"level":1,"orderly":false,"sql":false,"broadcasting":false,"assigned":false,
//      "max_reconsume_times":16,"out":FILE}           see Groups
//     {"op":"strategies","cases":FILE,"out":FILE}        see Groups; needs no broker
//     {"op":"committed","group":"billing","topic":"orders"}  {queue: [offset, max], ...}
//     {"op":"mqadmin","words":["topicList"]}  what it prints; see Admin
//     {"op":"counts","topic":"orders","group":"billing","cluster":"interop"}   see Tools
//     {"op":"tools","topic":"orders","group":"billing","cluster":"interop","idle":"old","made":"new",
//      "key":"k1"}                                        see Tools
//     {"op":"request","topic":"questions"}               see Asking
//     {"op":"assigned","group":"billing","topic":"orders","from":[[0,3],[1,0]],"until":10,
//      "at_ms":1700000000000}                             see Asking
//     {"op":"spaced","namespace":"one","topic":"orders","group":"billing"}     see Spaces
//     {"op":"subscribed","group":"billing","topic":"orders","until":10}        see Asking
//     {"op":"close"}
//
// The end of stdin ends the process at once.
package penstock.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.common.TopicConfig;

final class Client {
    private static final int READ_AND_WRITE = 6;
    private static int opened;

    private Sending sending;
    private Reading reading;
    private Groups groups;
    private Asking asking;
    private Kinds kinds;
    private Spaces spaces;
    private Tools tools;
    private String broker;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Client client = new Client();
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(client.answer(JSON.parseObject(line)));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(JSONObject order) {
        try {
            return JSON.toJSONString(Map.of("answer", obey(order)));
        } catch (Throwable error) {
            StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text));
            return JSON.toJSONString(Map.of("error", text.toString()));
        }
    }

    private Object obey(JSONObject order) throws Exception {
        String op = order.getString("op");
        switch (op) {
            case "open":
                if (order.containsKey("offsets")) {
                    // where consumers that broadcast keep theirs; the first one counts
                    System.setProperty(
                        "rocketmq.client.localOffsetStoreDir", order.getString("offsets"));
                }
                open(order.getString("name_server"), order.getString("broker"));
                return true;
            case "create":
                create(order);
                return true;
            case "brokers":
                return reading.brokers(order.getString("topic"));
            case "kinds":
                return kinds.send(order.getString("topic"));
            case "trace":
                return kinds.trace(order.getString("topic"));
            case "spread":
                return kinds.spread(order.getString("topic"), order.getIntValue("count"));
            case "send":
                return sending.send(order.getString("messages"), order.getString("receipts"));
            case "transact":
                return sending.transact(order.getString("messages"), order.getString("receipts"));
            case "answer_checks":
                return sending.answerChecks(
                    order.getString("topic"),
                    order.getIntValue("until"),
                    order.getLongValue("timeout_ms"));
            case "send_back":
                return reading.sendBack(order);
            case "offsets":
                return reading.offsets(order.getJSONArray("queues"));
            case "pull":
                return reading.pull(order.getJSONArray("queues"), order.getString("out"));
            case "view":
                return reading.view(order.getString("ids"), order.getString("out"));
            case "query":
                return reading.query(order.getString("queries"), order.getString("out"));
            case "consume":
                return groups.consume(order);
            case "strategies":
                return Groups.strategies(order.getString("cases"), order.getString("out"));
            case "committed":
                return reading.committed(order.getString("group"), order.getString("topic"));
            case "mqadmin":
                return Admin.run(order.getJSONArray("words").toJavaList(String.class));
            case "counts":
                return tools.counts(order);
            case "tools":
                return tools.all(order);
            case "request":
                return asking.request(order.getString("topic"));
            case "assigned":
                return asking.assigned(order);
            case "spaced":
                return spaces.consume(
                    order.getString("namespace"),
                    order.getString("topic"),
                    order.getString("group"));
            case "subscribed":
                return asking.subscribed(order);
            case "close":
                sending.close();
                reading.close();
                kinds.close();
                tools.close();
                return true;
            default:
                throw new IllegalArgumentException("no such order: " + op);
        }
    }

    private void open(String nameServer, String broker) throws Exception {
        // another name each time: an instance keeps routes and connections of brokers that are gone
        String instance = "interop-" + opened++;
        sending = new Sending(nameServer, broker, instance);
        reading = new Reading(nameServer, broker, instance);
        groups = new Groups(nameServer, instance);
        asking = new Asking(nameServer, broker, instance);
        kinds = new Kinds(nameServer, instance);
        spaces = new Spaces(nameServer, instance);
        tools = new Tools(nameServer, broker, instance);
        this.broker = broker;
    }

    private void create(JSONObject order) throws Exception {
        int queues = order.getIntValue("queues");
        reading.createTopic(
            order.containsKey("broker") ? order.getString("broker") : broker,
            new TopicConfig(order.getString("topic"), queues, queues, READ_AND_WRITE));
    }
}
