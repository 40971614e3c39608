/**
 * Drives Apache's Java client from a command line and prints one JSON line per event.
 *
 *   Client produce --namesrv 127.0.0.1:9876 --topic T --n 10 --level 1      one command
 *   Client session                                                         commands from stdin
 */
public final class Client {
    private Client() {
    }

    public static void main(String[] words) throws Exception {
        Session.main(words, Client::dispatch);
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
            default: throw new IllegalArgumentException("no such command: " + args.command);
        }
    }

    /** Loaded by name, since Timer is compiled only against clients with timers. */
    private static void newerOnly(Args args, Events events) throws Exception {
        try {
            Class.forName("Timer").getMethod("run", Args.class, Events.class).invoke(null, args, events);
        } catch (ClassNotFoundException missing) {
            throw new UnsupportedOperationException("this client version has no timers");
        } catch (java.lang.reflect.InvocationTargetException wrapped) {
            throw wrapped.getCause() instanceof Exception ? (Exception) wrapped.getCause() : wrapped;
        }
    }
}
