package vespiary;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageEOFException;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * A client that sends, receives and tells what it received, for tests in another language: test_jms_conversion.py.
 *
 * <p>A line of its input is a command, its words are apart by tabs and URL-encoded; each is answered by such a line.
 * What a message has are three words each: name, type and value. Names are {@code JMSPriority}, {@code property.NAME},
 * {@code body.NAME} of a map, and {@code body}.
 */
public final class Speaker {
    private static final long WAIT_MS = 20_000;

    private final Session session;
    private final Map<String, MessageConsumer> consumers = new HashMap<>();
    private Message last;

    private Speaker(Session session) {
        this.session = session;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Connection connection = new JmsConnectionFactory(arguments[0]).createConnection()) {
            connection.start();
            Speaker speaker = new Speaker(connection.createSession());
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                List<String> words = new ArrayList<>();
                for (String word : line.split("\t", -1)) {
                    words.add(URLDecoder.decode(word, StandardCharsets.UTF_8));
                }
                List<String> answer;
                try {
                    answer = speaker.obey(words);
                } catch (Exception failure) {
                    answer = List.of("failed", failure + " by " + failure.getCause());
                }
                List<String> encoded = new ArrayList<>();
                for (String word : answer) {
                    encoded.add(URLEncoder.encode(word, StandardCharsets.UTF_8));
                }
                out.println(String.join("\t", encoded));
            }
        }
    }

    private List<String> obey(List<String> words) throws JMSException, ReflectiveOperationException {
        String command = words.get(0);
        String name = words.get(1);
        switch (command) {
            case "listen" -> consumers.put(name, session.createConsumer(destination(words.get(2))));
            case "take" -> {
                last = consumers.get(name).receive(WAIT_MS);
                return last == null ? List.of("failed", "no message came to " + name) : told(last);
            }
            case "leave" -> consumers.remove(name).close();
            case "send" -> send(destination(name), words.get(2), words.subList(3, words.size()));
            case "call" -> {
                List<String> said = new ArrayList<>();
                say(said, name, words.get(2).isEmpty()
                    ? last.getClass().getMethod(name).invoke(last)
                    : last.getClass().getMethod(name, String.class).invoke(last, words.get(2)));
                return said;
            }
            case "answer" -> send(last.getJMSReplyTo(), "TextMessage", List.of("body", "string", name));
            default -> throw new IllegalArgumentException(command);
        }
        return List.of("done");
    }

    // --- what is sent ---

    private Destination destination(String said) throws JMSException {
        int colon = said.indexOf(':');
        String name = said.substring(colon + 1);
        switch (said.substring(0, colon)) {
            case "queue":
                return session.createQueue(name);
            case "topic":
                return session.createTopic(name);
            default:
                Queue made = session.createTemporaryQueue();
                consumers.put(name, session.createConsumer(made));
                return made;
        }
    }

    private void send(Destination to, String type, List<String> said) throws JMSException {
        Message message = switch (type) {
            case "TextMessage" -> session.createTextMessage();
            case "BytesMessage" -> session.createBytesMessage();
            case "MapMessage" -> session.createMapMessage();
            case "StreamMessage" -> session.createStreamMessage();
            case "ObjectMessage" -> session.createObjectMessage();
            default -> session.createMessage();
        };
        try (MessageProducer producer = session.createProducer(to)) {
            for (int at = 0; at < said.size(); at += 3) {
                set(message, producer, said.get(at), value(said.get(at + 1), said.get(at + 2)));
            }
            producer.send(message);
        }
    }

    private void set(Message message, MessageProducer producer, String name, Object value) throws JMSException {
        switch (name) {
            case "JMSPriority" -> producer.setPriority((int) value);
            case "JMSDeliveryMode" -> producer.setDeliveryMode((int) value);
            case "timeToLive" -> producer.setTimeToLive((long) value);
            case "deliveryDelay" -> producer.setDeliveryDelay((long) value);
            case "JMSType" -> message.setJMSType((String) value);
            case "JMSReplyTo" -> message.setJMSReplyTo(destination((String) value));
            case "JMSCorrelationID" -> {
                if (value instanceof byte[] bytes) {
                    message.setJMSCorrelationIDAsBytes(bytes);
                } else {
                    message.setJMSCorrelationID((String) value);
                }
            }
            case "body" -> setBody(message, value);
            default -> {
                String key = name.substring(name.indexOf('.') + 1);
                if (name.startsWith("body.")) {
                    ((MapMessage) message).setObject(key, value);
                } else {
                    message.setObjectProperty(key, value);
                }
            }
        }
    }

    private static void setBody(Message message, Object value) throws JMSException {
        if (message instanceof TextMessage text) {
            text.setText((String) value);
        } else if (message instanceof BytesMessage bytes) {
            bytes.writeObject(value);
        } else if (message instanceof StreamMessage stream) {
            stream.writeObject(value);
        } else {
            ((ObjectMessage) message).setObject(new ArrayList<>(Arrays.asList(value)));
        }
    }

    private static Object value(String type, String text) {
        return switch (type) {
            case "null" -> null;
            case "boolean" -> Boolean.valueOf(text);
            case "byte" -> Byte.valueOf(text);
            case "short" -> Short.valueOf(text);
            case "int" -> Integer.valueOf(text);
            case "long" -> Long.valueOf(text);
            case "float" -> Float.valueOf(text);
            case "double" -> Double.valueOf(text);
            case "char" -> text.charAt(0);
            case "bytes" -> HexFormat.of().parseHex(text);
            default -> text;
        };
    }

    // --- what is received ---

    private static List<String> told(Message message) throws JMSException {
        List<String> said = new ArrayList<>();
        say(said, "kind", kind(message));
        say(said, "JMSMessageID", message.getJMSMessageID());
        say(said, "JMSTimestamp", message.getJMSTimestamp());
        say(said, "JMSCorrelationID", message.getJMSCorrelationID());
        say(said, "JMSReplyTo", name(message.getJMSReplyTo()));
        say(said, "JMSDestination", name(message.getJMSDestination()));
        say(said, "JMSDeliveryMode", message.getJMSDeliveryMode());
        say(said, "JMSRedelivered", message.getJMSRedelivered());
        say(said, "JMSType", message.getJMSType());
        say(said, "JMSExpiration", message.getJMSExpiration());
        say(said, "JMSPriority", message.getJMSPriority());
        say(said, "JMSDeliveryTime", message.getJMSDeliveryTime());
        for (Enumeration<?> names = message.getPropertyNames(); names.hasMoreElements();) {
            String name = (String) names.nextElement();
            say(said, "property." + name, message.getObjectProperty(name));
        }
        body(said, message);
        return said;
    }

    private static String kind(Message message) {
        for (Class<?> kind : List.of(TextMessage.class, BytesMessage.class, MapMessage.class, StreamMessage.class,
            ObjectMessage.class)) {
            if (kind.isInstance(message)) {
                return kind.getSimpleName();
            }
        }
        return "Message";
    }

    private static String name(Destination destination) throws JMSException {
        if (destination instanceof TemporaryQueue) {
            return "temporary:";
        }
        if (destination instanceof Queue queue) {
            return "queue:" + queue.getQueueName();
        }
        return destination == null ? null : "topic:" + ((jakarta.jms.Topic) destination).getTopicName();
    }

    private static void body(List<String> said, Message message) throws JMSException {
        if (message instanceof TextMessage text) {
            say(said, "body", text.getText());
        } else if (message instanceof BytesMessage bytes) {
            byte[] all = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(all);
            say(said, "body", all);
        } else if (message instanceof MapMessage map) {
            for (Enumeration<?> names = map.getMapNames(); names.hasMoreElements();) {
                String name = (String) names.nextElement();
                say(said, "body." + name, map.getObject(name));
            }
        } else if (message instanceof ObjectMessage object) {
            say(said, "body", object.getObject().toString());
        } else if (message instanceof StreamMessage stream) {
            try {
                while (true) {
                    say(said, "body", stream.readObject());
                }
            } catch (MessageEOFException end) {
                return; // that was all
            }
        }
    }

    private static void say(List<String> said, String name, Object value) {
        String type = value == null ? "null" : value.getClass().getSimpleName().toLowerCase();
        said.add(name);
        said.add(switch (type) {
            case "integer" -> "int";
            case "character" -> "char";
            case "byte[]" -> "bytes";
            default -> type;
        });
        said.add(value instanceof byte[] bytes ? HexFormat.of().formatHex(bytes) : String.valueOf(value));
    }
}
