package vespiary;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;

/** Every message type, property and header survives the way through a queue. */
@TestInstance(TestInstance.Lifecycle.PER_METHOD)
class MessageTypesTest {
    private Connection connection;
    private Session session;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        connection = Broker.connect("?jms.deserializationPolicy.allowList=java.util,java.lang");
        session = connection.createSession();
        queue = session.createQueue(Broker.name("types"));
    }

    @AfterEach
    void close() throws JMSException {
        connection.close();
    }

    private Message pass(Message message) throws JMSException {
        try (var producer = session.createProducer(queue); var consumer = session.createConsumer(queue)) {
            producer.send(message);
            return consumer.receive(Broker.WAIT_MS);
        }
    }

    @Test
    void textsSurvive() throws JMSException {
        for (String text : new String[] {"hello", "", "é\u0000\n:\\ \uD83D\uDC1D", "x".repeat(100_000)}) {
            assertEquals(text, assertInstanceOf(TextMessage.class, pass(session.createTextMessage(text))).getText());
        }
    }

    @Test
    void aTextMessageWithoutTextStaysWithoutOne() throws JMSException {
        Message got = pass(session.createTextMessage());
        assertNull(assertInstanceOf(TextMessage.class, got).getText());
    }

    @Test
    void bytesSurvive() throws JMSException {
        BytesMessage sent = session.createBytesMessage();
        sent.writeBoolean(true);
        sent.writeInt(-7);
        sent.writeUTF("é");
        sent.writeDouble(0.1);
        sent.writeBytes(new byte[] {0, -1, 10});
        BytesMessage got = assertInstanceOf(BytesMessage.class, pass(sent));
        assertTrue(got.readBoolean());
        assertEquals(-7, got.readInt());
        assertEquals("é", got.readUTF());
        assertEquals(0.1, got.readDouble());
        byte[] rest = new byte[3];
        assertEquals(3, got.readBytes(rest));
        assertArrayEquals(new byte[] {0, -1, 10}, rest);
        assertEquals(-1, got.readBytes(rest));
    }

    @Test
    void emptyBytesSurvive() throws JMSException {
        assertEquals(0, assertInstanceOf(BytesMessage.class, pass(session.createBytesMessage())).getBodyLength());
    }

    @Test
    void mapsKeepTheTypesOfTheirValues() throws JMSException {
        MapMessage sent = session.createMapMessage();
        sent.setBoolean("boolean", true);
        sent.setByte("byte", (byte) -1);
        sent.setShort("short", (short) 300);
        sent.setInt("int", 70_000);
        sent.setLong("long", 1L << 40);
        sent.setFloat("float", 0.5f);
        sent.setDouble("double", 0.1);
        sent.setChar("char", 'é');
        sent.setString("string", "text");
        sent.setBytes("bytes", new byte[] {1, 2});
        sent.setObject("null", null);
        MapMessage got = assertInstanceOf(MapMessage.class, pass(sent));
        assertEquals(11, Collections.list(got.getMapNames()).size());
        for (String name : List.of("boolean", "byte", "short", "int", "long", "float", "double", "char", "string")) {
            assertEquals(sent.getObject(name), got.getObject(name), name);
            assertEquals(sent.getObject(name).getClass(), got.getObject(name).getClass(), name);
        }
        assertArrayEquals(new byte[] {1, 2}, got.getBytes("bytes"));
        assertTrue(got.itemExists("null"));
        assertNull(got.getObject("null"));
    }

    @Test
    void streamsKeepTheirOrderAndTypes() throws JMSException {
        Object[] values = {true, (byte) 1, (short) 2, 3, 4L, 0.5f, 0.1, 'c', "text", null};
        StreamMessage sent = session.createStreamMessage();
        for (Object value : values) {
            sent.writeObject(value);
        }
        sent.writeBytes(new byte[] {9});
        StreamMessage got = assertInstanceOf(StreamMessage.class, pass(sent));
        for (Object value : values) {
            assertEquals(value, got.readObject());
        }
        assertArrayEquals(new byte[] {9}, (byte[]) got.readObject());
    }

    @Test
    void objectsSurvive() throws JMSException {
        ArrayList<Integer> object = new ArrayList<>(List.of(1, 2, 3));
        ObjectMessage got = assertInstanceOf(ObjectMessage.class, pass(session.createObjectMessage(object)));
        assertEquals(object, got.getObject());
    }

    @Test
    void plainMessagesHaveNoBody() throws JMSException {
        Message sent = session.createMessage();
        sent.setStringProperty("only", "this");
        Message got = pass(sent);
        assertFalse(got instanceof TextMessage || got instanceof BytesMessage || got instanceof MapMessage);
        assertEquals("this", got.getStringProperty("only"));
    }

    @Test
    void propertiesKeepTheirTypes() throws JMSException {
        Message sent = session.createTextMessage("properties");
        sent.setBooleanProperty("boolean", false);
        sent.setByteProperty("byte", Byte.MIN_VALUE);
        sent.setShortProperty("short", Short.MAX_VALUE);
        sent.setIntProperty("int", Integer.MIN_VALUE);
        sent.setLongProperty("long", Long.MAX_VALUE);
        sent.setFloatProperty("float", 0.1f);
        sent.setDoubleProperty("double", Double.MIN_VALUE);
        sent.setStringProperty("string", "a:b\\c\né");
        sent.setStringProperty("empty", "");
        sent.setObjectProperty("null", null);
        sent.setStringProperty("destination", "a name that STOMP has");
        sent.setStringProperty("priority", "another");
        Message got = pass(sent);
        for (Object name : Collections.list(sent.getPropertyNames())) {
            assertEquals(sent.getObjectProperty((String) name), got.getObjectProperty((String) name), (String) name);
            assertTrue(got.propertyExists((String) name), (String) name);
        }
    }

    @Test
    void headersSurvive() throws JMSException {
        Destination reply = session.createTopic("replies");
        Message sent = session.createTextMessage("headers");
        sent.setJMSType("a type");
        sent.setJMSCorrelationID("correlated");
        sent.setJMSReplyTo(reply);
        long before = System.currentTimeMillis();
        try (var producer = session.createProducer(queue); var consumer = session.createConsumer(queue)) {
            producer.send(sent, DeliveryMode.NON_PERSISTENT, 7, 60_000);
            Message got = consumer.receive(Broker.WAIT_MS);
            assertEquals("a type", got.getJMSType());
            assertEquals("correlated", got.getJMSCorrelationID());
            assertEquals(reply, assertInstanceOf(Topic.class, got.getJMSReplyTo()));
            assertEquals(queue, assertInstanceOf(Queue.class, got.getJMSDestination()));
            assertEquals(DeliveryMode.NON_PERSISTENT, got.getJMSDeliveryMode());
            assertEquals(7, got.getJMSPriority());
            assertEquals(sent.getJMSMessageID(), got.getJMSMessageID());
            assertTrue(got.getJMSMessageID().startsWith("ID:"));
            assertEquals(sent.getJMSTimestamp(), got.getJMSTimestamp());
            assertTrue(got.getJMSTimestamp() >= before);
            assertEquals(sent.getJMSExpiration(), got.getJMSExpiration());
            assertTrue(got.getJMSExpiration() >= before + 60_000);
            assertFalse(got.getJMSRedelivered());
            assertEquals(1, got.getIntProperty("JMSXDeliveryCount"));
            producer.send(sent);
            got = consumer.receive(Broker.WAIT_MS);
            assertEquals(DeliveryMode.PERSISTENT, got.getJMSDeliveryMode());
            assertEquals(Message.DEFAULT_PRIORITY, got.getJMSPriority());
            assertEquals(0, got.getJMSExpiration());
        }
    }

    @Test
    void correlationIdsAreTextBytesOrMessageIds() throws JMSException {
        Message sent = session.createMessage();
        sent.setJMSCorrelationIDAsBytes(new byte[] {0, 1, -1});
        assertArrayEquals(new byte[] {0, 1, -1}, pass(sent).getJMSCorrelationIDAsBytes());
        Message answered = pass(session.createMessage());
        Message answer = session.createMessage();
        answer.setJMSCorrelationID(answered.getJMSMessageID());
        assertEquals(answered.getJMSMessageID(), pass(answer).getJMSCorrelationID());
    }

    @Test
    void theUserIsTold() throws JMSException {
        try (Connection telling = Broker.connect("?jms.populateJMSXUserID=true")) {
            Session of = telling.createSession();
            Broker.send(of, queue, "whose");
            assertEquals(Broker.USER, of.createConsumer(queue).receive(Broker.WAIT_MS).getStringProperty("JMSXUserID"));
        }
    }
}
