package vespiary;

import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.function.BooleanSupplier;
import org.apache.qpid.jms.JmsConnectionFactory;

/** The broker that test_jms.py has started, and what tests do with any broker. */
final class Broker {
    /** Logs in by SCRAM alone, with a hash of few rounds: the client computes them for each connection. */
    static final String USER = "alice";
    /** Sends its password, which replaces its hash by one of as many rounds as the product's default. */
    static final String ADMIN = "bob";
    static final String PASSWORD = "secret";
    static final String URL = "amqp://127.0.0.1:" + System.getProperty("vespiary.port");
    /** Longest time in which something has to happen. */
    static final long WAIT_MS = 20_000;
    /** Time in which nothing must happen. */
    static final long QUIET_MS = 300;

    private Broker() {}

    static ConnectionFactory factory(String options) {
        return new JmsConnectionFactory(USER, PASSWORD, URL + options);
    }

    /** Connects and starts; options stand behind the URL, such as {@code ?jms.prefetchPolicy.all=0}. */
    static Connection connect(String options) throws JMSException {
        Connection connection = factory(options).createConnection();
        connection.start();
        return connection;
    }

    static Connection connect() throws JMSException {
        return connect("");
    }

    static Connection connectAs(String clientId) throws JMSException {
        Connection connection = factory("").createConnection();
        connection.setClientID(clientId);
        connection.start();
        return connection;
    }

    static JMSContext context() {
        return factory("").createContext();
    }

    static String name(String purpose) {
        return "jms." + purpose + "." + UUID.randomUUID();
    }

    static void send(Session session, jakarta.jms.Destination to, String... texts) throws JMSException {
        try (var producer = session.createProducer(to)) {
            for (String text : texts) {
                producer.send(session.createTextMessage(text));
            }
        }
    }

    static String text(Message message) throws JMSException {
        return message == null ? null : ((TextMessage) message).getText();
    }

    static String receive(MessageConsumer consumer) throws JMSException {
        return text(consumer.receive(WAIT_MS));
    }

    static List<String> receive(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            texts.add(receive(consumer));
        }
        return texts;
    }

    /** Returns the text of what comes soon, or null, as there should be nothing. */
    static String soon(MessageConsumer consumer) throws JMSException {
        return text(consumer.receive(QUIET_MS));
    }

    static List<String> numbers(int first, int last) {
        List<String> texts = new ArrayList<>();
        for (int number = first; number <= last; number++) {
            texts.add(Integer.toString(number));
        }
        return texts;
    }

    static void await(String what, BooleanSupplier holds) throws InterruptedException {
        long end = System.nanoTime() + WAIT_MS * 1_000_000;
        while (!holds.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what + " did not happen in " + WAIT_MS + " ms");
            }
            Thread.sleep(10);
        }
    }
}
