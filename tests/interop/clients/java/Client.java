import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Drives Apache's Java client from a command line and prints one JSON line per event.
 *
 *   Client produce --namesrv 127.0.0.1:9876 --topic T --n 10 --level 1      one command
 *   Client session                                                         commands from stdin
 *
 * In a session each line is: id TAB command TAB --option TAB value ... A command runs in a thread of its own
 * and its events carry its id; the last one is "done" or "failed". `stop --target id` ends a running consumer.
 */
public final class Client {
    private static final Map<String, Args> RUNNING = new ConcurrentHashMap<>();

    private Client() {
    }

    public static void main(String[] words) throws Exception {
        if (words.length == 0) {
            System.err.println("usage: Client session | Client COMMAND --option value ...");
            System.exit(2);
        }
        if (words[0].equals("session")) {
            session();
            System.exit(0);
        }
        System.exit(run(new Args("0", words)) ? 0 : 1);
    }

    private static void session() throws Exception {
        List<Thread> threads = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            String[] words = java.util.Arrays.copyOfRange(parts, 1, parts.length);
            Args args = new Args(parts[0], words);
            RUNNING.put(args.id, args);
            Thread thread = new Thread(() -> run(args), "command-" + args.id);
            threads.add(thread);
            thread.start();
        }
        for (Args args : RUNNING.values()) {
            args.stop();
        }
        for (Thread thread : threads) {
            thread.join(10_000);
        }
    }

    private static boolean run(Args args) {
        Events events = new Events(args.id);
        try {
            dispatch(args, events);
            events.print("done");
            return true;
        } catch (Throwable error) {
            events.failed(error);
            return false;
        } finally {
            RUNNING.remove(args.id);
        }
    }

    private static void dispatch(Args args, Events events) throws Exception {
        switch (args.command) {
            case "produce": Produce.run(args, events); break;
            case "transaction": Transaction.run(args, events); break;
            case "push-consume": PushConsume.run(args, events); break;
            case "pull": Pull.run(args, events); break;
            case "lite-pull": Pull.runLite(args, events); break;
            case "query-key": case "view": case "search-offset": case "create-topic":
                Query.run(args, events);
                break;
            case "timer": case "recall": newerOnly(args, events); break;
            case "stop": stop(args); break;
            default: throw new IllegalArgumentException("no such command: " + args.command);
        }
    }

    /** Timer is compiled only against a client that knows timers, so it is named here by text. */
    private static void newerOnly(Args args, Events events) throws Exception {
        try {
            Class.forName("Timer").getMethod("run", Args.class, Events.class).invoke(null, args, events);
        } catch (ClassNotFoundException missing) {
            throw new UnsupportedOperationException("this client version has no timers");
        } catch (java.lang.reflect.InvocationTargetException wrapped) {
            throw wrapped.getCause() instanceof Exception ? (Exception) wrapped.getCause() : wrapped;
        }
    }

    private static void stop(Args args) {
        Args target = RUNNING.get(args.text("target"));
        if (target != null) {
            target.stop();
        }
    }
}
