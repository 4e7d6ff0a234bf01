package vespiary;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.List;
import org.junit.jupiter.api.Test;

/** When messages are delivered, and in which order: delay, time to live, priority. */
class TimesTest {
    @Test
    void aDeliveryDelayIsKept() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("delayed"));
            var consumer = session.createConsumer(queue);
            var producer = session.createProducer(queue);
            producer.setDeliveryDelay(700);
            long begin = System.currentTimeMillis();
            producer.send(session.createTextMessage("late"));
            producer.setDeliveryDelay(0);
            producer.send(session.createTextMessage("now"));
            assertEquals("now", Broker.receive(consumer));
            Message late = consumer.receive(Broker.WAIT_MS);
            assertEquals("late", Broker.text(late));
            long after = System.currentTimeMillis() - begin;
            assertTrue(after >= 700, "came after " + after + " ms");
            assertTrue(late.getJMSDeliveryTime() >= begin + 700);
        }
    }

    @Test
    void aDeliveryDelayHoldsInATransactionAndForTopics() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession(Session.SESSION_TRANSACTED);
            var topic = session.createTopic(Broker.name("delayed"));
            var consumer = connection.createSession().createConsumer(topic);
            var producer = session.createProducer(topic);
            producer.setDeliveryDelay(600);
            long begin = System.currentTimeMillis();
            producer.send(session.createTextMessage("late"));
            session.commit();
            assertEquals("late", Broker.receive(consumer));
            assertTrue(System.currentTimeMillis() - begin >= 600);
        }
    }

    @Test
    void whatHasExpiredIsNotDelivered() throws Exception {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("expiring"));
            var producer = session.createProducer(queue);
            producer.setTimeToLive(150);
            producer.send(session.createTextMessage("short"));
            producer.setTimeToLive(60_000);
            producer.send(session.createTextMessage("long"));
            Thread.sleep(400); // the time to live itself
            var consumer = session.createConsumer(queue);
            assertEquals("long", Broker.receive(consumer));
            assertNull(Broker.soon(consumer));
            var expired = session.createConsumer(session.createQueue("expired"), "_AMQ_ORIG_ADDRESS = '" + queue.getQueueName() + "'");
            assertEquals("short", Broker.receive(expired));
        }
    }

    @Test
    void higherPrioritiesComeFirst() throws JMSException {
        try (Connection connection = Broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue(Broker.name("priorities"));
            var producer = session.createProducer(queue);
            for (int priority : new int[] {4, 0, 9, 1, 4, 9}) {
                producer.send(session.createTextMessage("p" + priority), DeliveryMode.PERSISTENT, priority, 0);
            }
            var consumer = session.createConsumer(queue);
            assertEquals(List.of("p9", "p9", "p4", "p4", "p1", "p0"), Broker.receive(consumer, 6));
        }
    }
}
