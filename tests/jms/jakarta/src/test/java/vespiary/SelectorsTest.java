package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Selectors see properties with the types that they were set with. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class SelectorsTest {
    private Connection shared;

    @BeforeAll
    void open() throws JMSException {
        shared = Broker.connect();
    }

    @AfterAll
    void close() throws JMSException {
        shared.close();
    }

    private static Message example(Session session) throws JMSException {
        Message message = session.createTextMessage("example");
        message.setBooleanProperty("yes", true);
        message.setByteProperty("b", (byte) 5);
        message.setIntProperty("five", 5);
        message.setLongProperty("big", 1L << 53);
        message.setFloatProperty("half", 0.5f);
        message.setDoubleProperty("real", 2.75e10);
        message.setDoubleProperty("huge", 1e300);
        message.setStringProperty("digits", "5");
        message.setStringProperty("word", "true");
        message.setStringProperty("colour", "red_ish");
        message.setStringProperty("quoted", "it's");
        message.setStringProperty("priority", "mine");
        message.setJMSType("order");
        message.setJMSCorrelationID("c-1");
        return message;
    }

    /** Sends the example and a message that says it is the last; returns whether the example matches. */
    private boolean matches(String selector) throws JMSException {
        try (Session session = shared.createSession()) {
            Queue queue = session.createQueue(Broker.name("selected"));
            var consumer = session.createConsumer(queue, "(" + selector + ") OR last = TRUE");
            var producer = session.createProducer(queue);
            producer.send(example(session), DeliveryMode.NON_PERSISTENT, 6, 0);
            Message last = session.createTextMessage("last");
            last.setBooleanProperty("last", true);
            producer.send(last);
            return Broker.receive(consumer).equals("example");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "five = 5", "five <> 6", "five > 4.5", "five + 1 = 6", "five * 2 - 1 = 9", "-five = -5", "five / 2 = 2",
        "b = five", "five = 5.0", "five BETWEEN 1 AND 5", "five NOT BETWEEN 6 AND 9", "big = 9007199254740992",
        "half = 0.5", "half < 1", "real = 2.75E10", "huge > 1E299",
        "yes", "yes = TRUE", "yes <> FALSE", "NOT (yes = FALSE)",
        "digits = '5'", "digits <> '6'", "NOT (digits = 5)", "word = 'true'", "NOT (word = TRUE)",
        "colour IN ('blue', 'red_ish')", "colour NOT IN ('blue')", "colour LIKE 'red%'", "colour LIKE '___\\_ish' ESCAPE '\\'",
        "colour NOT LIKE 'x%'", "colour <> 'red'", "quoted = 'it''s'",
        "missing IS NULL", "five IS NOT NULL", "digits IS NOT NULL AND missing IS NULL",
        "JMSPriority = 6", "JMSPriority > 5", "JMSType = 'order'", "JMSCorrelationID = 'c-1'", "JMSDeliveryMode = 'NON_PERSISTENT'",
        "JMSTimestamp > 0", "JMSMessageID LIKE 'ID:%'", "JMSXDeliveryCount = 1",
        "\"user-property.priority\" = 'mine'",
    })
    void selects(String selector) throws JMSException {
        assertEquals(true, matches(selector));
    }

    @ParameterizedTest
    @ValueSource(strings = {
        "five = '5'", "five = 6", "five LIKE '5'", "five IN ('5')", "five BETWEEN 6 AND 9",
        "digits = 5", "digits <> 5", "digits < 6", "digits BETWEEN 1 AND 9", "digits + 1 = 6", "five = digits",
        "yes = 'true'", "word", "word = TRUE", "word <> FALSE", "five = TRUE", "yes = word", "yes LIKE 'true'",
        "missing = 1", "missing <> 1", "NOT (missing = 1)", "missing IS NOT NULL", "FIVE = 5",
        "colour LIKE 'red'", "colour IN ('blue')", "half = 0.25", "JMSPriority = 4", "JMSPriority = '6'",
    })
    void selectsNot(String selector) throws JMSException {
        assertEquals(false, matches(selector));
    }

    @ParameterizedTest
    @ValueSource(strings = {"five =", "= 5", "a = 'open", "a BETWEEN 1", "a IN (1)", "a LIKE 5", "a == 1"})
    void anInvalidSelectorIsToldAsSuch(String selector) throws JMSException {
        try (Session session = shared.createSession()) {
            Queue queue = session.createQueue(Broker.name("invalid"));
            var topic = session.createTopic(Broker.name("invalid"));
            assertThrows(InvalidSelectorException.class, () -> session.createConsumer(queue, selector));
            assertThrows(InvalidSelectorException.class, () -> session.createConsumer(topic, selector));
            Broker.send(session, queue, "the session goes on");
            assertEquals("the session goes on", Broker.receive(session.createConsumer(queue)));
        }
    }

    @Test
    void consumersWithSelectorsShareAQueue() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("shared"));
            var even = session.createConsumer(queue, "n = 2 OR n = 4");
            var odd = session.createConsumer(queue, "n = 1 OR n = 3");
            var producer = session.createProducer(queue);
            for (int number = 1; number <= 5; number++) {
                Message message = session.createTextMessage(Integer.toString(number));
                message.setIntProperty("n", number);
                producer.send(message);
            }
            assertEquals("2", Broker.receive(even));
            assertEquals("4", Broker.receive(even));
            assertEquals("1", Broker.receive(odd));
            assertEquals("3", Broker.receive(odd));
            assertNull(Broker.soon(even));
            assertEquals("5", Broker.receive(session.createConsumer(queue)));
        }
    }

    @Test
    void aSubscriptionTakesInWhatItsSelectorMatches() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            var topic = session.createTopic(Broker.name("filtered"));
            var heavy = session.createConsumer(topic, "weight > 10 AND size = 'L'");
            var producer = session.createProducer(topic);
            for (Object weight : new Object[] {5, 50, "50", 11.5f}) {
                Message message = session.createTextMessage(weight + " " + weight.getClass().getSimpleName());
                message.setObjectProperty("weight", weight);
                message.setStringProperty("size", "L");
                producer.send(message);
            }
            assertEquals("50 Integer", Broker.receive(heavy));
            assertEquals("11.5 Float", Broker.receive(heavy));
            assertNull(Broker.soon(heavy));
        }
    }
}
