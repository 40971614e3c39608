import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Command with its options (`command --option value ...`) and its stop request. */
final class Args {
    final String id;
    final String command;
    private final Map<String, String> options = new HashMap<>();
    private final CountDownLatch stopped = new CountDownLatch(1);

    Args(String id, String[] words) {
        this.id = id;
        this.command = words[0];
        for (int i = 1; i < words.length; i += 2) {
            if (!words[i].startsWith("--") || i + 1 == words.length) {
                throw new IllegalArgumentException("expected --option value, found " + words[i]);
            }
            options.put(words[i].substring(2), words[i + 1]);
        }
    }

    boolean has(String name) {
        return options.containsKey(name);
    }

    String text(String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException(command + " needs --" + name);
        }
        return value;
    }

    String text(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, Integer.toString(otherwise)));
    }

    long time(String name, long otherwise) {
        return Long.parseLong(options.getOrDefault(name, Long.toString(otherwise)));
    }

    void stop() {
        stopped.countDown();
    }

    /** Wait for a stop request; return whether there was one. */
    boolean stoppedWithin(long ms) throws InterruptedException {
        return stopped.await(ms, TimeUnit.MILLISECONDS);
    }
}
