import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Commands of a client program: one command from the arguments, or a session from stdin.
 *
 * A line of a session is: id TAB command TAB --option TAB value ... Each command runs in its own thread, and its
 * events have its id; the last one is "done" or "failed". `stop --target id` stops a running consumer.
 */
final class Session {
    private static final Map<String, Args> RUNNING = new ConcurrentHashMap<>();

    private Session() {
    }

    /** Runs one command. */
    interface Commands {
        void run(Args args, Events events) throws Exception;
    }

    static void main(String[] words, Commands commands) throws Exception {
        if (words.length == 0) {
            System.err.println("usage: session | COMMAND --option value ...");
            System.exit(2);
        }
        if (words[0].equals("session")) {
            session(commands);
            System.exit(0);
        }
        System.exit(run(new Args("0", words), commands) ? 0 : 1);
    }

    private static void session(Commands commands) throws Exception {
        List<Thread> threads = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            Args args = new Args(parts[0], Arrays.copyOfRange(parts, 1, parts.length));
            RUNNING.put(args.id, args);
            Thread thread = new Thread(() -> run(args, commands), "command-" + args.id);
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

    private static boolean run(Args args, Commands commands) {
        Events events = new Events(args.id);
        try {
            if (args.command.equals("stop")) {
                stop(args);
            } else {
                commands.run(args, events);
            }
            events.print("done");
            return true;
        } catch (Throwable error) {
            events.failed(error);
            return false;
        } finally {
            RUNNING.remove(args.id);
        }
    }

    private static void stop(Args args) {
        Args target = RUNNING.get(args.text("target"));
        if (target != null) {
            target.stop();
        }
    }
}
