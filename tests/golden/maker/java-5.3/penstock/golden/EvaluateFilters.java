package penstock.golden;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * What RocketMQ makes of SQL92 filters. Lines of standard input are [filter, properties, ...]; each
 * is printed with its outcome in third place: true, false, null, error (the broker then sends
 * nothing) or refused (by the parser).
 */
public final class EvaluateFilters {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONArray given = JSON.parseArray(line);
            JSONArray made = new JSONArray();
            made.add(given.get(0));
            made.add(given.get(1));
            made.add(outcome(given.getString(0), given.getJSONObject(1)));
            out.println(made.toJSONString());
        }
    }

    private static String outcome(String filter, JSONObject properties) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(filter);
        } catch (Throwable refused) {
            return "refused";
        }
        try {
            return String.valueOf(compiled.evaluate(new Properties(properties)));
        } catch (Throwable failed) {
            return "error";
        }
    }

    /** A message's properties, as the broker's own context has them. */
    private record Properties(JSONObject found) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return found.getString(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return found;
        }
    }
}
