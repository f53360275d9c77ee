// Official clients that go on whatever happens to their broker, and say what they have seen.
//
//     Crew NAME_SERVER TOPIC PRODUCERS CONSUMERS GAP_MS
//
// Each producer sends one message after the other, waiting for each, GAP_MS after the last one's
// answer; the consumers are one group. Each has connections of its own. A line for each thing seen:
//
//     acked NAME BODY BEGAN NOW     sent at BEGAN, and answered
//     failed NAME BODY BEGAN NOW    given up by the client itself, after its own retries
//     got NAME BODY BEGAN NOW       handled; BEGAN is when its producer sent it
//
// Times are those of this machine in ns, the same clock in all programs. The line "rest" on stdin
// ends the sending, and "resting" says that it has; the end of stdin ends the process at once.
package penstock.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class Crew {
    private static final String BEGAN = "began";
    private static final int HANDLERS = 2;

    private final PrintStream out;
    private final String nameServer;
    private final String topic;
    private volatile boolean resting;

    private Crew(PrintStream out, String nameServer, String topic) {
        this.out = out;
        this.nameServer = nameServer;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true);
        System.setOut(System.err); // the clients print there
        Crew crew = new Crew(out, arguments[0], arguments[1]);
        List<Thread> sending = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(arguments[3]); n++) {
            crew.consume("consumer-" + n);
        }
        int gapMs = Integer.parseInt(arguments[4]);
        for (int n = 0; n < Integer.parseInt(arguments[2]); n++) {
            String name = "producer-" + n;
            DefaultMQProducer producer = crew.producer(name);
            Thread thread = new Thread(() -> crew.send(producer, name, gapMs), name);
            thread.setDaemon(true);
            thread.start();
            sending.add(thread);
        }
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (in.readLine() != null) {
            crew.resting = true;
            for (Thread thread : sending) {
                thread.join();
            }
            crew.out.println("resting");
            while (in.readLine() != null) {
                continue;
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private DefaultMQProducer producer(String name) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("crew-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(name);
        producer.start();
        return producer;
    }

    private void send(DefaultMQProducer producer, String name, int gapMs) {
        for (long number = 0; !resting; number++) {
            String body = name + "/" + number;
            long began = System.nanoTime();
            Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            message.putUserProperty(BEGAN, Long.toString(began));
            String what;
            try {
                what = producer.send(message).getSendStatus() == SendStatus.SEND_OK
                    ? "acked" : "failed";
            } catch (Exception error) { // the broker is away: that is what this is for
                what = "failed";
            }
            say(what, name, body, began);
            try {
                Thread.sleep(gapMs);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private void consume(String name) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("crew");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(HANDLERS);
        consumer.setConsumeThreadMax(HANDLERS);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                say("got", name, body, Long.parseLong(message.getUserProperty(BEGAN)));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private void say(String what, String name, String body, long began) {
        out.println(what + " " + name + " " + body + " " + began + " " + System.nanoTime());
    }
}
