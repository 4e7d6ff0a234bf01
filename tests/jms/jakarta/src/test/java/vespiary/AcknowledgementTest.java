package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;

/** The acknowledgement modes, recover, and messages that fail again and again. */
@TestInstance(TestInstance.Lifecycle.PER_METHOD)
class AcknowledgementTest {
    private Connection connection;
    private Session plain;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        connection = Broker.connect();
        plain = connection.createSession();
        queue = plain.createQueue(Broker.name("acknowledged"));
    }

    @AfterEach
    void close() throws JMSException {
        connection.close();
    }

    /** Receives some in a connection of its own, which then closes; returns what is left. */
    private List<String> leftAfter(int mode, int received, int sent) throws JMSException {
        Broker.send(plain, queue, Broker.numbers(1, sent).toArray(String[]::new));
        try (Connection other = Broker.connect()) {
            var consumer = other.createSession(mode).createConsumer(queue);
            assertEquals(Broker.numbers(1, received), Broker.receive(consumer, received));
        }
        var consumer = plain.createConsumer(queue);
        List<String> left = new java.util.ArrayList<>();
        for (String text = Broker.receive(consumer); text != null; text = Broker.soon(consumer)) {
            left.add(text);
        }
        return left;
    }

    @Test
    void autoAcknowledgeTakesWhatWasReceived() throws JMSException {
        assertEquals(Broker.numbers(4, 5), leftAfter(Session.AUTO_ACKNOWLEDGE, 3, 5));
    }

    @Test
    void dupsOkTakesWhatWasReceivedWhenTheConnectionCloses() throws JMSException {
        assertEquals(Broker.numbers(4, 5), leftAfter(Session.DUPS_OK_ACKNOWLEDGE, 3, 5));
    }

    @Test
    void clientAcknowledgeTakesNothingWithoutAcknowledge() throws JMSException {
        assertEquals(Broker.numbers(1, 5), leftAfter(Session.CLIENT_ACKNOWLEDGE, 3, 5));
    }

    @Test
    void acknowledgeTakesAllThatTheSessionHasReceived() throws JMSException {
        Broker.send(plain, queue, "1", "2", "3");
        try (Connection other = Broker.connect()) {
            var consumer = other.createSession(Session.CLIENT_ACKNOWLEDGE).createConsumer(queue);
            consumer.receive(Broker.WAIT_MS);
            consumer.receive(Broker.WAIT_MS).acknowledge();
        }
        var consumer = plain.createConsumer(queue);
        assertEquals("3", Broker.receive(consumer));
        assertNull(Broker.soon(consumer));
    }

    @Test
    void recoverGivesAgainWhatWasNotAcknowledged() throws JMSException {
        Broker.send(plain, queue, "1", "2", "3");
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        var consumer = session.createConsumer(queue);
        consumer.receive(Broker.WAIT_MS).acknowledge();
        assertEquals("2", Broker.receive(consumer));
        session.recover();
        Message again = consumer.receive(Broker.WAIT_MS);
        assertEquals("2", Broker.text(again));
        assertTrue(again.getJMSRedelivered());
        assertEquals(2, again.getIntProperty("JMSXDeliveryCount"));
        Message last = consumer.receive(Broker.WAIT_MS);
        assertEquals("3", Broker.text(last));
        last.acknowledge();
        assertNull(Broker.soon(consumer));
    }

    @Test
    void aListenerGetsAllInOrder() throws Exception {
        List<String> got = new java.util.concurrent.CopyOnWriteArrayList<>();
        CountDownLatch latch = new CountDownLatch(200);
        Session session = connection.createSession();
        session.createConsumer(queue).setMessageListener(message -> {
            try {
                got.add(Broker.text(message));
            } catch (JMSException error) {
                got.add(error.toString());
            }
            latch.countDown();
        });
        Broker.send(plain, queue, Broker.numbers(1, 200).toArray(String[]::new));
        assertTrue(latch.await(Broker.WAIT_MS, TimeUnit.MILLISECONDS));
        assertEquals(Broker.numbers(1, 200), got);
    }

    @Test
    void aListenerThatFailsGetsTheMessageAgain() throws Exception {
        List<Integer> counts = new java.util.concurrent.CopyOnWriteArrayList<>();
        CountDownLatch latch = new CountDownLatch(3);
        connection.createSession().createConsumer(queue).setMessageListener(message -> {
            try {
                counts.add(message.getIntProperty("JMSXDeliveryCount"));
            } catch (JMSException error) {
                counts.add(-1);
            }
            latch.countDown();
            if (latch.getCount() > 0) {
                throw new IllegalStateException("not yet"); // Qpid JMS releases the message
            }
        });
        Broker.send(plain, queue, "fails");
        assertTrue(latch.await(Broker.WAIT_MS, TimeUnit.MILLISECONDS));
        assertEquals(List.of(1, 1, 1), counts, "what was released counts as never delivered");
    }

    @Test
    void aMessageThatFailsTooOftenIsADeadLetter() throws JMSException {
        Queue poisoned = plain.createQueue(Broker.name("poisoned"));
        Broker.send(plain, poisoned, "poison", "food");
        Session session = connection.createSession(Session.SESSION_TRANSACTED);
        var consumer = session.createConsumer(poisoned);
        for (int attempt = 1; attempt <= 3; attempt++) {
            Message message = consumer.receive(Broker.WAIT_MS);
            assertEquals("poison", Broker.text(message));
            assertEquals(attempt, message.getIntProperty("JMSXDeliveryCount"));
            session.rollback();
        }
        assertEquals("food", Broker.receive(consumer), "the fourth attempt is not made");
        session.commit();
        var dead = plain.createConsumer(plain.createQueue("dead"), "_AMQ_ORIG_ADDRESS = '" + poisoned.getQueueName() + "'");
        Message letter = dead.receive(Broker.WAIT_MS);
        assertEquals("poison", Broker.text(letter));
    }

    @Test
    void aMessageThatIsRejectedIsADeadLetterAtOnce() throws JMSException {
        Queue rejected = plain.createQueue(Broker.name("rejected"));
        Broker.send(plain, rejected, "unwanted");
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        Message message = session.createConsumer(rejected).receive(Broker.WAIT_MS);
        message.setIntProperty("JMS_AMQP_ACK_TYPE", 2); // Qpid JMS: REJECTED
        message.acknowledge();
        var dead = plain.createConsumer(plain.createQueue("dead"), "_AMQ_ORIG_ADDRESS = '" + rejected.getQueueName() + "'");
        assertEquals("unwanted", Broker.receive(dead));
    }
}
