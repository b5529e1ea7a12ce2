// RabbitMQ's Java client at a node: `java -cp JARS JavaPeer.java MODE PORT QUEUE`. What it sees goes to standard output,
// line by line.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.ShutdownSignalException;
import com.rabbitmq.client.impl.LongStringHelper;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

public class JavaPeer {
    static final int IN_FLIGHT = 16;
    static final long PATIENCE_S = 20;

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] data) {
        return new String(data, StandardCharsets.UTF_8);
    }

    static Connection connect(int port) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(port);
        factory.setAutomaticRecoveryEnabled(true);
        factory.setTopologyRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(200);
        return factory.newConnection("java");
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        switch (arguments[0]) {
            case "publish" -> publish(port, arguments[2]);
            case "consume" -> consume(port, arguments[2]);
            default -> everything(port);
        }
        System.exit(0);
    }

    /** Publishes 0, 1, ... until the connection breaks; says which of them are confirmed. */
    static void publish(int port, String queue) throws Exception {
        Connection connection = connect(port);
        Channel channel = connection.createChannel();
        channel.queueDeclare(queue, true, false, false, null);
        channel.confirmSelect();
        ConcurrentSkipListMap<Long, Integer> open = new ConcurrentSkipListMap<>();
        Semaphore room = new Semaphore(IN_FLIGHT);
        channel.addConfirmListener(
            (tag, multiple) -> {
                Map<Long, Integer> confirmed = multiple ? open.headMap(tag, true) : open.subMap(tag, true, tag, true);
                int count = confirmed.size();
                confirmed.values().forEach(n -> say("confirmed " + n));
                confirmed.clear();
                room.release(count);
            },
            (tag, multiple) -> {});
        CountDownLatch broken = new CountDownLatch(1);
        connection.addShutdownListener(cause -> { broken.countDown(); room.release(IN_FLIGHT); });
        AMQP.BasicProperties kept = new AMQP.BasicProperties.Builder().deliveryMode(2).build();
        for (int n = 0; broken.getCount() > 0; n++) {
            room.acquire();
            open.put(channel.getNextPublishSeqNo(), n);
            try {
                channel.basicPublish("", queue, true, kept, bytes("" + n));
            } catch (IOException | AlreadyClosedException gone) {
                break;
            }
        }
        broken.await();
    }

    /** Consumes until a message says "end"; the library connects again by itself. An acknowledgement is on disk when its
     * transaction is committed. */
    static void consume(int port, String queue) throws Exception {
        Connection connection = connect(port);
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            public void handleRecovery(Recoverable recovered) {
                say("recovered");
            }

            public void handleRecoveryStarted(Recoverable recovering) {}
        });
        Channel channel = connection.createChannel();
        channel.txSelect();
        channel.basicQos(8);
        CountDownLatch ended = new CountDownLatch(1);
        channel.basicConsume(queue, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                say("taken " + text(body) + " " + (envelope.isRedeliver() ? 1 : 0));
                try {
                    channel.basicAck(envelope.getDeliveryTag(), false);
                    channel.txCommit();
                } catch (IOException | ShutdownSignalException gone) {
                    return; // it comes again
                }
                say("done " + text(body));
                if (text(body).equals("end")) {
                    ended.countDown();
                }
            }
        });
        ended.await();
        connection.close();
    }

    static GetResponse get(Channel channel, String queue) throws Exception {
        for (int tries = 0; tries < 500; tries++) {
            GetResponse found = channel.basicGet(queue, true);
            if (found != null) {
                return found;
            }
            Thread.sleep(10);
        }
        throw new TimeoutException("nothing came to " + queue);
    }

    static void check(boolean is, String what) {
        if (!is) {
            throw new AssertionError(what);
        }
    }

    /** Uses what the library has. */
    static void everything(int port) throws Exception {
        Connection connection = connect(port);
        Channel channel = connection.createChannel();
        String own = channel.queueDeclare().getQueue();
        check(own.startsWith("amq.gen-"), "the node names queues");
        channel.exchangeDeclare("java-first", BuiltinExchangeType.TOPIC, false, true, null);
        channel.exchangeDeclare("java-second", BuiltinExchangeType.HEADERS, false, true, null);
        channel.exchangeBind("java-second", "java-first", "line.#");
        channel.queueBind(own, "java-second", "", Map.of("x-match", "any", "kind", "hot"));

        Map<String, Object> headers = new HashMap<>();
        headers.put("kind", LongStringHelper.asLongString("hot"));
        headers.put("byte", (byte) -3);
        headers.put("short", (short) -300);
        headers.put("int", 70_000);
        headers.put("long", 1L << 40);
        headers.put("float", 1.5f);
        headers.put("double", 0.1);
        headers.put("yes", true);
        headers.put("no", false);
        headers.put("price", new BigDecimal("19.99"));
        headers.put("when", new Date(1_700_000_000_000L));
        headers.put("nothing", null);
        headers.put("bytes", new byte[] {0, (byte) 255});
        headers.put("list", List.of(1, LongStringHelper.asLongString("two"), Map.of("three", 3)));
        headers.put("table", Map.of("inner", Map.of("deep", LongStringHelper.asLongString("x"))));
        AMQP.BasicProperties sent = new AMQP.BasicProperties("text/plain", "utf-8", headers, 2, 4, "c", "r", "60000", "m",
            new Date(1_700_000_000_000L), "t", "guest", "a", null);
        channel.confirmSelect();
        channel.basicPublish("java-first", "line.3.temperature", true, sent, bytes("typed"));
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        GetResponse got = get(channel, own);
        check(text(got.getBody()).equals("typed"), "body");
        Map<String, Object> back = new TreeMap<>(got.getProps().getHeaders());
        check(back.keySet().equals(headers.keySet()), "names of headers " + back.keySet());
        for (Map.Entry<String, Object> each : headers.entrySet()) {
            Object value = back.get(each.getKey());
            boolean same = each.getValue() instanceof byte[] data ? java.util.Arrays.equals(data, (byte[]) value)
                : each.getValue() instanceof Byte || each.getValue() instanceof Short
                    || each.getValue() instanceof Integer || each.getValue() instanceof Long
                ? ((Number) value).longValue() == ((Number) each.getValue()).longValue()
                : each.getValue() instanceof Float || each.getValue() instanceof Double
                ? ((Number) value).doubleValue() == ((Number) each.getValue()).doubleValue()
                : each.getValue() instanceof List || each.getValue() instanceof Map
                ? String.valueOf(value).equals(String.valueOf(each.getValue()))
                : java.util.Objects.equals(value, each.getValue());
            check(same, each.getKey() + ": sent " + each.getValue() + ", got " + value);
        }
        AMQP.BasicProperties plain = got.getProps().builder().headers(null).build();
        check(plain.equals(sent.builder().headers(null).build()), "properties " + plain);

        BlockingQueue<Integer> returned = new ArrayBlockingQueue<>(1);
        channel.addReturnListener((code, reason, exchange, key, properties, body) -> returned.add(code));
        channel.basicPublish("", "no-such-queue", true, null, bytes("back"));
        check(Integer.valueOf(312).equals(returned.poll(PATIENCE_S, TimeUnit.SECONDS)), "return");

        transactions(connection, own);
        rejects(connection, channel, own);
        errors(connection, own);

        Channel server = connection.createChannel();
        String requests = server.queueDeclare().getQueue();
        server.basicConsume(requests, true, (tag, request) ->
            server.basicPublish("", request.getProperties().getReplyTo(),
                new AMQP.BasicProperties.Builder().correlationId(request.getProperties().getCorrelationId()).build(),
                bytes("answer to " + text(request.getBody()))), tag -> {});
        RpcClient rpc = new RpcClient(new RpcClientParams().channel(connection.createChannel()).exchange("")
            .routingKey(requests).timeout((int) PATIENCE_S * 1000));
        check(rpc.stringCall("question").equals("answer to question"), "direct reply-to");

        BlockingQueue<String> cancelled = new ArrayBlockingQueue<>(1);
        channel.queueDeclare("java-gone", false, false, false, null);
        channel.basicConsume("java-gone", true, (tag, message) -> {}, cancelled::add);
        channel.queueDelete("java-gone");
        check(cancelled.poll(PATIENCE_S, TimeUnit.SECONDS) != null, "consumer cancel notification");
        check(channel.messageCount(own) == 0 && channel.consumerCount(own) == 0, "counts");
        connection.close();
        say("everything");
    }

    static void transactions(Connection connection, String own) throws Exception {
        Channel channel = connection.createChannel();
        channel.txSelect();
        channel.basicPublish("", own, null, bytes("forgotten"));
        channel.txRollback();
        channel.basicPublish("", own, null, bytes("committed"));
        channel.txCommit();
        check(text(get(channel, own).getBody()).equals("committed"), "transaction");
        check(channel.basicGet(own, true) == null, "rollback");
        channel.close();
    }

    /** Two at a time: the first is given back once, the second rejected and dead-lettered. */
    static void rejects(Connection connection, Channel confirms, String own) throws Exception {
        Map<String, Object> dead = Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", own);
        confirms.queueDeclare("java-work", true, false, false, dead);
        for (String each : List.of("a", "b", "c")) {
            confirms.basicPublish("", "java-work", null, bytes(each));
        }
        confirms.waitForConfirmsOrDie(PATIENCE_S * 1000);
        Channel channel = connection.createChannel();
        channel.basicQos(2);
        BlockingQueue<String> taken = new ArrayBlockingQueue<>(8);
        channel.basicConsume("java-work", false, (tag, message) -> {
            Envelope envelope = message.getEnvelope();
            String body = text(message.getBody());
            if (body.equals("a") && !envelope.isRedeliver()) {
                channel.basicNack(envelope.getDeliveryTag(), false, true);
            } else if (body.equals("b")) {
                channel.basicReject(envelope.getDeliveryTag(), false);
            } else {
                channel.basicAck(envelope.getDeliveryTag(), false);
            }
            taken.add(body + (envelope.isRedeliver() ? " again" : ""));
        }, tag -> {});
        TreeMap<String, Integer> seen = new TreeMap<>();
        for (int n = 0; n < 4; n++) {
            seen.merge(String.valueOf(taken.poll(PATIENCE_S, TimeUnit.SECONDS)), 1, Integer::sum);
        }
        check(seen.equals(new TreeMap<>(Map.of("a", 1, "a again", 1, "b", 1, "c", 1))), "deliveries " + seen);
        GetResponse letter = get(channel, own);
        List<?> deaths = (List<?>) letter.getProps().getHeaders().get("x-death");
        check(((Map<?, ?>) deaths.get(0)).get("reason").toString().equals("rejected"), "x-death " + deaths);
        channel.queueDelete("java-work");
        channel.close();
    }

    static void expect(Connection connection, int code, Call call) throws Exception {
        Channel channel = connection.createChannel();
        try {
            call.on(channel);
        } catch (IOException refused) {
            ShutdownSignalException signal = (ShutdownSignalException) refused.getCause();
            int got = ((AMQP.Channel.Close) signal.getReason()).getReplyCode();
            check(got == code, "expected " + code + ", got " + signal.getMessage());
            return;
        }
        throw new AssertionError("expected " + code + ", and nothing was refused");
    }

    interface Call {
        void on(Channel channel) throws IOException;
    }

    static void errors(Connection connection, String own) throws Exception {
        expect(connection, 404, channel -> channel.queueDeclarePassive("java-none"));
        expect(connection, 404, channel -> channel.exchangeDeclarePassive("java-none"));
        expect(connection, 404, channel -> channel.basicConsume("java-none", new DefaultConsumer(channel)));
        expect(connection, 405, channel -> channel.queueDeclare(own, true, false, false, null));
        expect(connection, 406, channel -> channel.exchangeDeclare("amq.direct", "fanout", true));
        expect(connection, 403, channel -> channel.exchangeDeclare("amq.mine", "fanout", true));
        expect(connection, 403, channel -> channel.queueBind(own, "", "key"));
    }
}
