package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;

/** Transacted sessions: all of a transaction, or nothing. */
@TestInstance(TestInstance.Lifecycle.PER_METHOD)
class TransactionsTest {
    private Connection connection;
    private Session plain;
    private Session transacted;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        connection = Broker.connect();
        plain = connection.createSession();
        transacted = connection.createSession(Session.SESSION_TRANSACTED);
        queue = plain.createQueue(Broker.name("transacted"));
    }

    @AfterEach
    void close() throws JMSException {
        connection.close();
    }

    @Test
    void nothingIsSeenBeforeTheCommit() throws JMSException {
        var consumer = plain.createConsumer(queue);
        Broker.send(transacted, queue, "1", "2");
        assertNull(Broker.soon(consumer));
        transacted.commit();
        assertEquals(List.of("1", "2"), Broker.receive(consumer, 2));
    }

    @Test
    void nothingIsLeftOfARollback() throws JMSException {
        var consumer = plain.createConsumer(queue);
        Broker.send(transacted, queue, "dropped");
        transacted.rollback();
        Broker.send(transacted, queue, "kept");
        transacted.commit();
        assertEquals("kept", Broker.receive(consumer));
        assertNull(Broker.soon(consumer));
    }

    @Test
    void whatWasReceivedComesAgainAfterARollback() throws JMSException {
        Broker.send(plain, queue, "1", "2", "3");
        var consumer = transacted.createConsumer(queue);
        assertEquals(List.of("1", "2"), Broker.receive(consumer, 2));
        transacted.rollback();
        for (String text : List.of("1", "2")) {
            Message again = consumer.receive(Broker.WAIT_MS);
            assertEquals(text, Broker.text(again));
            assertTrue(again.getJMSRedelivered());
            assertEquals(2, again.getIntProperty("JMSXDeliveryCount"));
        }
        Message third = consumer.receive(Broker.WAIT_MS);
        assertEquals("3", Broker.text(third));
        transacted.commit();
        consumer.close();
        assertNull(Broker.soon(plain.createConsumer(queue)));
    }

    @Test
    void whatACommitAcknowledgedDoesNotComeAgain() throws JMSException {
        Broker.send(plain, queue, "1", "2");
        try (var consumer = transacted.createConsumer(queue)) {
            assertEquals("1", Broker.receive(consumer));
            transacted.commit();
        }
        var next = plain.createConsumer(queue);
        assertEquals("2", Broker.receive(next));
        assertNull(Broker.soon(next));
    }

    @Test
    void receivingAndSendingCountTogether() throws JMSException {
        Queue results = plain.createQueue(Broker.name("results"));
        Broker.send(plain, queue, "work");
        var consumer = transacted.createConsumer(queue);
        var result = plain.createConsumer(results);
        for (int attempt = 0; attempt < 3; attempt++) {
            assertEquals("work", Broker.receive(consumer));
            Broker.send(transacted, results, "done " + attempt);
            if (attempt < 2) {
                transacted.rollback();
            }
        }
        transacted.commit();
        assertEquals("done 2", Broker.receive(result));
        assertNull(Broker.soon(result));
        assertNull(Broker.soon(consumer));
    }

    @Test
    void sessionsHaveTransactionsOfTheirOwn() throws JMSException {
        Session other = connection.createSession(Session.SESSION_TRANSACTED);
        Broker.send(transacted, queue, "first");
        Broker.send(other, queue, "second");
        transacted.rollback();
        other.commit();
        var consumer = plain.createConsumer(queue);
        assertEquals("second", Broker.receive(consumer));
        assertNull(Broker.soon(consumer));
    }

    @Test
    void aConnectionThatEndsRollsBack() throws JMSException {
        Broker.send(plain, queue, "stays");
        try (Connection ending = Broker.connect()) {
            Session session = ending.createSession(Session.SESSION_TRANSACTED);
            Broker.send(session, queue, "never sent");
            assertEquals("stays", Broker.receive(session.createConsumer(queue)));
        }
        var consumer = plain.createConsumer(queue);
        assertEquals("stays", Broker.receive(consumer));
        assertNull(Broker.soon(consumer));
    }

    @Test
    void aTransactionTakesManyMessages() throws JMSException {
        Broker.send(transacted, queue, Broker.numbers(1, 2000).toArray(String[]::new));
        transacted.commit();
        var consumer = transacted.createConsumer(queue);
        assertEquals(Broker.numbers(1, 2000), Broker.receive(consumer, 2000));
        transacted.commit();
        assertNull(Broker.soon(consumer));
    }

    @Test
    void aTransactionReachesQueuesAndTopics() throws JMSException {
        var topic = plain.createTopic(Broker.name("news"));
        var subscriber = plain.createConsumer(topic);
        var consumer = plain.createConsumer(queue);
        Broker.send(transacted, topic, "news");
        Broker.send(transacted, queue, "work");
        assertNull(Broker.soon(subscriber));
        transacted.commit();
        assertEquals("news", Broker.receive(subscriber));
        assertEquals("work", Broker.receive(consumer));
        assertFalse(plain.getTransacted());
    }
}
