import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runner of several mqadmin commands in one process, with the classes and options of `mqadmin` itself.
 *
 * A line of stdin has a time limit in milliseconds and the words of one command, separated by tabs; the command is
 * interrupted at the limit. A line of stdout has the output of the command in base64. The command `clients` (name
 * server, topic, consumer group, producer group) starts a consumer and a producer that stay connected; `exporter` and
 * `dashboard` make the calls of these tools, with a client of version 5.
 */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] unused) throws Exception {
        PrintStream out = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            String[] words = Arrays.copyOfRange(parts, 1, parts.length);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream sink = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(sink);
            System.setErr(sink);
            Thread thread = new Thread(() -> run(words), words[0]);
            thread.start();
            join(thread, Long.parseLong(parts[0]));
            if (thread.isAlive()) {
                thread.interrupt();
                join(thread, 5_000);
            }
            out.println(Base64.getEncoder().encodeToString(printed.toByteArray()));
            out.flush();
        }
        Runtime.getRuntime().halt(0); // the clients, and commands without an end, have threads
    }

    /** Wait for a command to end; its client's last wait of 3 s, for events of connections, is cut short. */
    private static void join(Thread command, long limitMs) throws InterruptedException {
        long untilNs = System.nanoTime() + limitMs * 1_000_000;
        for (command.join(20); command.isAlive() && System.nanoTime() < untilNs; command.join(20)) {
            boolean ending = Arrays.stream(command.getStackTrace())
                .anyMatch(frame -> frame.getClassName().endsWith(".ServiceThread"));
            if (ending) {
                Thread.getAllStackTraces().keySet().stream()
                    .filter(thread -> thread.getName().contains("NettyEventExecutor")).forEach(Thread::interrupt);
            }
        }
    }

    private static void run(String[] words) {
        try {
            switch (words[0]) {
                case "clients":
                    startClients(words[1], words[2], words[3], words[4]);
                    break;
                case "exporter":
                case "dashboard":
                    Class.forName("ToolCalls").getDeclaredMethod("run", String[].class).invoke(null, (Object) words);
                    break;
                case "help":
                    MQAdminStartup.main0(new String[0], null);
                    break;
                default:
                    MQAdminStartup.main0(words, null);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    private static void startClients(String namesrv, String topic, String group, String producers) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(producers);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer");
        producer.setHeartbeatBrokerInterval(500);
        producer.start();
        for (int i = 0; i < 8; i++) {
            producer.send(new Message(topic, "TagA", "key-" + i, "a message".getBytes(StandardCharsets.UTF_8)));
        }
    }
}
