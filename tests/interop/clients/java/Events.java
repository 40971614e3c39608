import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** Printer of events as JSON, one object per line. */
final class Events {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private final String id;

    Events(String id) {
        this.id = id;
    }

    /** Print an event: name, then alternating keys and values. */
    void print(String event, Object... pairs) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            fields.put((String) pairs[i], pairs[i + 1]);
        }
        print(event, fields);
    }

    void print(String event, Map<String, Object> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", id);
        line.put("event", event);
        line.put("at", System.currentTimeMillis());
        line.putAll(fields);
        String text = json(line);
        synchronized (OUT) {
            OUT.println(text);
            OUT.flush();
        }
    }

    void failed(Throwable error) {
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        print("failed", "error", error.getClass().getSimpleName(), "text", String.valueOf(error.getMessage()),
            "trace", trace.toString());
    }

    private static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (!(value instanceof Map)) {
            return quoted(String.valueOf(value));
        }
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
            text.append(text.length() > 1 ? "," : "").append(quoted(String.valueOf(entry.getKey())));
            text.append(':').append(json(entry.getValue()));
        }
        return text.append('}').toString();
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
