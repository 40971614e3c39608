import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Evaluates SQL92 filters with Apache's filter module.
 *
 * <p>Each line of the input has an expression and property texts, in hexadecimal UTF-8, separated by
 * blanks. Each line of the output has one letter a property text (T, F, N for null, E for an
 * exception), or an exclamation mark and the error in hexadecimal if the expression is refused.
 */
public class Filters {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, "US-ASCII");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
        out.flush();
    }

    private static String answer(String[] words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text(words[0]));
        } catch (Exception refusal) {
            byte[] message = String.valueOf(refusal.getMessage()).getBytes(StandardCharsets.UTF_8);
            return "!" + HexFormat.of().formatHex(message);
        }
        StringBuilder values = new StringBuilder();
        for (int i = 1; i < words.length; i++) {
            values.append(value(expression, MessageDecoder.string2messageProperties(text(words[i]))));
        }
        return values.toString();
    }

    private static char value(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Exception failure) {
            return 'E';
        }
    }

    private static String text(String hexadecimal) {
        return new String(HexFormat.of().parseHex(hexadecimal), StandardCharsets.UTF_8);
    }
}
