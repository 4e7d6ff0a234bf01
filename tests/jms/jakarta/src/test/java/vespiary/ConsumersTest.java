package vespiary;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Who gets which message: prefetch, groups, several consumers; and messages of any size. */
class ConsumersTest {
    private static List<String> drained(MessageConsumer consumer) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (String text = Broker.soon(consumer); text != null; text = Broker.soon(consumer)) {
            texts.add(text);
        }
        return texts;
    }

    @Test
    void withoutPrefetchNothingIsHeldBack() throws JMSException {
        try (Connection connection = Broker.connect("?jms.prefetchPolicy.all=0")) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("pulled"));
            var idle = session.createConsumer(queue);
            var busy = session.createConsumer(queue);
            assertNull(idle.receiveNoWait());
            Broker.send(session, queue, "1", "2", "3", "4");
            assertEquals(List.of("1", "2", "3"), Broker.receive(busy, 3));
            assertEquals("4", Broker.text(idle.receiveNoWait()));
            assertNull(busy.receiveNoWait());
        }
    }

    @Test
    void consumersShareFairly() throws JMSException {
        try (Connection connection = Broker.connect("?jms.prefetchPolicy.all=10")) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("shared"));
            List<MessageConsumer> consumers = new ArrayList<>();
            for (int number = 0; number < 3; number++) {
                consumers.add(connection.createSession().createConsumer(queue));
            }
            Broker.send(session, queue, Broker.numbers(1, 30).toArray(String[]::new));
            Set<String> all = new HashSet<>();
            for (MessageConsumer consumer : consumers) {
                List<String> share = drained(consumer);
                assertEquals(10, share.size());
                all.addAll(share);
            }
            assertEquals(new HashSet<>(Broker.numbers(1, 30)), all);
        }
    }

    @Test
    void aGroupStaysWithItsConsumer() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("groups"));
            var first = connection.createSession().createConsumer(queue);
            var second = connection.createSession().createConsumer(queue);
            var producer = session.createProducer(queue);
            for (int number = 0; number < 40; number++) {
                Message message = session.createTextMessage("g" + number % 4);
                message.setStringProperty("JMSXGroupID", "g" + number % 4);
                message.setIntProperty("JMSXGroupSeq", number / 4 + 1);
                producer.send(message);
            }
            List<String> left = drained(first);
            List<String> right = drained(second);
            assertEquals(40, left.size() + right.size());
            Set<String> both = new HashSet<>(left);
            both.retainAll(new HashSet<>(right));
            assertEquals(Set.of(), both, "a group has one consumer");
            assertTrue(!left.isEmpty() && !right.isEmpty(), "groups are spread");
        }
    }

    @Test
    void aGroupMovesWhenItsConsumerCloses() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("groups"));
            var first = connection.createSession().createConsumer(queue);
            var producer = session.createProducer(queue);
            for (int number = 1; number <= 3; number++) {
                Message message = session.createTextMessage(Integer.toString(number));
                message.setStringProperty("JMSXGroupID", "only");
                message.setIntProperty("JMSXGroupSeq", number);
                producer.send(message);
            }
            Message got = first.receive(Broker.WAIT_MS);
            assertEquals("only", got.getStringProperty("JMSXGroupID"));
            assertEquals(1, got.getIntProperty("JMSXGroupSeq"));
            first.close();
            assertEquals(List.of("2", "3"), Broker.receive(connection.createSession().createConsumer(queue), 2));
        }
    }

    @Test
    void aConsumerThatClosesGivesBackWhatItPrefetched() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("prefetched"));
            Broker.send(session, queue, Broker.numbers(1, 20).toArray(String[]::new));
            var first = connection.createSession().createConsumer(queue);
            assertEquals("1", Broker.receive(first));
            first.close();
            var second = session.createConsumer(queue);
            Message next = second.receive(Broker.WAIT_MS);
            assertEquals("2", Broker.text(next), "in order");
            assertEquals(1, next.getIntProperty("JMSXDeliveryCount"), "it was not delivered");
            assertEquals(Broker.numbers(3, 20), Broker.receive(second, 18));
        }
    }

    @Test
    void aStoppedConnectionDeliversNothing() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("stopped"));
            var consumer = session.createConsumer(queue);
            connection.stop();
            Broker.send(session, queue, "later");
            assertNull(Broker.soon(consumer));
            connection.start();
            assertEquals("later", Broker.receive(consumer));
        }
    }

    @Test
    void whatIsNotThereIsToldWhereNothingIsMadeByItself() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("fixed"));
            var topic = session.createTopic(Broker.name("fixed"));
            assertThrows(InvalidDestinationException.class, () -> session.createConsumer(queue));
            assertThrows(InvalidDestinationException.class, () -> session.createProducer(queue));
            assertThrows(InvalidDestinationException.class, () -> session.createConsumer(topic));
            assertThrows(InvalidDestinationException.class, () -> session.createProducer(topic));
            assertThrows(JMSException.class, () -> session.createProducer(null).send(queue, session.createMessage()));
        }
    }

    @Test
    void largeMessagesSurvive() throws JMSException {
        byte[] body = new byte[5 << 20];
        new Random(1).nextBytes(body);
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession(Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue(Broker.name("large"));
            var producer = session.createProducer(queue);
            for (int number = 0; number < 2; number++) {
                BytesMessage message = session.createBytesMessage();
                message.writeBytes(body);
                message.setIntProperty("number", number);
                producer.send(message);
            }
            session.commit();
            var consumer = session.createConsumer(queue);
            for (int number = 0; number < 2; number++) {
                BytesMessage got = (BytesMessage) consumer.receive(Broker.WAIT_MS);
                assertNotNull(got);
                assertEquals(number, got.getIntProperty("number"));
                byte[] read = new byte[(int) got.getBodyLength()];
                got.readBytes(read);
                assertArrayEquals(body, read);
            }
            session.commit();
            assertNull(consumer.receive(Broker.QUIET_MS));
        }
    }

    @Test
    void largeTextsSurvive() throws JMSException {
        String text = "é".repeat(700_000);
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("large"));
            Broker.send(session, queue, text);
            assertEquals(text, Broker.receive(session.createConsumer(queue)));
        }
    }
}
